//! Any bytes as a schedule of what happens to two endpoints of the message protocol and to the datagrams
//! between them: no panic, no memory beyond the settings, and messages that nobody forged are heard as they
//! were said.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|schedule: &[u8]| nocopy_proto::message::simulation::schedule::run(schedule));
