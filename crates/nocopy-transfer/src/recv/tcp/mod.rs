//! `nocopy recv tcp://…`: receives a stream from a host, by one connection or several, and reports what is
//! missing.

mod acceptor;
mod disk;
mod reader;
mod reception;
mod sink;
mod summary;
mod worker;

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;

use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::sockopt;

use crate::Failure;
use crate::arguments::RecvArguments;
use crate::endpoint::Endpoint;
use crate::failure::CommandError;
use nocopy_report::address::{FailedAttempts, bind_tcp, is_address_not_local};
use nocopy_report::{Interrupt, Outcome, capability, print};
use reception::TcpReceiveCommand;
use sink::SharedOutput;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{address}: no address to receive at{cause}; name an address of this host, or leave it out", cause = ErrorCause(.source))]
    Resolve { address: Endpoint, source: io::Error },
    #[error("{address}: cannot receive{cause}; {}", listen_advice(source), cause = ErrorCause(.source))]
    Listen { address: Endpoint, source: io::Error },
    #[error(
        "{from}: cannot prepare a connection{cause}; ask for less at a time with --receive, free memory, or raise 'ulimit -n'", cause = ErrorCause(.source))]
    Prepare { from: SocketAddr, source: io::Error },
    #[error("recv: cannot wait for connections{cause}; free memory, or raise 'ulimit -n'", cause = ErrorCause(.0))]
    Wait(#[source] io::Error),
    #[error("recv: cannot find out the address of its socket{cause}; start it where getsockname(2) is allowed", cause = ErrorCause(.0))]
    Address(#[source] io::Error),
}

impl CommandError for Error {}

/// Advice if it is not possible to listen at the address.
fn listen_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            "another program uses it; name another port, or port 0 for any that is free"
        }
        io::ErrorKind::AddrNotAvailable => "this host has no such address; 'ip address' lists them",
        io::ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE; name another",
        _ => "name another address or port",
    }
}

pub(super) fn run(arguments: &RecvArguments, interrupt: Interrupt) -> Result<Outcome, Failure> {
    // Bound before a file is overwritten, and listening after: no sender should connect to a receiver that
    // cannot write.
    let socket = BoundSocket::new(arguments)?;
    // With the user's own rights only.
    capability::drop_all_but(capability::NONE)?;
    let sink = arguments
        .output
        .as_deref()
        .map(|path| SharedOutput::open(path, arguments.create_options(), &interrupt))
        .transpose()?;
    let listener = socket.listen(arguments)?;
    let address = listener.local_addr().map_err(Error::Address)?;
    super::print_address(arguments, address);
    let (summary, failure) =
        TcpReceiveCommand::new(arguments, listener, sink.as_ref(), interrupt).run(address)?;
    print::print_summary(&summary, arguments.json, failure)
}

/// A socket that is bound and does not listen yet.
#[derive(Debug)]
struct BoundSocket(OwnedFd);

/// The length of the listener's queue: all streams of a run, and connections of others.
const BACKLOG: i32 = 256;

impl BoundSocket {
    /// At the first address of the host that this machine has.
    fn new(arguments: &RecvArguments) -> Result<Self, Error> {
        let own = arguments.address();
        let addresses = own.local_addrs();
        let addresses = addresses.map_err(|source| Error::Resolve { address: own.clone(), source })?;
        let mut failed = FailedAttempts::default();
        for address in addresses {
            match Self::bind_address(address, arguments.buffer) {
                Ok(bound) => return Ok(bound),
                Err(source) if is_address_not_local(&source) => failed.record(address, source),
                Err(source) => return Err(Error::Listen { address: own.clone(), source }),
            }
        }
        Err(Error::Listen { address: own.clone(), source: failed.into_error() })
    }

    fn bind_address(address: SocketAddr, buffer: Option<u64>) -> io::Result<Self> {
        let socket = bind_tcp(address)?;
        ioctl_fionbio(&socket, true)?;
        if let Some(bytes) = buffer {
            // Before connections arrive: they inherit it, and with it the window's scale.
            sockopt::set_socket_recv_buffer_size(&socket, bytes as usize)?;
        }
        Ok(Self(socket))
    }

    fn listen(self, arguments: &RecvArguments) -> Result<TcpListener, Error> {
        let listening = rustix::net::listen(&self.0, BACKLOG);
        let refused =
            |errno: Errno| Error::Listen { address: arguments.address().clone(), source: errno.into() };
        listening.map_err(refused)?;
        Ok(TcpListener::from(self.0))
    }
}
