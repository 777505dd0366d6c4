//! Any bytes, read as every wire format: no panic, and no view shows bytes outside them.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nocopy_proto::wire::oracle::walk_views(bytes));
