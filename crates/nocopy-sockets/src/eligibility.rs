//! Checks by a socket's options and the queueing disciplines whether its datagrams may be sent as bursts.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use nocopy_proto::discipline::{DumpEntry, dump_entries, dump_request};
use nocopy_proto::run::sockets::BatchingStopCause;

use crate::{isolated_thread, sys};

/// The pacing rate that means no pacing.
const UNLIMITED: u64 = u64::MAX;

/// How long the list of disciplines stays valid.
const LIST_VALID_NS: u64 = 1_000_000_000;

/// The most answers of the list that are read.
const ANSWERS_MAX: usize = 256;

/// Checks a socket. `scratch` is memory for the kernel's answers.
pub(crate) fn check_eligibility(
    descriptor: i32,
    is_v6: bool,
    now_ns: u64,
    scratch: &mut [u8],
) -> Result<(), BatchingStopCause> {
    check_options(descriptor, is_v6)?;
    check_disciplines(now_ns, scratch)
}

/// Refuses sockets with options that give a datagram properties other than its bytes.
fn check_options(descriptor: i32, is_v6: bool) -> Result<(), BatchingStopCause> {
    let unknown = |_| BatchingStopCause::UnknownOptions;
    let refuse_if_set = |level, name, why| match sys::socket_option::<i32>(descriptor, level, name) {
        Ok(0) => Ok(()),
        Ok(_) => Err(why),
        Err(_) => Err(BatchingStopCause::UnknownOptions),
    };
    refuse_if_set(libc::SOL_SOCKET, libc::SO_TIMESTAMPING, BatchingStopCause::Timestamps)?;
    let transmit_time =
        sys::socket_option::<u64>(descriptor, libc::SOL_SOCKET, libc::SO_TXTIME).map_err(unknown)?;
    if transmit_time != 0 {
        return Err(BatchingStopCause::TransmitTime);
    }
    let pace =
        sys::socket_option::<u64>(descriptor, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE).map_err(unknown)?;
    if pace != UNLIMITED {
        return Err(BatchingStopCause::Pacing);
    }
    let send_timeout = sys::socket_option::<libc::timeval>(descriptor, libc::SOL_SOCKET, libc::SO_SNDTIMEO);
    // A wait for the room of a burst does not end by it.
    if send_timeout.map(|time| (time.tv_sec, time.tv_usec)).map_err(unknown)? != (0, 0) {
        return Err(BatchingStopCause::SendTimeout);
    }
    refuse_if_set(libc::SOL_SOCKET, libc::SO_NO_CHECK, BatchingStopCause::NoChecksum)?;
    refuse_if_set(libc::SOL_UDP, libc::UDP_NO_CHECK6_TX, BatchingStopCause::NoChecksum)?;
    refuse_if_set(libc::SOL_UDP, libc::UDP_CORK, BatchingStopCause::Cork)?;
    refuse_if_set(libc::SOL_UDP, libc::UDP_SEGMENT, BatchingStopCause::OwnBursts)?;
    refuse_if_set(libc::SOL_UDP, libc::UDP_ENCAP, BatchingStopCause::Encapsulation)?;
    refuse_if_set(libc::SOL_IP, libc::IP_RECVERR, BatchingStopCause::ErrorQueue)?;
    if is_v6 {
        refuse_if_set(libc::SOL_IPV6, libc::IPV6_RECVERR, BatchingStopCause::ErrorQueue)?;
    }
    Ok(())
}

/// The last check of the disciplines: its time and result.
static LIST_READ_AT: AtomicU64 = AtomicU64::new(0);
static LIST_RESULT: AtomicU32 = AtomicU32::new(HARMLESS);
const HARMLESS: u32 = 0;
const MEDDLE: u32 = 1;
const UNKNOWN: u32 = 2;

