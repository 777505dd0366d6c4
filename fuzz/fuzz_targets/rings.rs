//! Any operations on a ring against a queue, and on the halves of a port against a kernel that lies.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| {
    let operations = nocopy::model::operations(bytes);
    nocopy::model::ring(&operations);
    nocopy::model::halves(&operations);
});
