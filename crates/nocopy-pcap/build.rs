//! Gives the library libpcap's name, by which programs that were linked with libpcap ask the loader for it.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
    // It starts threads, and has handlers for forks and for the exit: so it stays loaded even if it is
    // unloaded by its users.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
