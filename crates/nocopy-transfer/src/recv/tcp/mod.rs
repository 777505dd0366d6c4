//! `nocopy recv tcp://…`: receives a stream from a host, by one connection or several, and reports what is missing.

mod acceptor;
mod disk;
mod reader;
mod reception;
mod sink;
mod summary;
mod worker;

use nocopy_proto::errno::Why;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use rustix::net::sockopt;

use crate::Failure;
use crate::arguments::RecvArguments;
use crate::endpoint::{Endpoint, Family};
use nocopy_report::{Interrupt, Outcome, capability, print};
use reception::Reception;
use sink::Sink;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{address}: no address to receive at{cause}; name an address of this host, or leave it out", cause = Why(.source))]
    Resolve { address: Endpoint, source: io::Error },
    #[error("tcp://{address}: cannot receive{cause}; {}", advice(source), cause = Why(.source))]
    Listen { address: SocketAddr, source: io::Error },
    #[error(
        "{from}: cannot prepare a connection{cause}; ask for less at a time with --receive, free memory, or raise 'ulimit -n'", cause = Why(.source))]
    Prepare { from: SocketAddr, source: io::Error },
    #[error("recv: cannot wait for connections{cause}; free memory, or raise 'ulimit -n'", cause = Why(.0))]
    Wait(#[source] io::Error),
    #[error("recv: cannot find out the address of its socket{cause}; start it where getsockname(2) is allowed", cause = Why(.0))]
    Address(#[source] io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Command(Box::new(error))
    }
}

/// Advice if it is not possible to listen at the address.
fn advice(error: &io::Error) -> &'static str {
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
    let address = address(arguments)?;
    // Bound before a file is overwritten, and listening after: no sender should connect to a receiver that cannot write.
    let socket = Bound::new(address, arguments)?;
    // With the user's own rights only.
    capability::drop_all_but(capability::NONE)?;
    let sink = arguments.output.as_deref().map(|path| Sink::open(path, arguments.making())).transpose()?;
    let listener = socket.receive_questions()?;
    let to_stdout = arguments.output.as_deref().is_some_and(|path| path.as_os_str() == "-");
    let address = listener.local_addr().map_err(Error::Address)?;
    super::announce(arguments, address);
    let (summary, failure) = Reception::new(arguments, listener, sink.as_ref(), interrupt).run(address)?;
    print::finish(&summary, arguments.json, to_stdout, failure)
}

/// The address to receive at; without a host, all addresses of both families.
fn address(arguments: &RecvArguments) -> Result<SocketAddr, Error> {
    let own = arguments.address();
    match own.host() {
        Some(_) => own.resolve(Family::Any).map_err(|source| Error::Resolve { address: own.clone(), source }),
        None => Ok((IpAddr::V6(Ipv6Addr::UNSPECIFIED), own.port()).into()),
    }
}

/// A socket that is bound and does not listen yet.
#[derive(Debug)]
struct Bound {
    socket: std::os::fd::OwnedFd,
    address: SocketAddr,
}

/// The length of the listener's queue: all streams of a run, and connections of others.
const BACKLOG: i32 = 256;

impl Bound {
    fn new(address: SocketAddr, arguments: &RecvArguments) -> Result<Self, Error> {
        match Self::at(address, arguments.buffer) {
            // All addresses of the only available family.
            Err(source)
                if source.raw_os_error() == Some(libc::EAFNOSUPPORT)
                    && arguments.address().host().is_none() =>
            {
                let address = (Ipv4Addr::UNSPECIFIED, address.port()).into();
                Self::at(address, arguments.buffer).map_err(|source| Error::Listen { address, source })
            }
            bound => bound.map_err(|source| Error::Listen { address, source }),
        }
    }

    fn at(address: SocketAddr, buffer: Option<u64>) -> io::Result<Self> {
        use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with};
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::STREAM, flags, None)?;
        // A port whose last connections are in TIME_WAIT can be used.
        sockopt::set_socket_reuseaddr(&socket, true)?;
        if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        if let Some(bytes) = buffer {
            // Before connections arrive: they inherit it, and with it the window's scale.
            sockopt::set_socket_recv_buffer_size(&socket, bytes as usize)?;
        }
        bind(&socket, &address)?;
        Ok(Self { socket, address })
    }

    fn receive_questions(self) -> Result<TcpListener, Error> {
        let Self { socket, address } = self;
        rustix::net::listen(&socket, BACKLOG)
            .map_err(|errno| Error::Listen { address, source: errno.into() })?;
        Ok(TcpListener::from(socket))
    }
}
