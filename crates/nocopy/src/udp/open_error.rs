//! Why a socket was not opened.

use std::io;
use std::net::{IpAddr, SocketAddr};

use super::Method;
use crate::port;

/// Why a socket was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The kernel refused to make it.
    #[error("no UDP socket ({0}); look at 'ulimit -n' and the sandbox this process runs in")]
    Socket(#[source] io::Error),
    /// The address does not belong to this host, or is in use.
    #[error("{address}: not bound ({source}); {}", bind_advice(.source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A setting was refused.
    #[error("{setting}: refused ({source}); leave it out, or use a kernel that knows it")]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The method asked for is not available.
    #[error("{method}: not available here ({source}); leave the choice to the policy")]
    Method {
        /// The method.
        method: Method,
        /// The reason.
        source: io::Error,
    },
    /// Not enough memory for buffers.
    #[error("no memory for buffers ({0}); ask for fewer")]
    Memory(#[source] io::Error),
    /// IPv6 packets need a UDP checksum (RFC 8200 section 8.1).
    #[error("{address}: IPv6 does not let the UDP checksum be omitted; compute it, or leave it to the card")]
    ChecksumOmitted {
        /// The socket's address.
        address: SocketAddr,
    },
    /// It is not a multicast group, or of the other IP version.
    #[error(
        "{group}: not a group that a socket on {address} can receive from; give multicast addresses of the same IP version"
    )]
    Group {
        /// The address that was to be a group.
        group: IpAddr,
        /// The socket's address.
        address: SocketAddr,
    },
    /// More groups than the filter of a port can distinguish.
    #[error(
        "{count} groups are too many for one socket over a port; it takes up to {count_max}, open several"
    )]
    Groups {
        /// How many were asked for.
        count: usize,
        /// The most there can be.
        count_max: usize,
    },
    /// The kernel refused to join a group.
    #[error("{group}: not joined ({source}); name the interface to join it on, and look at 'ip maddress'")]
    Join {
        /// The group.
        group: IpAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A socket over a port needs a specific address.
    #[error(
        "{address}: headers need an address of this host, and so does the filter; give that of the port's interface"
    )]
    Unspecified {
        /// The address asked for.
        address: SocketAddr,
    },
    /// The port's interface could not be looked up.
    #[error(
        "{interface}: not found ({source}); a socket needs a port on an interface of this network namespace"
    )]
    Interface {
        /// The port's interface.
        interface: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel does not answer route requests.
    #[error("no routes ({0}); see whether netlink is allowed to this process")]
    Routes(#[source] io::Error),
    /// The port could not be opened.
    #[error(transparent)]
    Port(#[from] port::OpenError),
    /// No descriptor is left to wait on.
    #[error("no descriptor to wait on ({0}); raise the limit of open files ('ulimit -n')")]
    Descriptor(#[source] io::Error),
}

fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program has it; see 'ss -ulnp', or take port 0",
        io::ErrorKind::AddrNotAvailable => "it is no address of this host; see 'ip address'",
        io::ErrorKind::PermissionDenied => "ports under 1024 need CAP_NET_BIND_SERVICE",
        _ => "see 'ip address'",
    }
}
