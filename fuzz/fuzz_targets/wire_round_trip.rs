//! Any bytes that some wire format accepts, read, written and compared.

#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| nocopy_proto::wire::oracle::check_round_trips(bytes));
