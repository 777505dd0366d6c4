//! The command, as a program on real traffic.
#![allow(missing_docs, clippy::disallowed_macros)] // a test may print

mod addresses;
mod bench;
mod capability;
mod errors;
mod file_lengths;
mod founding;
mod habits;
mod listening;
mod nfs;
mod nfs_client;
mod nfs_memory;
mod nfs_resume;
mod nfs_untrusted;
mod output_files;
mod ping;
mod profile;
mod profile_sweep;
mod record;
mod record_stream;
mod recording;
mod report;
mod run;
mod run_udp;
mod running;
mod sandbox;
mod scratch;
mod send;
mod sniff;
mod stats;
mod tcp;
mod transferring;
mod trust;
mod udp;
mod watching;
mod weather;
