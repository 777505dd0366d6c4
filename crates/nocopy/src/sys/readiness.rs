//! A descriptor to wait on that gives nobody the socket behind it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An epoll instance that watches one socket, and is readable while that is ready. Made when it is first asked for, since every packet
/// costs a little more from then on.
///
/// A descriptor of the socket itself could be sent on, also by safe code: a `MSG_ZEROCOPY` call of the program would be counted among
/// ours, and free memory that the kernel reads.
#[derive(Debug)]
pub(crate) struct Readiness {
    epoll: OnceLock<OwnedFd>,
    always: EventFlags,
    /// Whether room to send in is waited for. Only its owner writes it, between two waits: nothing else depends on it.
    wants_room: AtomicBool,
}

impl Readiness {
    /// Readable while something can be received, and while the error queue has something.
    pub(crate) fn to_receive() -> Self {
        Self::with(EventFlags::IN)
    }

    /// Readable while the error queue has something, and when there is room, if that [is wanted](Self::want_room).
    pub(crate) fn to_send() -> Self {
        Self::with(EventFlags::empty()) // errors are always told
    }

    fn with(always: EventFlags) -> Self {
        Self { epoll: OnceLock::new(), always, wants_room: AtomicBool::new(false) }
    }

    /// Has the descriptor tell of room to send in, or not.
    #[inline]
    pub(crate) fn want_room(&self, socket: BorrowedFd<'_>, wanted: bool) {
        if self.wants_room.load(Relaxed) == wanted {
            return;
        }
        self.wants_room.store(wanted, Relaxed);
        if let Some(epoll) = self.epoll.get() {
            // It is watched since the instance was made.
            let _ = epoll::modify(epoll, socket, EventData::new_u64(0), self.events());
        }
    }

    fn events(&self) -> EventFlags {
        let room = if self.wants_room.load(Relaxed) { EventFlags::OUT } else { EventFlags::empty() };
        self.always | room
    }

    /// The descriptor, for [`AsFd`].
    ///
    /// # Panics
    /// When it is first asked for, if no descriptor is left.
    pub(crate) fn descriptor(&self, socket: BorrowedFd<'_>) -> BorrowedFd<'_> {
        let made = |error: &io::Error| {
            format!("make a descriptor to wait on: {error}; raise the limit of open files ('ulimit -n')")
        };
        self.made(socket).unwrap_or_else(|error| panic!("{}", made(&error)))
    }

    fn made(&self, socket: BorrowedFd<'_>) -> io::Result<BorrowedFd<'_>> {
        if self.epoll.get().is_none() {
            let epoll = epoll::create(CreateFlags::CLOEXEC)?;
            epoll::add(&epoll, socket, EventData::new_u64(0), self.events())?;
            // Another thread may have made one meanwhile, which is as good.
            let _ = self.epoll.set(epoll);
        }
        Ok(self.epoll.get().expect("made above").as_fd())
    }
}
