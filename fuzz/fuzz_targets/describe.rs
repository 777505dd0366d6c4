//! Any bytes, described: no panic, and always one line of printable text.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_proto::describe::assert_description_is_one_line(bytes));
