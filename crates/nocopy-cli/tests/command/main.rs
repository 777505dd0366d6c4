//! The command, as a program on real traffic.
#![allow(missing_docs, clippy::disallowed_macros)] // a test may print

mod addresses;
mod bench;
mod capability;
mod documents;
mod errors;
mod file_lengths;
mod foreign_options;
mod founding;
mod network_changes;
mod nfs;
mod nfs_client;
mod nfs_kinds;
mod nfs_memory;
mod nfs_resume;
mod nfs_tree;
mod nfs_untrusted;
mod output_files;
mod pair;
mod ping;
mod process_state;
mod profile;
mod profile_sweep;
mod record;
mod record_stream;
#[path = "../../../nocopy-transfer/src/send/replay/tests/recording.rs"]
mod recording;
mod replay;
mod report;
mod run;
mod run_layouts;
mod run_udp;
mod running;
mod sandbox;
mod scratch;
mod send;
mod signal_handlers;
mod sniff;
mod stats;
mod tcp;
mod transfer;
mod trust;
mod udp;
