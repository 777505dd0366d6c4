//! Errors of sending a stream.

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use nocopy::tcp::{OpenError, PublishError};

use crate::endpoint::Endpoint;
use crate::failure::CommandError;
use crate::transfer::stream::Refusal;
use nocopy_report::input_advice;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{target}: no address to send to{cause}; check the name, or give an address", cause = ErrorCause(.source))]
    Resolve { target: Endpoint, source: io::Error },
    #[error("--size: pieces of {bytes} bytes are too long; {bytes_max} is the most; give less")]
    Size { bytes: u64, bytes_max: u64 },
    #[error(
        "--streams: cannot be used here; it needs a pattern, or a file whose length is known, and a pipe, a device or a file of the kernel is one stream; leave it out"
    )]
    OneStream,
    #[error(
        "--method sendfile: cannot be used here; it needs a --file whose length is known, so not a pipe, a device or a file of the kernel; leave it out, or name such a file"
    )]
    NotAFile,
    #[error(
        "--method published: cannot be used here; it needs a pattern (files are sent by reference without this method, and pipes cannot be); leave it out"
    )]
    NotAPattern,
    #[error("send: no random number{cause}; start it where getrandom(2) is allowed", cause = ErrorCause(.0))]
    Random(#[source] io::Error),
    #[error("{path}: cannot be read{cause}; {}", input_advice(source), path = path.display(), cause = ErrorCause(.source))]
    Input { path: PathBuf, source: io::Error },
    #[error(
        "--congestion '{name}': cannot be used{cause}; choose one of /proc/sys/net/ipv4/tcp_allowed_congestion_control", cause = ErrorCause(.source))]
    Congestion { name: String, source: io::Error },
    #[error(
        "{to}: no receiver{cause}; start 'nocopy recv tcp://:{port}' there, or wait longer with --connect-timeout",
        cause = ErrorCause(.source))]
    NobodyThere { to: String, port: u16, source: io::Error },
    #[error(transparent)]
    Publish(PublishError),
    #[error("{to}: no socket to send from; {source}")]
    Open { to: SocketAddr, source: OpenError },
    #[error("{to}: cannot connect{cause}; look at 'ip route get {ip}'", cause = ErrorCause(.source))]
    Connect { to: String, ip: String, source: io::Error },
    #[error(
        "{to}: the receiver closed the connection before a stream began{cause}; check that it runs, and what it prints", cause = ErrorCause(.source))]
    Broken { to: SocketAddr, source: io::Error },
    #[error(
        "{to}: no receiver; the program there {said}; start 'nocopy recv tcp://:{port}' there, or use --raw for another program",
        port = .to.port()
    )]
    NoAnswer { to: SocketAddr, said: &'static str },
    #[error("{to}: refused by the receiver; {}", refusal_text(*.why))]
    Refused { to: SocketAddr, why: Refusal },
    #[error("{to}: cannot prepare the connection{cause}; free memory, or raise 'ulimit -n'", cause = ErrorCause(.source))]
    Prepare { to: SocketAddr, source: io::Error },
}

impl CommandError for Error {}

fn refusal_text(why: Refusal) -> &'static str {
    match why {
        Refusal::Busy => "it serves another sender; try again when that is done, or start another receiver",
        Refusal::NoRanges => {
            "it writes the streams one after another, and several without an end have no order; give --count, or --streams 1"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The receiver would have to close a connection just when it was accepted.
    #[test]
    fn rare_errors_print_cause_and_remedy() {
        let (to, source) =
            (SocketAddr::from(([10, 0, 0, 1], 9)), io::Error::from_raw_os_error(libc::ECONNRESET));
        assert_eq!(
            Error::Broken { to, source }.to_string(),
            "10.0.0.1:9: the receiver closed the connection before a stream began (ECONNRESET); connection reset by peer; check that it runs, and what it prints"
        );
    }
}
