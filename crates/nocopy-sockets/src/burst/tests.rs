use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::destination::Destination;
use crate::run::{Run, RunStep, Tuning};
use nocopy_proto::run::sockets::Plain;

const BYTES: usize = 100;
const END: &[u8] = b"end";

/// One test at a time, because a process has one burst.
static TEST_LOCK: Mutex<()> = Mutex::new(());

pub(crate) fn lock_for_test() -> MutexGuard<'static, ()> {
    TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A burst, and the lock that code is holding which the test's calls of `hand_over` without the lock
/// interrupt.
pub(crate) struct Burst {
    sender: UdpSocket,
    receiver: UdpSocket,
    guard: Option<Guard>,
    _test_lock: MutexGuard<'static, ()>,
}

impl Burst {
    pub(crate) fn begin(datagrams: u8) -> Self {
        let test_lock = lock_for_test();
        let guard = SHARED.lock.try_acquire().expect("the tests take turns");
        let word = BurstWord::load();
        assert!(word.replace(word.over()));
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let descriptor = sender.as_raw_fd();
        slots::forget(descriptor);
        let slot = slots::of(descriptor).unwrap();
        // SAFETY: the lock is held, and no reference is alive.
        unsafe { slot.identify(descriptor, Run::new(Tuning { entry: 1, always: true })) };
        let shape = Shape { bytes: BYTES, destination: Destination::CONNECTED };
        let cookie = sys::cookie(descriptor).unwrap();
        set_head(&guard, BurstHead { descriptor, cookie, shape, room: 64, slot });
        let burst = Self { sender, receiver, guard: Some(guard), _test_lock: test_lock };
        (0..datagrams).for_each(|number| burst.add(number));
        burst
    }

    pub(crate) fn add(&self, number: u8) {
        let mut data = [number; BYTES];
        let part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: BYTES };
        assert!(add(self.guard(), BurstWord::load(), self.head(), &[part]));
    }

    pub(crate) fn guard(&self) -> &Guard {
        self.guard.as_ref().expect("it is unlocked once, at the end")
    }

    pub(crate) fn unlock(&mut self) {
        self.guard.take().into_iter().for_each(Guard::release);
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.sender.as_raw_fd()
    }

    pub(crate) fn slot(&self) -> &'static Slot {
        self.head().slot
    }

    fn head(&self) -> &BurstHead {
        head(self.guard())
    }

    /// Does what the holder of the lock does until it calls the kernel for `datagrams` datagrams.
    fn prepare_call(&self, datagrams: usize) -> (BurstWord, Handover) {
        let word = BurstWord::load();
        let payload = payload(word.first() * BYTES, datagrams * BYTES);
        // SAFETY: the lock is held.
        unsafe { (*MESSAGE.0.get()).set(&[], payload, BYTES as u16, datagrams) };
        SHARED.sending.store(word.bits(), Relaxed);
        (word, Handover { is_ours: true, message: MESSAGE.0.get() })
    }

    fn call(&self) -> Option<i32> {
        // SAFETY: it is complete, and stays.
        sys::error(unsafe { sys::send(self.descriptor(), MESSAGE.0.get()) })
    }

    /// Closes the receiver's port, and has a datagram refused there: the sender's next call returns the
    /// error.
    pub(crate) fn refuse_one(&mut self) {
        self.receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        self.sender.send(END).unwrap();
    }

    pub(crate) fn take_error(&self) -> Option<i32> {
        self.sender.take_error().unwrap().and_then(|error| error.raw_os_error())
    }

    /// The numbers of the datagrams that have arrived.
    pub(crate) fn arrived(&self) -> Vec<u8> {
        self.sender.send(END).unwrap();
        let mut data = [0; 2 * BYTES];
        let mut numbers = Vec::new();
        loop {
            let bytes = self.receiver.recv(&mut data).unwrap();
            if &data[..bytes] == END {
                return numbers;
            }
            assert_eq!(data[..bytes], [data[0]; BYTES]);
            numbers.push(data[0]);
        }
    }
}

