//! Connects to the first address of a host that accepts (RFC 8305).

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::FailedAttempts;

/// How long an attempt may be undecided before the next address is tried beside it (RFC 8305, section 5).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// How often to ask whether to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

/// Connects to one of the addresses, within the time; they are tried in order, but the families in turn, and
/// the next one as soon as one has failed, or is undecided for 250 ms. Each is tried once, also if the time
/// is over before its turn. `prepare` sets options of each socket before. `None`: it was to stop.
///
/// # Errors
/// All addresses failed, each with its error.
pub fn connect(
    addresses: &[SocketAddr],
    within: Duration,
    prepare: impl Fn(&OwnedFd) -> io::Result<()>,
    is_stopped: impl Fn() -> bool,
) -> Result<Option<(TcpStream, SocketAddr)>, FailedAttempts> {
    let mut race = ConnectRace { pending: Vec::new(), failed: FailedAttempts::default() };
    let mut remaining = alternate_families(addresses).into_iter().peekable();
    let start = Instant::now();
    let mut next_at = start;
    loop {
        if is_stopped() {
            return Ok(None);
        }
        if (race.pending.is_empty() || Instant::now() >= next_at)
            && let Some(to) = remaining.next()
        {
            race.start_attempt(to, &prepare);
            next_at = Instant::now() + ATTEMPT_DELAY;
        }
        let is_last = remaining.peek().is_none();
        if race.pending.is_empty() {
            match is_last {
                true => return Err(race.failed),
                false => continue,
            }
        }
        let left = within.saturating_sub(start.elapsed());
        if left.is_zero() {
            // A process that was stopped for so long has not seen the answers that came.
            remaining.for_each(|to| race.start_attempt(to, &prepare));
            return race
                .first_connected(Duration::ZERO)
                .map(Some)
                .ok_or_else(|| race.into_attempts_after_timeout());
        }
        let until_next = next_at.saturating_duration_since(Instant::now());
        let wait = if is_last { left } else { left.min(until_next) };
        let pending = race.pending.len();
        if let Some(connected) = race.first_connected(wait.min(STOP_INTERVAL)) {
            return Ok(Some(connected));
        }
        if race.pending.len() < pending {
            next_at = Instant::now(); // one has failed
        }
    }
}

struct ConnectRace {
    pending: Vec<(OwnedFd, SocketAddr)>,
    failed: FailedAttempts,
}

impl ConnectRace {
    fn start_attempt(&mut self, to: SocketAddr, prepare: &impl Fn(&OwnedFd) -> io::Result<()>) {
        let open = || {
            let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = socket_with(family, SocketType::STREAM, flags, None)?;
            prepare(&socket)?;
            match rustix::net::connect(&socket, &to) {
                Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
                Err(errno) => Err(io::Error::from(errno)),
            }
        };
        match open() {
            Ok(socket) => self.pending.push((socket, to)),
            Err(error) => self.failed.record(to, error),
        }
    }

    /// The first that is connected, after waiting for at most that time until one is decided.
    fn first_connected(&mut self, wait: Duration) -> Option<(TcpStream, SocketAddr)> {
        let wait = Timespec { tv_sec: 0, tv_nsec: wait.subsec_nanos().into() }; // under a second
        let mut polled: Vec<_> =
            self.pending.iter().map(|(socket, _)| PollFd::new(socket, PollFlags::OUT)).collect();
        poll(&mut polled, Some(&wait)).ok()?; // EINTR: it is looked at again
        let ready: Vec<_> = polled.iter().map(|socket| !socket.revents().is_empty()).collect();
        let mut winner = None; // of several the one that was tried first
        for index in (0..ready.len()).rev().filter(|index| ready[*index]) {
            let (socket, to) = self.pending.remove(index);
            let connected = sockopt::socket_error(&socket).and_then(|result| result);
            match connected.and_then(|()| ioctl_fionbio(&socket, false)) {
                Ok(()) => winner = Some((socket.into(), to)),
                Err(errno) => self.failed.record(to, errno.into()),
            }
        }
        winner
    }

