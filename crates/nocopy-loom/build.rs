//! Chooses loom's atomics in the sources that this crate borrows from the library.

fn main() {
    println!("cargo::rustc-cfg=nocopy_loom");
    println!("cargo::rerun-if-changed=build.rs");
}
