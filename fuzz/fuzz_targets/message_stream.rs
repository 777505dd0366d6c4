//! Any bytes as a stream of the message protocol: its first bytes, units whose messages are likely to be
//! valid, and units of a writer that arrive damaged and in pieces. No panic, and memory within the settings;
//! what was not damaged is received as it was written.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| {
    nocopy_proto::message::wire::oracle::check_stream(bytes);
    nocopy_proto::message::simulation::forged_units::run(bytes);
    nocopy::model::check_message_stream(bytes);
});
