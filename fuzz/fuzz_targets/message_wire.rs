//! Any bytes as a datagram of the message protocol, with and without a right checksum: no panic, and what is
//! read is written again.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_proto::message::wire::oracle::check_round_trip(bytes));
