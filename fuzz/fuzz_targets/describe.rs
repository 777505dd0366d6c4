//! Any bytes, described: no panic, and always one line of printable text.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nocopy_proto::describe::check_one_line(bytes));
