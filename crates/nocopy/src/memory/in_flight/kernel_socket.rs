//! A kernel socket with one or several senders, and their shared state.
//!
//! The kernel numbers the `MSG_ZEROCOPY` calls of a socket from 0, for all its descriptors together, and reports completions in one error
//! queue, among the errors of the network. So one sender at a time [makes such calls](KernelSocket::claim), the next one continues its
//! numbers, and only this module reads the queue: a completion that another half reads is kept for that sender.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::sys::error_queue::{Done, Notice, Refusal, next_notice};
use crate::sys::fork::Generation;
use crate::sys::option;

const ERRORS_MAX: usize = 64;

/// The most entries read from the queue at a time, at under a microsecond each.
const READ_MAX: usize = 1024;

#[derive(Debug)]
pub(crate) struct KernelSocket {
    descriptor: Arc<OwnedFd>,
    /// The process that reads the queue. A forked child must not read it, because its parent would miss those entries.
    generation: Generation,
    queue: Mutex<Queue>,
    /// Network errors read so far, including discarded ones.
    errors_told: AtomicU64,
}

/// Entries of the error queue that were read, but not taken by a sender.
#[derive(Debug)]
struct Queue {
    numbering: Numbering,
    /// At most one for each call that the sender has in flight.
    done: VecDeque<Done>,
    errors: VecDeque<Refusal>,
}

#[derive(Debug, Clone, Copy)]
enum Numbering {
    /// No sender makes `MSG_ZEROCOPY` calls; the next call gets this number.
    Free(u64),
    /// One sender makes the calls, or waits for their completions.
    Taken,
    /// The number of the next call is unknown: calls were made by others, or given up.
    Lost,
}

impl KernelSocket {
    /// A socket without earlier `MSG_ZEROCOPY` calls and without other descriptors.
    pub(crate) fn new(descriptor: Arc<OwnedFd>) -> Arc<Self> {
        let queue = Queue { numbering: Numbering::Free(0), done: VecDeque::new(), errors: VecDeque::new() };
        let (queue, generation) = (Mutex::new(queue), Generation::current());
        Arc::new(Self { descriptor, generation, queue, errors_told: AtomicU64::new(0) })
    }

    /// Whether another half of this process uses the socket as well.
    pub(crate) fn is_shared(socket: &Arc<Self>) -> bool {
        Arc::strong_count(socket) > 1 || Arc::strong_count(&socket.descriptor) > 1
    }

    /// Makes the caller the only sender of `MSG_ZEROCOPY` calls, and returns the number of its first call. `None` while there is another
    /// sender, if the number is unknown, and in a forked child, because its parent may make further calls.
    pub(super) fn claim(&self) -> Option<u64> {
        let mut queue = self.queue()?;
        let Numbering::Free(next) = queue.numbering else { return None };
        queue.numbering = Numbering::Taken;
        Some(next)
    }

    /// Ends the role of the only sender, which makes no more calls and waits for no completion. `next` is the number of the next call, if
    /// known.
    pub(super) fn give_back(&self, next: Option<u64>) {
        let Some(mut queue) = self.queue() else { return };
        queue.numbering = next.map_or(Numbering::Lost, Numbering::Free);
        queue.done.clear();
    }

    /// The next completion, for the sender that made the calls; `None` if there is none now.
    pub(super) fn next_done(&self) -> Option<Done> {
        let mut queue = self.queue()?;
        loop {
            if let Some(done) = queue.done.pop_front() {
                return Some(done);
            }
            if !self.read_one(&mut queue) {
                return None;
            }
        }
    }

    /// Reads the error queue, and returns how many network errors there were.
    pub(crate) fn read(&self) -> u64 {
        let Some(mut queue) = self.queue() else { return 0 };
        let before = self.errors_told();
        // Limited, so that a flood of errors does not hold the lock that other halves wait for.
        (0..READ_MAX).take_while(|_| self.read_one(&mut queue)).for_each(drop);
        self.errors_told() - before
    }

