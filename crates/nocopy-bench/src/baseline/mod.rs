//! The baselines: what the kernel offers without nocopy, each tuned, since an untuned baseline proves
//! nothing.
//!
//! The packet and datagram files and the injector are the only ones of this crate with unsafe code: they call
//! system calls for which rustix has no safe function, and libpcap.

pub(crate) mod datagram_program;
pub(crate) mod datagram_receiver;
pub(crate) mod datagram_sender;
pub(crate) mod fi_pingpong;
pub(crate) mod injector;
pub(crate) mod nfs_client;
pub(crate) mod nfs_server;
mod nuttcp;
pub(crate) mod packet_ring;
pub(crate) mod packet_socket;
pub(crate) mod packet_tx_ring;
pub(crate) mod recorder;
pub(crate) mod server_program;
pub(crate) mod started;
pub(crate) mod stream_sender;
pub(crate) mod tcp;
pub(crate) mod udp;

/// Whether this program can load libraries, and libraries can be preloaded into it.
pub(crate) const LOADS_LIBRARIES: bool = !cfg!(target_feature = "crt-static");

/// Why rows are skipped that need that.
pub(crate) const LINKED_STATICALLY: &str = "this nocopy is statically linked, so it cannot load a library; for these rows use the Debian package, or build it.";
