//! Connects to the receiver.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy_report::{Interrupt, address};
use rustix::net::{AddressFamily, SocketType, socket, sockopt};

use super::Error;
use crate::endpoint::Endpoint;

/// Between two attempts while the port is closed.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Whether the congestion control is allowed; tried before any connection is made.
pub(super) fn check_congestion(name: &str, to: SocketAddr) -> Result<(), Error> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let tried =
        socket(family, SocketType::STREAM, None).and_then(|socket| sockopt::set_tcp_congestion(socket, name));
    tried.map_err(|errno| Error::Congestion { name: name.into(), source: errno.into() })
}

/// Connects to one of the target's addresses as soon as its port is open, within the time limit. `None`: the
/// user interrupted it.
pub(super) fn connect(
    (target, addresses): (&Endpoint, &[SocketAddr]),
    patience: Duration,
    congestion: Option<&str>,
    interrupt: &Interrupt,
) -> Result<Option<(TcpStream, SocketAddr)>, Error> {
    let start = Instant::now();
    loop {
        let left = patience.saturating_sub(start.elapsed());
        let prepare = |socket: &_| match congestion {
            Some(name) => Ok(sockopt::set_tcp_congestion(socket, name)?), // which was tried
            None => Ok(()),
        };
        let source = match address::connect(addresses, left, prepare, || interrupt.was_interrupted()) {
            Ok(connected) => return Ok(connected),
            Err(failed) => failed.into_error(),
        };
        let (to, port) = (target.peer_name(addresses), target.port());
        match source.kind() {
            _ if interrupt.was_interrupted() => return Ok(None),
            io::ErrorKind::ConnectionRefused if start.elapsed() + RETRY_INTERVAL < patience => {
                sleep(RETRY_INTERVAL)
            }
            io::ErrorKind::ConnectionRefused => return Err(Error::NobodyThere { to, port, source }),
            _ => {
                let ip = addresses.iter().map(|address| address.ip().to_string());
                let ip = if addresses.len() == 1 { ip.collect() } else { "ADDRESS".into() };
                return Err(Error::Connect { to, ip, source });
            }
        }
    }
}
