//! Finds the receiver at one of the target's addresses.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::Error;
use super::session::UdpSendSession;
use crate::Failure;
use crate::arguments::SendArguments;
use crate::attempts::{io_error_from_failure, try_each_address};
use crate::endpoint::Endpoint;
use nocopy_report::address::FailedAttempts;
use nocopy_report::{Interrupt, capability, print};

/// Between two rounds over addresses that refuse.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);

/// Whether an address of this host has no receiver, found out without a datagram that one would count.
fn check_local_receiver_exists(to: SocketAddr) -> io::Result<()> {
    match UdpSocket::bind(to) {
        Ok(_) => Err(io::Error::from_raw_os_error(libc::ECONNREFUSED)),
        Err(_) => Ok(()), // in use, or of another host
    }
}

/// A session with the first address where a receiver reports, and `false` if the user interrupted the search.
/// Of several addresses each has a share of the time, and after a refusal the next one follows at once; as
/// long as there is time, they are tried again. Receivers of raw datagrams do not report: it is then the
/// first address where there may be one.
pub(super) fn connect_session(
    (target, addresses): (&Endpoint, &[SocketAddr]),
    arguments: &SendArguments,
    interrupt: &Interrupt,
    open: impl Fn(SocketAddr, Duration) -> Result<UdpSendSession, Failure>,
) -> Result<(UdpSendSession, SocketAddr, bool), Failure> {
    let patience = arguments.host.connect_timeout_or_default();
    if let [to] = addresses {
        let mut session = open(*to, patience)?;
        capability::drop_all_but(capability::NONE)?;
        let is_connected = session.connect(interrupt, true)?;
        return Ok((session, *to, is_connected));
    }
    let (start, mut failed) = (Instant::now(), FailedAttempts::default());
    loop {
        let left = patience.saturating_sub(start.elapsed());
        let found = try_each_address(addresses, left, &mut failed, |to, share| {
            if arguments.host.raw {
                check_local_receiver_exists(to)?;
            }
            let mut session = open(to, share).map_err(io_error_from_failure)?;
            match session.connect(interrupt, false) {
                Ok(is_connected) => Ok((session, to, is_connected)),
                Err(Error::NoReceiver { is_refused: true, .. }) => {
                    Err(io::Error::from_raw_os_error(libc::ECONNREFUSED))
                }
                Err(Error::NoReceiver { .. }) => Err(io::ErrorKind::TimedOut.into()),
                Err(error) => Err(io_error_from_failure(error)),
            }
        });
        if let Some(found) = found {
            if arguments.host.raw {
                print::print_status(format_args!(
                    "nocopy: sending to {}, of several addresses of {target}; nothing answers with --raw, so others are not tried",
                    found.1
                ));
            }
            return Ok(found);
        }
        if arguments.host.raw || start.elapsed() + RETRY_INTERVAL >= patience {
            break;
        }
        sleep(RETRY_INTERVAL);
    }
    let (to, port, said) = (target.peer_name(addresses), target.port(), failed.into_error().to_string());
    Err(match arguments.host.raw {
        true => Error::NoRawReceiver { to, said }.into(),
        false => Error::NoReceiver { to, port, said, is_refused: false }.into(),
    })
}
