//! Any bytes as a datagram of the message protocol, with and without a right checksum: no panic, and what is read is written again.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nocopy_proto::message::wire::oracle::check_round_trip(bytes));
