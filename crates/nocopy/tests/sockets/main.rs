//! UDP and TCP sockets with owned buffers, over the kernel's sockets and over ports.
#![allow(missing_docs)]

#[path = "../common/mod.rs"]
mod common;

mod ancillary;
mod dropped_futures;
mod ecn;
mod errors;
#[cfg(feature = "tracing")]
mod events;
mod futures;
mod numbering;
mod program_memory;
mod std_programs;
mod tcp_async_stream;
mod tcp_connect;
mod tcp_connections;
mod tcp_faults;
mod tcp_lifetime;
mod tcp_queue;
mod tcp_send;
mod tcp_tokio;
mod tokio_programs;
mod udp_by_port;
mod udp_faults;
mod udp_lifetime;
mod udp_model;
mod udp_over_port;
mod udp_placed;
mod udp_send;
mod udp_tokio;
