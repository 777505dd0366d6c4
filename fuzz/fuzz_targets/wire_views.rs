//! Any bytes, read as every wire format: no panic, and no view shows bytes outside them.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_proto::wire::oracle::walk_views(bytes));