    fn into_attempts_after_timeout(mut self) -> FailedAttempts {
        self.pending.drain(..).for_each(|(_, to)| self.failed.record(to, Errno::TIMEDOUT.into()));
        self.failed
    }
}

/// The addresses in order, except that the families take turns (RFC 8305, section 4).
fn alternate_families(addresses: &[SocketAddr]) -> Vec<SocketAddr> {
    let is_ipv4_first = addresses.first().is_some_and(SocketAddr::is_ipv4);
    let (first, other): (Vec<SocketAddr>, Vec<SocketAddr>) =
        addresses.iter().partition(|address| address.is_ipv4() == is_ipv4_first);
    let (mut first, mut other) = (first.into_iter(), other.into_iter());
    let mut all = Vec::with_capacity(addresses.len());
    while all.len() < addresses.len() {
        all.extend(first.next());
        all.extend(other.next());
    }
    all
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    const TIMEOUT: Duration = Duration::from_secs(60);

    fn parse_addresses(all: &[&str]) -> Vec<SocketAddr> {
        all.iter().map(|address| address.parse().unwrap()).collect()
    }

    #[test]
    fn address_families_alternate() {
        let all = parse_addresses(&["[::1]:9", "[::2]:9", "[::3]:9", "1.0.0.1:9", "1.0.0.2:9"]);
        let turns = parse_addresses(&["[::1]:9", "1.0.0.1:9", "[::2]:9", "1.0.0.2:9", "[::3]:9"]);
        assert_eq!(alternate_families(&all), turns);
        assert_eq!(alternate_families(&all[..2]), all[..2]);
    }

    #[test]
    fn the_next_address_is_tried_after_a_refusal() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = listener.local_addr().unwrap();
        let closed = SocketAddr::from(([127, 0, 0, 2], open.port()));
        let connected = connect(&[closed, open], TIMEOUT, |_| Ok(()), || false).unwrap().unwrap();
        assert_eq!((connected.0.peer_addr().unwrap(), connected.1), (open, open));
    }

    #[test]
    fn the_next_address_is_tried_while_one_is_pending() {
        // A full queue: the kernel drops further requests to connect.
        let silent = crate::address::bind_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
        rustix::net::listen(&silent, 0).unwrap();
        let silent = TcpListener::from(silent);
        let at = silent.local_addr().unwrap();
        let _waiting = TcpStream::connect(at).unwrap();
        let open = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = open.local_addr().unwrap();
        let connected = connect(&[at, open], TIMEOUT, |_| Ok(()), || false).unwrap().unwrap();
        assert_eq!(connected.1, open);
        let failed = connect(&[at], Duration::from_millis(1), |_| Ok(()), || false).unwrap_err().into_error();
        assert_eq!(failed.kind(), io::ErrorKind::TimedOut);
    }

    #[test]
    fn each_address_is_tried_after_the_timeout() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let closed = [2, 3].map(|host| SocketAddr::from(([127, 0, 0, host], port)));
        let tried = std::cell::Cell::new(0);
        let count = |_: &OwnedFd| {
            tried.set(tried.get() + 1);
            Ok(())
        };
        assert!(connect(&closed, Duration::ZERO, count, || false).is_err());
        assert_eq!(tried.get(), 2);
    }

    #[test]
    fn all_addresses_are_in_the_error() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let closed = [2, 3].map(|host| SocketAddr::from(([127, 0, 0, host], port)));
        let error = connect(&closed, TIMEOUT, |_| Ok(()), || false).unwrap_err().to_string();
        assert!(closed.iter().all(|address| error.contains(&address.to_string())), "{error}");
        assert!(connect(&closed, TIMEOUT, |_| Ok(()), || true).unwrap().is_none());
    }
}
