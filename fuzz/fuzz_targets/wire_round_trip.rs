//! Any bytes that some wire format accepts, read, written and compared.

#![cfg_attr(fuzzing, no_main)]

nocopy_fuzz::target!(|bytes: &[u8]| nocopy_proto::wire::oracle::check_round_trips(bytes));
