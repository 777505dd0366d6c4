//! Any operations on a ring against a queue, and on the halves of a port against a kernel that lies.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let operations = nocopy::model::operations(bytes);
    nocopy::model::ring(&operations);
    nocopy::model::halves(&operations);
});
