//! Why a stream was not opened.

use std::io;
use std::net::SocketAddr;

use nocopy_proto::errno::ErrorCause;

use super::Method;
use crate::facts::io_error::convert_to_io_error;

/// Why a stream was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The name was not found, or has no address.
    #[error("name: not found ({0}); give a name that 'getent hosts' finds, or an address")]
    Lookup(#[source] io::Error),
    /// The kernel refused to make the socket, or refused a basic setting.
    #[error(
        "TCP socket: not made{cause}; raise 'ulimit -n', or run it where no sandbox forbids sockets", cause = ErrorCause(.0))]
    Socket(#[source] io::Error),
    /// No connection was accepted. The kind is `WouldBlock` if none is waiting and the listener is
    /// non-blocking.
    #[error("listener: no connection was accepted{cause}; try again when the listener is readable", cause = ErrorCause(.0))]
    Accept(#[source] io::Error),
    /// The address does not belong to this host, or is in use.
    #[error("{address}: not bound{cause}; {}", bind_advice(.source), cause = ErrorCause(.source))]
    Bind {
        /// The address.
        address: SocketAddr,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The connection was not established.
    #[error("{address}: not connected{cause}; {}", connect_advice(.source), cause = ErrorCause(.source))]
    Connect {
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
    /// The sending method is not available.
    #[error("method {method}: not available{cause}; leave the choice to measurement", cause = ErrorCause(.source))]
    Method {
        /// The method.
        method: Method,
        /// The reason.
        source: io::Error,
    },
    /// Chunks cannot have that length.
    #[error(
        "chunks of {bytes} bytes: refused; a buffer of the pool takes 1 to {buffer_bytes}; give such a length, or make a pool of larger buffers"
    )]
    ChunkLength {
        /// The length asked for.
        bytes: u32,
        /// The length of a buffer.
        buffer_bytes: usize,
    },
    /// Not enough memory for buffers.
    #[error("TCP socket: no memory for buffers{cause}; ask for fewer", cause = ErrorCause(.0))]
    Memory(#[source] io::Error),
}

convert_to_io_error!(OpenError {
    Self::Method { .. } => io::ErrorKind::Unsupported,
    _ => io::ErrorKind::InvalidInput,
});

fn bind_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => "another program uses it ('ss -tlnp' lists it); stop it, or take port 0",
        io::ErrorKind::AddrNotAvailable => "this host has no such address; 'ip address' lists them",
        io::ErrorKind::PermissionDenied => "ports under 1024 need CAP_NET_BIND_SERVICE",
        _ => "see 'ip address'",
    }
}

fn connect_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "no program listens there; start the receiver first",
        io::ErrorKind::TimedOut => "no answer; a firewall may drop it, or the host is down",
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            "there is no route; see 'ip route get'"
        }
        io::ErrorKind::AddrNotAvailable => "all local ports are in use; see 'ss -s'",
        _ => "see 'ip route get'",
    }
}
