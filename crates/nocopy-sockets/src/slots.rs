//! A cache of facts about each descriptor. A descriptor may be closed and opened again without a call that
//! this library sees. So the kernel is asked for the socket's cookie when a burst begins, when it is handed
//! over, and before the program gets an error of the socket.

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering::Relaxed};

use nocopy_proto::run::sockets::{BatchingStopCause, UnbatchedCause};

use crate::record::{SocketRecord, Words};
use crate::run::RunDetector;
use crate::shared::is_vfork_child;
use crate::sys;

/// The number of descriptors that are tracked; sockets with higher numbers are skipped.
const SLOTS: usize = 1024;

/// The states of a descriptor. This one: not examined yet.
const UNKNOWN: u32 = 0;
const OTHER: u32 = 1;
const ACTIVE: u32 = 2;
/// A UDP socket that is skipped for a number of datagrams.
const SKIPPED: u32 = 3;

#[derive(Debug)]
pub(crate) struct DescriptorSlot {
    kind: AtomicU32,
    /// The number of datagrams for which it is skipped.
    remaining: AtomicU32,
    /// The error of a datagram whose call had reported success: the program's next call fails with it.
    pending_error: AtomicI32,
    /// The kernel's number of the socket.
    cookie: AtomicU64,
    record: AtomicPtr<Words>,
    /// Written before `kind` becomes `ACTIVE`, and read and written under the lock only.
    socket: UnsafeCell<MaybeUninit<UdpSocketState>>,
}

#[derive(Debug)]
pub(crate) struct UdpSocketState {
    pub(crate) run: RunDetector,
    pub(crate) is_v6: bool,
}

// SAFETY: `socket` is reached under the lock only; all else is atomic.
unsafe impl Sync for DescriptorSlot {}

static ALL: [DescriptorSlot; SLOTS] = [const {
    DescriptorSlot {
        kind: AtomicU32::new(UNKNOWN),
        remaining: AtomicU32::new(0),
        pending_error: AtomicI32::new(0),
        cookie: AtomicU64::new(0),
        record: AtomicPtr::new(std::ptr::null_mut()),
        socket: UnsafeCell::new(MaybeUninit::uninit()),
    }
}; SLOTS];

/// What can be decided about a send on a descriptor without the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SocketKind {
    /// Not a UDP socket, or a descriptor that is not tracked.
    Other,
    /// A UDP socket that is skipped.
    Skipped,
    /// A UDP socket that must be examined under the lock.
    Active,
}

#[inline]
pub(crate) fn slot_of(descriptor: i32) -> Option<&'static DescriptorSlot> {
    ALL.get(usize::try_from(descriptor).ok()?)
}

#[inline]
pub(crate) fn forget_descriptor(descriptor: i32) {
    if let Some(slot) = slot_of(descriptor) {
        slot.forget_socket();
    }
}

pub(crate) fn forget_descriptors(first: i32, last: i32) {
    let first = usize::try_from(first).unwrap_or(0).min(SLOTS);
    let end = usize::try_from(last).map_or(0, |last| last.saturating_add(1)).clamp(first, SLOTS);
    ALL[first..end].iter().for_each(DescriptorSlot::forget_socket);
}

impl DescriptorSlot {
    /// `None` if it is not known yet.
    #[inline]
    pub(crate) fn known_kind(&self) -> Option<SocketKind> {
        match self.kind.load(Relaxed) {
            UNKNOWN => None,
            OTHER => Some(SocketKind::Other),
            SKIPPED => Some(SocketKind::Skipped),
            _ => Some(SocketKind::Active),
        }
    }

    /// Whether the library ignores a datagram or other output; if so, it is counted.
    #[inline(always)]
    pub(crate) fn try_skip(&self) -> bool {
        let kind = self.kind.load(Relaxed);
        if kind == OTHER {
            return true;
        }
        let remaining = self.remaining.load(Relaxed);
        if kind != SKIPPED || remaining <= 1 || self.pending_error.load(Relaxed) != 0 {
            return false;
        }
        // Two threads may count two datagrams as one, which only lengthens the time alone.
        self.remaining.store(remaining - 1, Relaxed);
        self.socket_record().count_single_send(UnbatchedCause::Alone);
        true
    }

    fn forget_socket(&self) {
        // Nothing is written where nothing is known. An error may be: of a burst that was refused after its
        // socket was forgotten.
        match (self.kind.load(Relaxed), self.pending_error.load(Relaxed)) {
            (UNKNOWN, 0) => {}
            (OTHER, 0) => self.kind.store(UNKNOWN, Relaxed),
            // The parent still has its socket.
            _ if is_vfork_child() => {}
            _ => {
                self.pending_error.store(0, Relaxed);
                self.kind.store(UNKNOWN, Relaxed);
            }
        }
    }

    /// The cookie of the socket, if the descriptor still is this socket.
    pub(crate) fn verified_cookie(&self, descriptor: i32) -> Option<u64> {
        sys::socket_cookie(descriptor).filter(|cookie| *cookie == self.cookie.load(Relaxed))
    }

    /// Counts datagrams of a socket that is skipped. After a number of them, the socket is examined again.
    #[inline]
    pub(crate) fn count_skipped(&self, datagrams: u32) {
        let remaining = self.remaining.load(Relaxed);
        if remaining > datagrams {
            self.remaining.store(remaining - datagrams, Relaxed);
        } else if self.kind.load(Relaxed) == SKIPPED {
            self.kind.store(ACTIVE, Relaxed);
        }
    }

    #[inline]
    pub(crate) fn socket_record(&self) -> SocketRecord {
        SocketRecord::from_pointer(self.record.load(Relaxed))
    }

