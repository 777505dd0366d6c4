//! Every system call the library makes, behind safe functions.
#![allow(unsafe_code)]

pub(crate) mod alarm;
pub(crate) mod bpf;
pub(crate) mod capability;
pub(crate) mod clock;
pub(crate) mod cpus;
pub(crate) mod descriptor;
pub(crate) mod diag;
pub(crate) mod disk;
pub(crate) mod driver_counters;
pub(crate) mod error_queue;
pub(crate) mod ethtool;
pub(crate) mod file_system;
pub(crate) mod fork;
mod generic;
pub(crate) mod interface;
pub(crate) mod io_uring;
pub(crate) mod kernel_handle;
pub(crate) mod memory;
pub(crate) mod namespace;
pub(crate) mod netdev;
pub(crate) mod option;
pub(crate) mod packet;
pub(crate) mod page_cache;
pub(crate) mod pcap;
pub(crate) mod poll;
pub(crate) mod queue_counters;
pub(crate) mod queues;
pub(crate) mod readiness;
pub(crate) mod route;
pub(crate) mod sealed;
pub(crate) mod signals;
mod sigpipe;
pub(crate) mod sockets;
pub(crate) mod splice;
pub(crate) mod stream;
pub(crate) mod tcp_receive;
pub(crate) mod timed_epoll;
pub(crate) mod udp_receive;
pub(crate) mod udp_send;
pub(crate) mod uring_send;
#[cfg(feature = "tokio")]
pub(crate) mod watch;
pub(crate) mod xsk;