/// Whether the disciplines of all interfaces only queue. All are checked, because other interfaces may lie
/// below the route's (a bond, a VLAN, a tunnel), and marks and rules may change a datagram's route.
fn check_disciplines(now_ns: u64, scratch: &mut [u8]) -> Result<(), BatchingStopCause> {
    // Relaxed: used under the lock, except by `forget_disciplines`. If that is overlooked, the list is used
    // for `LIST_VALID_NS` at most.
    let at = LIST_READ_AT.load(Relaxed);
    if at == 0 || now_ns.saturating_sub(at) >= LIST_VALID_NS {
        LIST_RESULT.store(
            isolated_thread::run_in_isolated_thread(query_disciplines, scratch).unwrap_or(UNKNOWN),
            Relaxed,
        );
        LIST_READ_AT.store(now_ns.max(1), Relaxed);
    }
    match LIST_RESULT.load(Relaxed) {
        HARMLESS => Ok(()),
        MEDDLE => Err(BatchingStopCause::Discipline),
        _ => Err(BatchingStopCause::UnknownDiscipline),
    }
}

/// Forgets the list of disciplines: the network namespace may have changed.
pub(crate) fn forget_disciplines() {
    LIST_READ_AT.store(0, Relaxed);
}

fn query_disciplines(scratch: &mut [u8]) -> u32 {
    let socket = sys::open_netlink_socket();
    if sys::result_errno(socket).is_some() {
        return UNKNOWN;
    }
    let found = read_discipline_list(socket as i32, scratch);
    sys::close(socket as i32);
    found
}

fn read_discipline_list(socket: i32, scratch: &mut [u8]) -> u32 {
    if !sys::write_all(socket, &dump_request()) {
        return UNKNOWN;
    }
    for _ in 0..ANSWERS_MAX {
        // The kernel answers in the call that asks, and each time that it is read on.
        let bytes = sys::receive(socket, scratch);
        let Some(answer) = usize::try_from(bytes).ok().and_then(|bytes| scratch.get(..bytes)) else {
            return UNKNOWN;
        };
        for entry in dump_entries(answer) {
            match entry {
                DumpEntry::Meddles { .. } => return MEDDLE,
                DumpEntry::Harmless => {}
                DumpEntry::Done => return HARMLESS,
                DumpEntry::Refused => return UNKNOWN,
            }
        }
    }
    UNKNOWN
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;

    fn set_option(socket: &UdpSocket, level: i32, name: i32, value: i32) {
        let (value, bytes) = ((&raw const value).cast(), size_of::<i32>() as u32);
        // SAFETY: the value is as long as said.
        let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, bytes) };
        assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    }

    #[test]
    fn options_that_forbid_bursts_are_detected() {
        let open = || UdpSocket::bind("127.0.0.1:0").unwrap();
        let limited = open();
        limited.set_write_timeout(Some(std::time::Duration::from_secs(1))).unwrap();
        assert_eq!(check_options(limited.as_raw_fd(), false), Err(BatchingStopCause::SendTimeout));
        assert_eq!(check_options(open().as_raw_fd(), false), Ok(()));
        for (level, name, value, why) in [
            (libc::SOL_SOCKET, libc::SO_TIMESTAMPING, 1 << 4, BatchingStopCause::Timestamps),
            (libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, 1_000_000, BatchingStopCause::Pacing),
            (libc::SOL_SOCKET, libc::SO_NO_CHECK, 1, BatchingStopCause::NoChecksum),
            (libc::SOL_UDP, libc::UDP_CORK, 1, BatchingStopCause::Cork),
            (libc::SOL_UDP, libc::UDP_SEGMENT, 1000, BatchingStopCause::OwnBursts),
            (libc::SOL_IP, libc::IP_RECVERR, 1, BatchingStopCause::ErrorQueue),
        ] {
            let socket = open();
            set_option(&socket, level, name, value);
            assert_eq!(check_options(socket.as_raw_fd(), false), Err(why));
        }
        assert_eq!(check_options(-1, false), Err(BatchingStopCause::UnknownOptions));
        if !nocopy_lab::ipv6_sockets_or_skip() {
            return;
        }
        let six = UdpSocket::bind("[::]:0").unwrap();
        assert_eq!(check_options(six.as_raw_fd(), true), Ok(()));
        set_option(&six, libc::SOL_IPV6, libc::IPV6_RECVERR, 1);
        assert_eq!(check_options(six.as_raw_fd(), true), Err(BatchingStopCause::ErrorQueue));
    }

    #[test]
    fn the_list_of_queueing_disciplines_can_be_read() {
        let mut scratch = vec![0; 64 << 10];
        assert_ne!(query_disciplines(&mut scratch), UNKNOWN);
        assert_eq!(query_disciplines(&mut []), UNKNOWN, "no room for the answer");
    }
}
