//! Every system call the library makes, behind safe functions.
#![allow(unsafe_code)]

#[cfg(any(feature = "message", feature = "port"))]
pub(crate) mod alarm;
#[cfg(feature = "port")]
pub(crate) mod bpf;
#[cfg(feature = "port")]
pub(crate) mod capability;
#[cfg(any(feature = "port", feature = "tcp"))]
pub(crate) mod clock;
#[cfg(feature = "port")]
pub(crate) mod cpus;
#[cfg(feature = "port")]
pub(crate) mod descriptor;
#[cfg(feature = "port")]
pub(crate) mod diag;
#[cfg(feature = "port")]
pub(crate) mod disk;
#[cfg(feature = "port")]
pub(crate) mod driver_counters;
pub(crate) mod error_queue;
#[cfg(any(feature = "port", feature = "tcp"))]
pub(crate) mod ethtool;
pub(crate) mod file_system;
pub(crate) mod fork;
#[cfg(any(feature = "port", feature = "tcp"))]
mod generic;
#[cfg(feature = "port")]
pub(crate) mod interface;
#[cfg(feature = "port")]
pub(crate) mod io_uring;
pub(crate) mod kernel_handle;
pub(crate) mod memory;
mod message_calls;
#[cfg(feature = "port")]
pub(crate) mod namespace;
#[cfg(feature = "port")]
pub(crate) mod netdev;
pub(crate) mod netlink;
pub(crate) mod option;
#[cfg(feature = "port")]
pub(crate) mod packet;
pub(crate) mod page_cache;
#[cfg(feature = "port")]
pub(crate) mod pcap;
pub(crate) mod poll;
#[cfg(feature = "port")]
pub(crate) mod queue_counters;
#[cfg(feature = "port")]
pub(crate) mod queues;
pub(crate) mod readiness;
pub(crate) mod route;
#[cfg(feature = "tcp")]
pub(crate) mod sealed;
#[cfg(feature = "tcp")]
pub(crate) mod signals;
#[cfg(feature = "tcp")]
mod sigpipe;
#[cfg(any(feature = "port", feature = "tcp"))]
pub(crate) mod sockets;
#[cfg(feature = "tcp")]
pub(crate) mod splice;
#[cfg(feature = "tcp")]
pub(crate) mod stream;
#[cfg(feature = "tcp")]
pub(crate) mod tcp_receive;
#[cfg(feature = "port")]
pub(crate) mod tcpdump;
#[cfg(any(feature = "port", feature = "tokio"))]
pub(crate) mod timed_epoll;
pub(crate) mod udp_receive;
pub(crate) mod udp_send;
#[cfg_attr(not(feature = "uring"), path = "uring_send/absent.rs")]
pub(crate) mod uring_send;
#[cfg(feature = "tokio")]
pub(crate) mod watch;
#[cfg(feature = "port")]
pub(crate) mod xsk;
