//! Ports, captures, filters, statistics: on memory, and on veth pairs in a lab.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod accounts;
mod arrival_times;
mod capture;
mod errors;
#[cfg(feature = "tracing")]
mod events;
mod faults;
mod filter;
mod filter_control;
mod forked_queues;
mod forward;
mod grant;
mod inherited;
mod memory_port;
mod metadata;
mod multi_buffer;
mod packet_ring;
mod probe;
mod queues;
mod send_only;
mod statistics;
mod to_host;
#[cfg(feature = "tokio")]
mod tokio;
mod xdp_port;
