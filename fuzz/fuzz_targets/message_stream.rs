//! Any bytes as units that come over a stream of the message protocol: no panic, and memory within the settings.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_proto::message::simulation::forged_units::run(bytes));
