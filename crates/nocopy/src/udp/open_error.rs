//! Why a socket was not opened.

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::{IpAddr, SocketAddr};

use super::Method;
use crate::facts::io_error::convert_to_io_error;
use crate::port;

/// Why a socket was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name was not found, or has no address.
    #[error("name: not found ({0}); give a name that 'getent hosts' finds, or an address")]
    Lookup(#[source] io::Error),
    /// The kernel refused to make it.
    #[error("UDP socket: not made{cause}; raise 'ulimit -n', or run it where no sandbox forbids sockets", cause = ErrorCause(.0))]
    Socket(#[source] io::Error),
    /// The address does not belong to this host, or is in use.
    #[error("{address}: not bound{cause}; {}", bind_advice(.source), cause = ErrorCause(.source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A setting was refused.
    #[error("{setting}: refused{cause}; leave it out, or use a kernel that knows it", cause = ErrorCause(.source))]
    Setting {
        /// The setting.
        setting: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The requested method is not available.
    #[error("method {method}: not available{cause}; leave the choice to measurement", cause = ErrorCause(.source))]
    Method {
        /// The method.
        method: Method,
        /// The reason.
        source: io::Error,
    },
    /// Not enough memory for buffers.
    #[error("UDP socket: no memory for buffers{cause}; ask for fewer", cause = ErrorCause(.0))]
    Memory(#[source] io::Error),
    /// IPv6 packets need a UDP checksum (RFC 8200 section 8.1).
    #[error(
        "{address}: the UDP checksum cannot be omitted; IPv6 demands it; compute it, or leave it to the card"
    )]
    ChecksumOmitted {
        /// The socket's address.
        address: SocketAddr,
    },
    /// The address is not a multicast group, or of the other IP version.
    #[error(
        "{group}: cannot be joined; a socket on {address} receives only from multicast addresses of its IP version; give one of these"
    )]
    Group {
        /// The requested group.
        group: IpAddr,
        /// The socket's address.
        address: SocketAddr,
    },
    /// More groups than the filter of a port can distinguish.
    #[error("{count} groups: too many; a socket over a port takes up to {count_max}; open several sockets")]
    Groups {
        /// The requested number.
        count: usize,
        /// The most groups that are possible.
        count_max: usize,
    },
    /// The kernel refused to join a group.
    #[error("{group}: not joined{cause}; name the interface to join it on ('ip maddress' lists what is joined)", cause = ErrorCause(.source))]
    Join {
        /// The group.
        group: IpAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// A socket over a port needs a specific address.
    #[error(
        "{address}: not an address of this host; packet headers and the filter need one; give the address of the port's interface"
    )]
    Unspecified {
        /// The requested address.
        address: SocketAddr,
    },
    /// The port's interface could not be looked up.
    #[error(
        "{interface}: not found{cause}; use a port on an interface of this network namespace", cause = ErrorCause(.source))]
    Interface {
        /// The port's interface.
        interface: String,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel does not answer route requests.
    #[error("routes: cannot be read{cause}; run it where netlink sockets are allowed", cause = ErrorCause(.0))]
    Routes(#[source] io::Error),
    /// The port could not be opened.
    #[error(transparent)]
    Port(#[from] port::OpenError),
    /// A setting of [`Placing`](super::Placing) is impossible.
    #[error("{setting}: {value} is refused; {least} to {most} are possible; give such a number")]
    Placing {
        /// The setting.
        setting: &'static str,
        /// The number that was given, or follows from what was given.
        value: u64,
        /// The least that is possible.
        least: u64,
        /// The most that is possible, with the other settings.
        most: u64,
    },
    /// No descriptor is left to wait on.
    #[error("UDP socket: no descriptor to wait on{cause}; raise the limit of open files ('ulimit -n')", cause = ErrorCause(.0))]
    Descriptor(#[source] io::Error),
}

convert_to_io_error!(OpenError {
    Self::Method { .. } => io::ErrorKind::Unsupported,
    Self::Unspecified { .. } => io::ErrorKind::AddrNotAvailable,
    Self::Port(error) => error.io_kind(),
    _ => io::ErrorKind::InvalidInput,
});

/// The error of a setting that the kernel refused.
pub(super) fn setting_error(setting: &'static str) -> impl FnOnce(io::Error) -> OpenError {
    move |source| OpenError::Setting { setting, source }
}

fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program uses it ('ss -ulnp' lists it); stop it, or take port 0",
        io::ErrorKind::AddrNotAvailable => "this host has no such address; 'ip address' lists them",
        io::ErrorKind::PermissionDenied => "ports under 1024 need CAP_NET_BIND_SERVICE",
        _ => "see 'ip address'",
    }
}