impl Drop for Burst {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[test]
fn a_handler_ends_a_burst_that_the_kernel_accepted() {
    let burst = Burst::begin(3);
    let (word, interrupted) = burst.prepare_call(3);
    let errno = burst.call();
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    assert_eq!(BurstWord::load(), word.over(), "the interrupted code may never go on");
    assert!(matches!(interrupted.outcome(errno, word, burst.head()), CallResult::Overtaken));
    assert_eq!((overtaken(), burst.arrived()), (HandoverResult::All, vec![0, 1, 2]));
}

#[test]
fn a_handler_sends_the_remaining_single_datagrams() {
    let burst = Burst::begin(3);
    let (word, _) = burst.prepare_call(1);
    assert_eq!(burst.call(), None);
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    assert_eq!((BurstWord::load(), burst.arrived()), (word.over(), vec![0, 1, 2]));
}

#[test]
fn a_burst_without_remaining_datagrams_sends_nothing() {
    let burst = Burst::begin(1);
    let (word, _) = burst.prepare_call(1);
    assert_eq!(burst.call(), None);
    assert!(word.replace(word.from(1)));
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    assert_eq!((BurstWord::load(), burst.arrived()), (word.over(), vec![0]));
}

#[test]
fn the_error_of_an_invalidated_call_is_not_the_sockets() {
    let burst = Burst::begin(2);
    let (word, interrupted) = burst.prepare_call(2);
    let outcome = |errno| interrupted.outcome(errno, word, burst.head());
    assert!(matches!(outcome(Some(libc::EMSGSIZE)), CallResult::Refused(libc::EMSGSIZE)), "not invalidated");
    // SAFETY: this is the only thread that uses it.
    unsafe { Message::invalidate(MESSAGE.0.get()) };
    let errno = burst.call();
    assert_eq!(errno, Some(libc::EMSGSIZE));
    assert!(matches!(outcome(errno), CallResult::Overtaken));
    assert_eq!(
        (burst.slot().take_pending_error(burst.descriptor()), BurstWord::load()),
        (None, word),
        "the burst waits for room"
    );
}

#[test]
fn an_overtaken_call_keeps_only_errors_of_the_socket() {
    let burst = Burst::begin(2);
    let (word, interrupted) = burst.prepare_call(2);
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    for errno in ERRORS_OF_OVERTAKEN {
        assert!(matches!(interrupted.outcome(Some(errno), word, burst.head()), CallResult::Overtaken));
        assert_eq!(burst.slot().take_pending_error(burst.descriptor()), None, "errno {errno}");
    }
    assert!(matches!(
        interrupted.outcome(Some(libc::ECONNREFUSED), word, burst.head()),
        CallResult::Overtaken
    ));
    assert_eq!(burst.slot().take_pending_error(burst.descriptor()), Some(libc::ECONNREFUSED));
}

/// Makes the burst belong to another socket.
fn replace_cookie(burst: &Burst) {
    let BurstHead { descriptor, cookie, shape, room, slot } = *burst.head();
    set_head(burst.guard(), BurstHead { descriptor, cookie: !cookie, shape, room, slot });
}

#[test]
fn a_discarded_burst_forgets_its_socket() {
    let burst = Burst::begin(2);
    replace_cookie(&burst);
    assert_eq!(hand_over(Flush::Full, Some(burst.guard())), HandoverResult::All);
    assert_eq!(burst.slot().kind(), None, "it is looked at again");
    assert_eq!((BurstWord::load().count(), burst.arrived()), (0, vec![]));
}

#[test]
fn a_vfork_child_does_not_send_the_parents_burst() {
    let burst = Burst::begin(2);
    replace_cookie(&burst);
    let word = BurstWord::load();
    SHARED.process.store(sys::process() as u32 + 1, Relaxed);
    let result = hand_over(Flush::Close, Some(burst.guard()));
    SHARED.process.store(0, Relaxed);
    assert_eq!((result, BurstWord::load()), (HandoverResult::NotOwner, word));
    assert_eq!(burst.slot().kind(), Some(slots::SocketKind::Active));
}

#[test]
fn a_burst_too_long_for_the_path_is_sent_singly() {
    for errno in [libc::EMSGSIZE, libc::EINVAL, libc::EIO] {
        let burst = Burst::begin(3);
        let (word, ours) = burst.prepare_call(3);
        assert_eq!(ours.on_refused(errno, word, burst.head(), Flush::Full), HandoverResult::All);
        assert_eq!(
            (burst.slot().take_pending_error(burst.descriptor()), burst.arrived()),
            (None, vec![0, 1, 2]),
            "errno {errno}"
        );
        // SAFETY: the lock is held, and no other reference is alive.
        let run = unsafe { &mut burst.slot().socket().unwrap().run };
        run.record_send(burst.head().shape, Plain::NoRun, true, || 0);
        assert_eq!(
            run.offer(burst.head().shape, || 0),
            RunStep::SendSingly(Plain::NoRun),
            "no further bursts"
        );
    }
}
