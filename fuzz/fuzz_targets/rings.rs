//! Any operations on a ring against a queue, and on the halves of a port against a kernel that lies.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| {
    let operations = nocopy::model::parse_operations(bytes);
    nocopy::model::check_ring(&operations);
    nocopy::model::check_port_halves(&operations);
});
