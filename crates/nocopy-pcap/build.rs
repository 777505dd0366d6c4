//! Gives the library libpcap's name, by which programs that were linked with libpcap ask the loader for it.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libpcap.so.0.8");
    // It starts threads, and has handlers called at forks and at the exit: it stays, whoever else unloads it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
