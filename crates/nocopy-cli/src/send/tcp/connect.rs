//! Getting through to the receiver.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType, socket, sockopt};

use super::Error;
use crate::interrupt::Interrupt;

/// Between two attempts while nobody listens yet.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Whether connections may use that congestion control; tried before anybody is disturbed.
pub(super) fn check_congestion(name: &str, to: SocketAddr) -> Result<(), Error> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let tried =
        socket(family, SocketType::STREAM, None).and_then(|socket| sockopt::set_tcp_congestion(socket, name));
    tried.map_err(|errno| Error::Congestion { name: name.into(), source: errno.into() })
}

/// Connects, as soon as somebody listens within the time. `None`: the user has had enough of that.
pub(super) fn connect(
    to: SocketAddr,
    patience: Duration,
    congestion: Option<&str>,
    interrupt: &Interrupt,
) -> Result<Option<TcpStream>, Error> {
    let start = Instant::now();
    loop {
        let left = patience.saturating_sub(start.elapsed()).max(Duration::from_millis(1));
        let error = match TcpStream::connect_timeout(&to, left) {
            Ok(stream) => {
                if let Some(name) = congestion {
                    sockopt::set_tcp_congestion(&stream, name)
                        .map_err(|errno| Error::Congestion { name: name.into(), source: errno.into() })?;
                }
                return Ok(Some(stream));
            }
            Err(error) => error,
        };
        if interrupt.came() {
            return Ok(None);
        }
        match error.kind() {
            io::ErrorKind::ConnectionRefused if start.elapsed() + RETRY_INTERVAL < patience => {
                sleep(RETRY_INTERVAL)
            }
            io::ErrorKind::ConnectionRefused => return Err(Error::NobodyThere { to, source: error }),
            _ => return Err(Error::Connect { to, source: error }),
        }
    }
}
