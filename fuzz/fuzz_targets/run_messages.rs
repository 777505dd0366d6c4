//! Any bytes as what the preloaded library and `nocopy run` say to each other: no panic, and what is read is
//! written again.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_proto::run::oracle::check_round_trip(bytes));
