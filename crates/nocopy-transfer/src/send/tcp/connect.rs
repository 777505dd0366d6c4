//! Connects to the receiver.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket, socket_with, sockopt};

use super::Error;
use nocopy_report::Interrupt;

/// Between two attempts while the port is closed.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// How long to wait for the other host before checking for an interrupt.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Whether the congestion control is allowed; tried before any connection is made.
pub(super) fn check_congestion(name: &str, to: SocketAddr) -> Result<(), Error> {
    let tried = socket(family(to), SocketType::STREAM, None)
        .and_then(|socket| sockopt::set_tcp_congestion(socket, name));
    tried.map_err(|errno| Error::Congestion { name: name.into(), source: errno.into() })
}

/// Connects as soon as the port is open, within the time limit. `None`: the user interrupted it.
pub(super) fn connect(
    to: SocketAddr,
    patience: Duration,
    congestion: Option<&str>,
    interrupt: &Interrupt,
) -> Result<Option<TcpStream>, Error> {
    let start = Instant::now();
    loop {
        let error = match attempt(to, congestion, patience.saturating_sub(start.elapsed()), interrupt) {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        match error.kind() {
            _ if interrupt.came() => return Ok(None),
            io::ErrorKind::ConnectionRefused if start.elapsed() + RETRY_INTERVAL < patience => {
                sleep(RETRY_INTERVAL)
            }
            io::ErrorKind::ConnectionRefused => return Err(Error::NobodyThere { to, source: error }),
            _ => return Err(Error::Connect { to, source: error }),
        }
    }
}

/// As [`TcpStream::connect_timeout`], but continues after a signal.
fn attempt(
    to: SocketAddr,
    congestion: Option<&str>,
    patience: Duration,
    interrupt: &Interrupt,
) -> io::Result<Option<TcpStream>> {
    let socket = socket_with(family(to), SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    if let Some(name) = congestion {
        sockopt::set_tcp_congestion(&socket, name)?; // which was tried
    }
    ioctl_fionbio(&socket, true)?;
    match rustix::net::connect(&socket, &to) {
        Ok(()) => {}
        Err(Errno::INPROGRESS) => {
            let start = Instant::now();
            while !is_decided(&socket)? {
                if interrupt.came() {
                    return Ok(None);
                }
                if start.elapsed() >= patience {
                    return Err(Errno::TIMEDOUT.into());
                }
            }
            sockopt::socket_error(&socket)?.map_err(io::Error::from)?;
        }
        Err(errno) => return Err(errno.into()),
    }
    ioctl_fionbio(&socket, false)?;
    Ok(Some(socket.into()))
}

/// Whether the attempt has ended, possibly after a short wait.
fn is_decided(socket: &OwnedFd) -> io::Result<bool> {
    Ok(poll(&mut [PollFd::new(socket, PollFlags::OUT)], Some(LOOK_INTERVAL))? == Wakeup::Ready)
}

fn family(to: SocketAddr) -> AddressFamily {
    if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}
