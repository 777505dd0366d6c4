//! The parts of the library that threads, or the kernel and a thread, share without a lock: compiled once
//! more here with loom's atomics, so that `cargo test -p nocopy-loom` runs their models through every
//! interleaving.
#![cfg(test)]
#![allow(unsafe_code, unreachable_pub, dead_code, missing_docs)] // as the library declares these modules

#[path = "../../nocopy/src/memory/area/returns.rs"]
mod returns;
#[path = "../../nocopy/src/ring.rs"]
mod ring;
#[path = "../../nocopy/src/sync.rs"]
mod sync;
