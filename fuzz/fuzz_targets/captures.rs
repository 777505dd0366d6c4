//! Any bytes as a capture file that is replayed: no panic, bounded gaps, frames of the announced length.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_transfer::send::check_capture(bytes));