    fn read_one(&self, queue: &mut Queue) -> bool {
        match next_notice(self.as_fd()) {
            Ok(Some(Notice::Done(done))) => {
                if let Numbering::Taken = queue.numbering {
                    queue.done.push_back(done);
                }
            }
            Ok(Some(Notice::Refused(refusal))) => {
                self.errors_told.fetch_add(1, Relaxed); // a count alone: it is of no other memory
                if queue.errors.len() == ERRORS_MAX {
                    queue.errors.pop_front();
                }
                queue.errors.push_back(refusal);
            }
            Ok(None) | Err(_) => return false,
        }
        true
    }

    /// Network errors read so far.
    #[inline]
    pub(crate) fn errors_told(&self) -> u64 {
        self.errors_told.load(Relaxed)
    }

    /// The latest network errors that were not taken yet, oldest first.
    pub(crate) fn take_errors(&self) -> VecDeque<Refusal> {
        self.queue().map(|mut queue| std::mem::take(&mut queue.errors)).unwrap_or_default()
    }

    /// Memory that the kernel keeps for the socket in addition to its data: options, and each `MSG_ZEROCOPY` call until its completion was
    /// read (`sock_omalloc` of net/core/sock.c). `None` if the kernel does not report it (Linux 4.12 does).
    pub(crate) fn option_memory_bytes(&self) -> Option<u32> {
        option::option_memory_bytes(self).ok()
    }

    /// `None` in a forked child, which must not lock: a thread of its parent may have held the lock at the fork.
    fn queue(&self) -> Option<MutexGuard<'_, Queue>> {
        // Poisoning does not matter: no code that may panic leaves it half changed.
        (!self.generation.is_past()).then(|| self.queue.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for KernelSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use nocopy_lab::patience::wait_until;

    use super::*;
    use crate::sys::fork::tests::in_forked_child;
    use crate::sys::udp_send::report_errors;

    /// For a half whose errors are never taken, while another half reads the queue.
    #[test]
    fn errors_that_are_not_taken_are_counted_and_the_last_are_kept() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        report_errors(&socket, false).unwrap();
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let read = KernelSocket::new(Arc::new(socket.try_clone().unwrap().into()));
        wait_until("many errors", || {
            let _ = socket.send_to(&[1], closed); // may fail by the error of one before
            read.read();
            read.errors_told() > 3 * ERRORS_MAX as u64
        });
        assert_eq!(read.take_errors().len(), ERRORS_MAX);
        assert!(read.take_errors().is_empty());
    }

    #[test]
    fn a_child_forked_while_the_queue_is_locked_leaves_it_alone() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let kernel = KernelSocket::new(Arc::new(socket.into()));
        let locked = kernel.queue();
        in_forked_child(|| {
            assert!(kernel.claim().is_none() && kernel.next_done().is_none());
            assert_eq!((kernel.read(), kernel.take_errors().len()), (0, 0));
            kernel.give_back(Some(0));
        });
        drop(locked);
        assert_eq!(kernel.claim(), Some(0));
    }

    #[test]
    fn completions_without_a_sender_are_not_kept() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let to = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let kernel = KernelSocket::new(Arc::new(socket.try_clone().unwrap().into()));
        crate::sys::option::allow_zero_copy(&socket).unwrap();
        let complete_one =
            || socket2::SockRef::from(&socket).send_to_with_flags(&[1; 10], &to.into(), libc::MSG_ZEROCOPY);
        complete_one().unwrap();
        kernel.read();
        let first = kernel.claim().unwrap();
        assert!(kernel.claim().is_none() && kernel.next_done().is_none());
        complete_one().unwrap();
        kernel.read();
        assert_eq!(kernel.next_done().map(|done| (done.first, done.last)), Some((1, 1)));
        kernel.give_back(Some(first + 2));
        assert_eq!(kernel.claim(), Some(2));
    }
}
