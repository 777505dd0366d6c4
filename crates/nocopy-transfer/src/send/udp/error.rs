//! Errors of sending datagrams.

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use nocopy::Reason;
use nocopy::udp::OpenError;

use crate::endpoint::Endpoint;
use crate::failure::CommandError;
use nocopy_report::input_advice;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{target}: no address to send to{cause}; check the name, or give an address", cause = ErrorCause(.source))]
    Resolve { target: Endpoint, source: io::Error },
    #[error(
        "--size: datagrams of {bytes} bytes cannot be sent; {why}; give one from {bytes_min} to {bytes_max}"
    )]
    Size { bytes: u64, why: &'static str, bytes_min: usize, bytes_max: usize },
    #[error(
        "{to}: needs --raw; it is a multicast address, and no single receiver can answer for all; add --raw"
    )]
    Multicast { to: SocketAddr },
    #[error(
        "--interface: cannot be used here; it needs --method xdp-udp, xdp-copy or a multicast address, otherwise the host's routes decide; leave it out"
    )]
    NeedlessInterface,
    #[error(
        "--connect-timeout: cannot be used with --raw; a receiver answers only datagrams that have nocopy's header; leave out one of them"
    )]
    NeedlessTimeout,
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error("{to}: cannot connect{cause}; look at 'ip route get {ip}'", ip = .to.ip(), cause = ErrorCause(.source))]
    Connect { to: SocketAddr, source: io::Error },
    #[error("send: no random number{cause}; start it where getrandom(2) is allowed", cause = ErrorCause(.0))]
    Random(#[source] io::Error),
    #[error("{path}: cannot be read{cause}; {}", input_advice(source), path = path.display(), cause = ErrorCause(.source))]
    Input { path: PathBuf, source: io::Error },
    #[error(
        "{to}: no receiver; {said}; start 'nocopy recv udp://:{port}' there (each receives from one sender), wait longer with --connect-timeout, or use --raw"
    )]
    NoReceiver { to: String, port: u16, said: String, is_refused: bool },
    #[error(
        "{to}: the receiver is gone (port unreachable); it has ended, or was killed; look at what it printed"
    )]
    Gone { to: SocketAddr },
    #[error("{to}: no receiver; {said}; start the receiver first")]
    NoRawReceiver { to: String, said: String },
    #[error(
        "{to}: the receiver has not answered for 10 s; how much of the last data arrived is not known; check that it runs, and what it prints"
    )]
    Silent { to: SocketAddr },
    #[error("{0}")]
    Refused(#[source] io::Error),
    #[error("send: cannot send; {0}")]
    Rejected(Reason),
    #[error("send: cannot receive the receiver's answers{cause}; start it again", cause = ErrorCause(.0))]
    Receive(#[source] io::Error),
    #[error(
        "{interface}: cannot be used; the kernel delivers datagrams for this host itself, not through an interface; leave out --method, or name \
         the interface that leads to another host"
    )]
    Loopback { interface: String },
    #[error("{to}: no route there through {interface}{cause}; look at 'ip route get {ip} oif {interface}'", ip = .to.ip(), cause = ErrorCause(.source))]
    NoWay { to: SocketAddr, interface: String, source: io::Error },
    #[error("{to}: cannot be sent to; {reason}")]
    NotOverPort { to: SocketAddr, reason: Reason },
    #[error("{interface}: sent nothing for 2 s; its queue is full; look at 'ip -s link show {interface}'")]
    NoRoom { interface: String },
    #[error("{0}")]
    Port(#[source] io::Error),
}

impl CommandError for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of receivers that die and routes that vanish at a bad moment, and queues that stay full for seconds.
    #[test]
    fn rare_errors_print_cause_and_remedy() {
        let to = SocketAddr::from(([10, 0, 0, 1], 9));
        for (error, expected) in [
            (
                Error::Gone { to },
                "10.0.0.1:9: the receiver is gone (port unreachable); it has ended, or was killed; look at what it printed",
            ),
            (
                Error::Silent { to },
                "10.0.0.1:9: the receiver has not answered for 10 s; how much of the last data arrived is not known; check that it runs, and what it prints",
            ),
            (
                Error::NoRoom { interface: "eth0".into() },
                "eth0: sent nothing for 2 s; its queue is full; look at 'ip -s link show eth0'",
            ),
            (
                Error::NotOverPort {
                    to,
                    reason: Reason::System(io::Error::from_raw_os_error(libc::ENETUNREACH)),
                },
                "10.0.0.1:9: cannot be sent to; the kernel refused it (ENETUNREACH); network is unreachable; 'ip route get ADDRESS' shows whether there is a route",
            ),
            (
                Error::Rejected(Reason::Full),
                "send: cannot send; there is no room; flush, or receive what the peer has sent, and send again",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
