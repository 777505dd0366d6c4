//! Errors of sending a stream.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use nocopy::tcp::{OpenError, PublishError};

use crate::Failure;
use crate::endpoint::Endpoint;
use crate::transfer::stream::Refusal;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{target}: no address to send to: {source}: check the name, or give an address")]
    Resolve { target: Endpoint, source: io::Error },
    #[error("pieces of {bytes} bytes are too long: give a --size up to {bytes_max}")]
    Size { bytes: u64, bytes_max: u64 },
    #[error("--streams goes with a file or a pattern only: leave it out: a pipe is one stream")]
    OneStream,
    #[error("--method sendfile goes with a file that is no pipe only: leave it out, or name such a --file")]
    NotAFile,
    #[error(
        "--method published goes with a pattern only: leave it out: the pages of a file are sent by reference without it, those of a pipe cannot be"
    )]
    NotAPattern,
    #[error("cannot draw a random number: {0}: start it where getrandom(2) is allowed")]
    Random(#[source] io::Error),
    #[error("cannot read {path}: {source}: name a file that exists and may be read", path = path.display())]
    Input { path: PathBuf, source: io::Error },
    #[error(
        "the congestion control '{name}' cannot be used: {source}: look into /proc/sys/net/ipv4/tcp_allowed_congestion_control"
    )]
    Congestion { name: String, source: io::Error },
    #[error(
        "{to}: no receiver: {source}: start 'nocopy recv tcp://:{port}' there, or give it longer with --connect-timeout",
        port = .to.port()
    )]
    NobodyThere { to: SocketAddr, source: io::Error },
    #[error(transparent)]
    Publish(PublishError),
    #[error("{to}: {source}")]
    Open { to: SocketAddr, source: OpenError },
    #[error("{to}: cannot connect: {source}: look at 'ip route get {ip}'", ip = .to.ip())]
    Connect { to: SocketAddr, source: io::Error },
    #[error(
        "{to}: the receiver went away before a stream was there: {source}: see that it runs, and what it says"
    )]
    Broken { to: SocketAddr, source: io::Error },
    #[error(
        "{to}: the program there {said}: start 'nocopy recv tcp://:{port}' there, or use --raw for another program",
        port = .to.port()
    )]
    NoAnswer { to: SocketAddr, said: &'static str },
    #[error("{to}: the receiver refuses: {}", words(*.why))]
    Refused { to: SocketAddr, why: Refusal },
    #[error("{to}: cannot prepare the connection: {source}: see what else this machine is short of")]
    Prepare { to: SocketAddr, source: io::Error },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Command(Box::new(error))
    }
}

fn words(why: Refusal) -> &'static str {
    match why {
        Refusal::Busy => "it serves another sender: try again when that is done, or start another receiver",
        Refusal::NoPlaces => {
            "it writes what comes, and several streams without an end have no order: give --count, or --streams 1"
        }
    }
}
