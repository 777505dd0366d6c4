//! Errors of sending datagrams.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use nocopy::Reason;
use nocopy::udp::OpenError;

use crate::Failure;
use crate::endpoint::Endpoint;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{target}: no address to send to: {source}: check the name, or give an address")]
    Resolve { target: Endpoint, source: io::Error },
    #[error(
        "datagrams of {bytes} bytes cannot be sent: {why}: give a --size from {bytes_min} to {bytes_max}"
    )]
    Size { bytes: u64, why: &'static str, bytes_min: usize, bytes_max: usize },
    #[error("{to} is a multicast address: no one receiver would answer for all: use --raw")]
    Multicast { to: SocketAddr },
    #[error(
        "--interface goes with --method xdp-udp, xdp-copy or a multicast address only: leave it out: the host's routes say where to send by"
    )]
    NeedlessInterface,
    #[error(
        "--connect-timeout goes with datagrams that have nocopy's header only: leave it out, or --raw: without a header no receiver answers"
    )]
    NeedlessTimeout,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{to}: cannot connect: {source}: look at 'ip route get {ip}'", ip = .to.ip())]
    Connect { to: SocketAddr, source: io::Error },
    #[error("cannot draw a random number: {0}: start it where getrandom(2) is allowed")]
    Random(#[source] io::Error),
    #[error("cannot read {path}: {source}: name a file that exists and may be read", path = path.display())]
    Input { path: PathBuf, source: io::Error },
    #[error(
        "{to}: no receiver: {said}: start 'nocopy recv udp://:{port}' there (one serves one sender), give it longer with \
         --connect-timeout, or use --raw", port = .to.port()
    )]
    NobodyThere { to: SocketAddr, said: &'static str },
    #[error(
        "{to}: the receiver is gone (port unreachable): it has ended, or was killed: look at what it says"
    )]
    Gone { to: SocketAddr },
    #[error("{to}: no program receives there (port unreachable): start the receiver first")]
    NobodyReceives { to: SocketAddr },
    #[error(
        "{to}: the receiver has not answered for 10 s: what arrived of the last is not known: see that it runs, and what it says"
    )]
    Silent { to: SocketAddr },
    #[error("{0}")]
    Refused(#[source] io::Error),
    #[error("cannot send: {0}")]
    Rejected(Reason),
    #[error("cannot receive answers: {0}")]
    Receive(#[source] io::Error),
    #[error(
        "{interface}: a port on it would carry nothing: the kernel itself delivers what is for this host: leave out --method, or name \
         the interface that leads to another host"
    )]
    Loopback { interface: String },
    #[error("{to}: no way there by {interface}: {source}: look at 'ip route get {ip} oif {interface}'", ip = .to.ip())]
    NoWay { to: SocketAddr, interface: String, source: io::Error },
    #[error("{to}: cannot send: {reason}")]
    NotOverPort { to: SocketAddr, reason: Reason },
    #[error("{interface} took nothing for 2 s: its queue is full: look at 'ip -s link show {interface}'")]
    NoRoom { interface: String },
    /// An error of a port.
    #[error("{0}")]
    Port(#[source] io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Command(Box::new(error))
    }
}
