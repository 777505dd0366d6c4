//! The addresses of a peer, tried in turn where no connection of the kernel shows which one answers: for
//! datagrams and messages.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nocopy::message;
use nocopy_report::address::FailedAttempts;

use crate::Failure;

/// How long to wait for the refusal of a host that is near; refusals of others come later, or never.
const REFUSAL_WAIT: Duration = Duration::from_millis(20);

/// Tries each address until one succeeds. Each may take an equal share of the time that is left, which
/// `attempt` receives.
///
/// # Errors
/// All failed.
pub(crate) fn try_addresses_in_turn<T>(
    addresses: &[SocketAddr],
    within: Duration,
    attempt: impl FnMut(SocketAddr, Duration) -> io::Result<T>,
) -> Result<T, FailedAttempts> {
    let mut failed = FailedAttempts::default();
    try_each_address(addresses, within, &mut failed, attempt).ok_or(failed)
}

/// The same, with the errors of earlier rounds.
pub(crate) fn try_each_address<T>(
    addresses: &[SocketAddr],
    within: Duration,
    failed: &mut FailedAttempts,
    mut attempt: impl FnMut(SocketAddr, Duration) -> io::Result<T>,
) -> Option<T> {
    let start = Instant::now();
    for (number, to) in addresses.iter().enumerate() {
        let left = within.saturating_sub(start.elapsed());
        match attempt(*to, left / (addresses.len() - number) as u32) {
            Ok(done) => return Some(done),
            Err(error) => failed.record(*to, error),
        }
    }
    None
}

/// Whether no program has that UDP port: a host that is near says so at once. The datagram is empty, so that
/// a program there ignores it.
///
/// # Errors
/// The refusal, or another error of the network.
pub(crate) fn check_port_is_open(to: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind((wildcard_address(to), 0))?;
    socket.connect(to)?;
    socket.send(&[])?;
    socket.set_read_timeout(Some(REFUSAL_WAIT))?;
    match socket.recv(&mut [0]) {
        Err(error) if !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Err(error)
        }
        _ => Ok(()),
    }
}

/// The wildcard address of the other's family.
pub(crate) fn wildcard_address(to: SocketAddr) -> IpAddr {
    match to {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    }
}

/// The kernel's error behind a failure, for a list of attempts.
pub(crate) fn io_error_from_failure(failure: impl Into<Failure>) -> io::Error {
    let failure = failure.into();
    let source = std::error::Error::source(&failure).and_then(|source| source.downcast_ref::<io::Error>());
    match source.and_then(io::Error::raw_os_error) {
        Some(number) => io::Error::from_raw_os_error(number),
        None => io::Error::other(failure.to_string()),
    }
}

/// The same for a connection of messages.
pub(crate) fn io_error_from_message_error(error: message::Error) -> io::Error {
    match error {
        message::Error::ConnectTimedOut { .. } => io::ErrorKind::TimedOut.into(),
        message::Error::NotConnected { reason, .. } => io::Error::other(reason),
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_gets_a_share_of_the_timeout() {
        let addresses = [1, 2, 3].map(|host| SocketAddr::from(([127, 0, 0, host], 9)));
        let mut shares = Vec::new();
        let found = try_addresses_in_turn(&addresses, Duration::from_secs(3600), |to, share| {
            shares.push(share.as_secs_f64());
            if to == addresses[1] { Ok(to) } else { Err(io::ErrorKind::ConnectionRefused.into()) }
        });
        assert_eq!(found.unwrap(), addresses[1]);
        assert!(
            shares.len() == 2 && shares[0] <= 1200.0 && shares[0] > 900.0 && shares[1] > shares[0],
            "{shares:?}"
        );
    }

    #[test]
    fn checking_a_closed_udp_port_fails() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let open = socket.local_addr().unwrap();
        check_port_is_open(open).unwrap();
        let closed = SocketAddr::from(([127, 0, 0, 77], open.port()));
        // The kernel limits such refusals to some thousands a second.
        nocopy_lab::patience::wait_until("a refusal", || check_port_is_open(closed).is_err());
    }
}
