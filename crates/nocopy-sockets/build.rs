//! Keeps the library loaded until the program ends: it starts threads, and has handlers called at forks.
fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,now");
}