    /// The error that has not been reported to the program yet; returned once, and only if the descriptor
    /// still is the socket.
    #[inline]
    pub(crate) fn take_pending_error(&self, descriptor: i32) -> Option<i32> {
        if self.pending_error.load(Relaxed) == 0 {
            return None;
        }
        let errno = self.pending_error.swap(0, Relaxed);
        Some(errno).filter(|errno| *errno != 0 && self.verified_cookie(descriptor).is_some())
    }

    pub(crate) fn set_pending_error(&self, errno: i32) {
        let _ = self.pending_error.compare_exchange(0, errno, Relaxed, Relaxed);
    }

    pub(crate) fn skip_datagrams(&self, why: BatchingStopCause, datagrams: u32) {
        self.socket_record().record_skip(why);
        self.remaining.store(datagrams, Relaxed);
        self.kind.store(SKIPPED, Relaxed);
    }

    /// The socket, if it is a UDP socket.
    ///
    /// # Safety
    /// The caller holds the lock, and no other reference to it.
    #[expect(clippy::mut_from_ref, reason = "the lock is held")]
    pub(crate) unsafe fn udp_socket_state(&self) -> Option<&mut UdpSocketState> {
        match self.kind.load(Relaxed) {
            // SAFETY: written before the kind; the caller holds the lock.
            ACTIVE | SKIPPED => Some(unsafe { (*self.socket.get()).assume_init_mut() }),
            _ => None,
        }
    }

    /// Finds out what the descriptor is, if that is not known.
    ///
    /// # Safety
    /// As [`udp_socket_state`](Self::udp_socket_state).
    pub(crate) unsafe fn identify(&self, descriptor: i32, run: RunDetector) -> SocketKind {
        if self.kind.load(Relaxed) == UNKNOWN {
            // An error that is noted here is of a socket that was closed.
            self.pending_error.store(0, Relaxed);
            match query_udp_socket(descriptor) {
                Some((cookie, is_v6)) => {
                    let record = SocketRecord::claim_record(sys::process_id() as u32);
                    self.record.store(record.into_pointer(), Relaxed);
                    // SAFETY: the lock is held.
                    unsafe { (*self.socket.get()).write(UdpSocketState { run, is_v6 }) };
                    self.cookie.store(cookie, Relaxed);
                    self.kind.store(ACTIVE, Relaxed);
                }
                None => self.kind.store(OTHER, Relaxed),
            }
        }
        // Another thread may have closed it meanwhile.
        self.known_kind().unwrap_or(SocketKind::Other)
    }
}

/// The cookie of a UDP socket, and whether it is one of IPv6.
fn query_udp_socket(descriptor: i32) -> Option<(u64, bool)> {
    let number = |name| sys::socket_option::<i32>(descriptor, libc::SOL_SOCKET, name).ok();
    let domain = number(libc::SO_DOMAIN).filter(|domain| [libc::AF_INET, libc::AF_INET6].contains(domain))?;
    let is_udp =
        number(libc::SO_TYPE)? == libc::SOCK_DGRAM && number(libc::SO_PROTOCOL)? == libc::IPPROTO_UDP;
    Some((sys::socket_cookie(descriptor).filter(|_| is_udp)?, domain == libc::AF_INET6))
}

/// In the child of a fork: counts its sockets as those of another process, and leaves errors to the parent.
///
/// # Safety
/// No other thread runs in this process.
pub(crate) unsafe fn forget_all_in_child() {
    for slot in &ALL {
        slot.forget_socket();
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::AsRawFd;

    use super::*;
    use crate::burst::tests::lock_for_test;
    use crate::run::BurstTuning;

    /// A descriptor that no test opens.
    const UNUSED: i32 = SLOTS as i32 - 1;

    #[test]
    fn a_forgotten_socket_loses_its_pending_error() {
        let slot = slot_of(UNUSED).unwrap();
        slot.set_pending_error(libc::ECONNREFUSED);
        forget_descriptor(UNUSED);
        assert_eq!(slot.pending_error.load(Relaxed), 0);
    }

    #[test]
    fn a_new_socket_has_no_pending_error_of_the_previous() {
        let _test_lock = lock_for_test();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let slot = slot_of(socket.as_raw_fd()).unwrap();
        slot.forget_socket();
        slot.set_pending_error(libc::ECONNREFUSED);
        // SAFETY: the tests take turns, and there is no other reference.
        let kind = unsafe { slot.identify(socket.as_raw_fd(), RunDetector::new(BurstTuning::DEFAULT)) };
        assert_eq!((kind, slot.take_pending_error(socket.as_raw_fd())), (SocketKind::Active, None));
    }
    #[test]
    fn a_replaced_descriptor_has_no_pending_error() {
        let _test_lock = lock_for_test();
        let [socket, other] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (descriptor, slot) = (socket.as_raw_fd(), slot_of(socket.as_raw_fd()).unwrap());
        slot.forget_socket();
        // SAFETY: the tests take turns, and there is no other reference.
        unsafe { slot.identify(descriptor, RunDetector::new(BurstTuning::DEFAULT)) };
        slot.set_pending_error(libc::ECONNREFUSED);
        assert_eq!(slot.take_pending_error(descriptor), Some(libc::ECONNREFUSED));
        slot.set_pending_error(libc::ECONNREFUSED);
        // SAFETY: both are sockets of this test.
        unsafe { libc::dup2(other.as_raw_fd(), descriptor) };
        assert_eq!(slot.take_pending_error(descriptor), None);
        slot.forget_socket();
    }
}
