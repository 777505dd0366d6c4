//! A descriptor for waiting that does not expose its socket.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use nocopy_proto::errno::ErrorCause;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

use super::fork::Generation;

/// An epoll instance that watches one socket, and is readable while the socket is ready. Made at first use,
/// because every packet costs a little more from then on.
///
/// If the socket's own descriptor were exposed, even safe code could send on it: a `MSG_ZEROCOPY` call of the
/// program would be counted among ours, and free memory that the kernel reads.
#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: OnceLock<Box<EpollInstance>>,
    always: EventFlags,
    /// Whether a wait includes room to send. Only its owner writes it, between two waits: nothing else
    /// depends on it.
    wants_room: AtomicBool,
}

/// The instance of one process: a child's changes to its parent's instance would affect the parent, too.
#[derive(Debug)]
struct EpollInstance {
    epoll: OwnedFd,
    generation: Generation,
    /// The instance of a forked child.
    next: OnceLock<Box<Self>>,
}

impl Readiness {
    /// Readable while something can be received, and while the error queue has something.
    pub(crate) fn for_receiving() -> Self {
        Self::with_events(EventFlags::IN)
    }

    /// Readable while the error queue has something, and when there is room, if that [is
    /// wanted](Self::set_reports_room).
    pub(crate) fn for_sending() -> Self {
        Self::with_events(EventFlags::empty()) // errors are always told
    }

    fn with_events(always: EventFlags) -> Self {
        Self { epoll: OnceLock::new(), always, wants_room: AtomicBool::new(false) }
    }

    #[inline]
    pub(crate) fn reports_room(&self) -> bool {
        self.wants_room.load(Relaxed)
    }

    /// Sets whether the descriptor also reports room to send.
    #[inline]
    pub(crate) fn set_reports_room(&self, socket: BorrowedFd<'_>, wanted: bool) {
        if self.reports_room() == wanted {
            return;
        }
        self.wants_room.store(wanted, Relaxed);
        if let Some(epoll) = self.current_slot().get() {
            let epoll = &epoll.epoll;
            // It is watched since the instance was opened, so this cannot fail.
            let _ = epoll::modify(epoll, socket, EventData::new_u64(0), self.epoll_events());
        }
    }

    fn epoll_events(&self) -> EventFlags {
        let room = if self.reports_room() { EventFlags::OUT } else { EventFlags::empty() };
        self.always | room
    }

    fn current_slot(&self) -> &OnceLock<Box<EpollInstance>> {
        let mut slot = &self.epoll;
        while let Some(inherited) = slot.get().filter(|instance| instance.generation.is_outdated()) {
            slot = &inherited.next;
        }
        slot
    }

    /// Sets whether the descriptor is also readable while `other` is, until that is closed.
    pub(crate) fn watch_other(&self, other: BorrowedFd<'_>, wanted: bool) {
        if let Some(epoll) = self.current_slot().get() {
            // Fails only if there is nothing to change.
            let _ = match wanted {
                true => epoll::add(&epoll.epoll, other, EventData::new_u64(0), EventFlags::IN),
                false => epoll::delete(&epoll.epoll, other),
            };
        }
    }

    /// The descriptor, for [`AsFd`].
    /// Panics at the first call, if no descriptor is left.
    pub(crate) fn descriptor(&self, socket: BorrowedFd<'_>) -> BorrowedFd<'_> {
        self.descriptor_with_others(socket, [])
    }

    /// As [`descriptor`](Self::descriptor), readable also while one of `others` is.
    pub(crate) fn descriptor_with_others<'a>(
        &self,
        socket: BorrowedFd<'_>,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> BorrowedFd<'_> {
        let made = |error: &io::Error| {
            format!(
                "descriptor to wait on: not made{}; raise the limit of open files ('ulimit -n')",
                ErrorCause(error)
            )
        };
        self.open_epoll(socket, others).unwrap_or_else(|error| panic!("{}", made(&error)))
    }

    /// Makes the descriptor, as [`descriptor_with_others`](Self::descriptor_with_others).
    /// Errors: no descriptor is left.
    #[cfg(any(feature = "tcp", feature = "tokio"))]
    pub(crate) fn open<'a>(
        &self,
        socket: BorrowedFd<'_>,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<()> {
        self.open_epoll(socket, others).map(drop)
    }

    fn open_epoll<'a>(
        &self,
        socket: BorrowedFd<'_>,
        others: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<BorrowedFd<'_>> {
        let slot = self.current_slot();
        if slot.get().is_none() {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, socket, EventData::new_u64(0), self.epoll_events())?;
            for other in others {
                epoll::add(&epoll, other, EventData::new_u64(0), EventFlags::IN)?;
            }
            // Another thread may have made one meanwhile, which serves as well.
            let _ = slot.set(Box::new(EpollInstance {
                epoll,
                generation: Generation::current(),
                next: OnceLock::new(),
            }));
        }
        Ok(slot.get().expect("made above").epoll.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;
    use crate::sys::fork::tests::in_forked_child;
    use crate::sys::poll::{Wakeup, wait_readable};

    fn is_readable(readiness: &Readiness, socket: &UdpSocket) -> bool {
        wait_readable(readiness.descriptor(socket.as_fd()), std::time::Duration::ZERO).unwrap()
            == Wakeup::Ready
    }

    #[test]
    fn parent_and_child_have_separate_readiness() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap(); // with room to send in
        let readiness = Readiness::for_sending();
        assert!(!is_readable(&readiness, &socket));
        in_forked_child(|| {
            readiness.set_reports_room(socket.as_fd(), true);
            assert!(is_readable(&readiness, &socket));
        });
        assert!(!is_readable(&readiness, &socket), "the child alone wants room");
        readiness.set_reports_room(socket.as_fd(), true);
        in_forked_child(|| {
            readiness.set_reports_room(socket.as_fd(), false);
            assert!(!is_readable(&readiness, &socket));
            in_forked_child(|| assert!(!is_readable(&readiness, &socket)));
        });
        assert!(is_readable(&readiness, &socket), "the parent alone wants room");
    }
}
