//! Any bytes, described: no panic, and always one line of printable text.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_proto::describe::check_one_line(bytes));
