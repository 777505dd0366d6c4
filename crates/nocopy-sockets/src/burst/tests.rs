use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::*;
use crate::destination::Destination;
use crate::run::{BurstTuning, RunDecision, RunDetector};
use nocopy_proto::run::sockets::UnbatchedCause;

const BYTES: usize = 100;
const END: &[u8] = b"end";

/// One test at a time, because a process has one burst.
static TEST_LOCK: Mutex<()> = Mutex::new(());

pub(crate) fn lock_for_test() -> MutexGuard<'static, ()> {
    TEST_LOCK.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A burst, and the lock that code is holding which the test's calls of `hand_over` without the lock
/// interrupt.
pub(crate) struct TestBurst {
    sender: UdpSocket,
    receiver: UdpSocket,
    guard: Option<BurstLockGuard>,
    _test_lock: MutexGuard<'static, ()>,
}

impl TestBurst {
    pub(crate) fn begin(datagrams: u8) -> Self {
        let test_lock = lock_for_test();
        let guard = SHARED.lock.try_acquire().expect("the tests take turns");
        let word = BurstStateWord::load();
        assert!(word.try_replace(word.ended()));
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        receiver.set_read_timeout(Some(std::time::Duration::from_secs(60))).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let descriptor = sender.as_raw_fd();
        slots::forget_descriptor(descriptor);
        let slot = slots::slot_of(descriptor).unwrap();
        // SAFETY: the lock is held, and no reference is alive.
        unsafe { slot.identify(descriptor, RunDetector::new(BurstTuning { entry: 1, always: true })) };
        let shape = DatagramShape { bytes: BYTES, destination: Destination::CONNECTED };
        let cookie = sys::socket_cookie(descriptor).unwrap();
        set_burst_properties(&guard, BurstProperties { descriptor, cookie, shape, room: 64, slot });
        let burst = Self { sender, receiver, guard: Some(guard), _test_lock: test_lock };
        (0..datagrams).for_each(|number| burst.add_datagram(number));
        burst
    }

    pub(crate) fn add_datagram(&self, number: u8) {
        let mut data = [number; BYTES];
        let part = libc::iovec { iov_base: data.as_mut_ptr().cast(), iov_len: BYTES };
        assert!(add_datagram(self.guard(), BurstStateWord::load(), self.properties(), &[part]));
    }

    pub(crate) fn guard(&self) -> &BurstLockGuard {
        self.guard.as_ref().expect("it is unlocked once, at the end")
    }

    pub(crate) fn unlock(&mut self) {
        self.guard.take().into_iter().for_each(BurstLockGuard::release);
    }

    pub(crate) fn descriptor(&self) -> i32 {
        self.sender.as_raw_fd()
    }

    pub(crate) fn slot(&self) -> &'static DescriptorSlot {
        self.properties().slot
    }

    fn properties(&self) -> &BurstProperties {
        burst_properties(self.guard())
    }

    /// Does what the holder of the lock does until it calls the kernel for `datagrams` datagrams.
    fn prepare_call(&self, datagrams: usize) -> (BurstStateWord, BurstHandover) {
        let word = BurstStateWord::load();
        let payload = buffered_payload(word.sent_count() * BYTES, datagrams * BYTES);
        // SAFETY: the lock is held.
        unsafe { (*MESSAGE.0.get()).set_datagrams(&[], payload, BYTES as u16, datagrams) };
        SHARED.sending.store(word.bits(), Relaxed);
        (word, BurstHandover { is_ours: true, message: MESSAGE.0.get() })
    }

    fn call_kernel(&self) -> Option<i32> {
        // SAFETY: it is complete, and stays.
        sys::result_errno(unsafe { sys::send_message(self.descriptor(), MESSAGE.0.get()) })
    }

    /// Closes the receiver's port, and has a datagram refused there: the sender's next call returns the
    /// error.
    pub(crate) fn cause_refusal(&mut self) {
        self.receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        self.sender.send(END).unwrap();
    }

    pub(crate) fn take_error(&self) -> Option<i32> {
        self.sender.take_error().unwrap().and_then(|error| error.raw_os_error())
    }

    /// The numbers of the datagrams that have arrived.
    pub(crate) fn arrived_numbers(&self) -> Vec<u8> {
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

impl Drop for TestBurst {
    fn drop(&mut self) {
        self.unlock();
    }
}

#[test]
fn a_signal_handler_ends_a_burst_that_the_kernel_accepted() {
    let burst = TestBurst::begin(3);
    let (word, interrupted) = burst.prepare_call(3);
    let errno = burst.call_kernel();
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    assert_eq!(BurstStateWord::load(), word.ended(), "the interrupted code may never go on");
    assert!(matches!(
        interrupted.evaluate_result(errno, word, burst.properties()),
        SendCallResult::Overtaken
    ));
    assert_eq!((result_if_overtaken(), burst.arrived_numbers()), (HandoverResult::All, vec![0, 1, 2]));
}

#[test]
fn a_signal_handler_sends_the_datagrams_that_remain() {
    let burst = TestBurst::begin(3);
    let (word, _) = burst.prepare_call(1);
    assert_eq!(burst.call_kernel(), None);
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    assert_eq!((BurstStateWord::load(), burst.arrived_numbers()), (word.ended(), vec![0, 1, 2]));
}

#[test]
fn a_burst_without_remaining_datagrams_ends_without_sending() {
    let burst = TestBurst::begin(1);
    let (word, _) = burst.prepare_call(1);
    assert_eq!(burst.call_kernel(), None);
    assert!(word.try_replace(word.with_sent_count(1)));
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    assert_eq!((BurstStateWord::load(), burst.arrived_numbers()), (word.ended(), vec![0]));
}

#[test]
fn the_error_of_an_invalidated_call_is_not_kept_for_the_socket() {
    let burst = TestBurst::begin(2);
    let (word, interrupted) = burst.prepare_call(2);
    let outcome = |errno| interrupted.evaluate_result(errno, word, burst.properties());
    assert!(
        matches!(outcome(Some(libc::EMSGSIZE)), SendCallResult::Refused(libc::EMSGSIZE)),
        "not invalidated"
    );
    // SAFETY: this is the only thread that uses it.
    unsafe { BurstMessage::invalidate(MESSAGE.0.get()) };
    let errno = burst.call_kernel();
    assert_eq!(errno, Some(libc::EMSGSIZE));
    assert!(matches!(outcome(errno), SendCallResult::Overtaken));
    assert_eq!(
        (burst.slot().take_pending_error(burst.descriptor()), BurstStateWord::load()),
        (None, word),
        "the burst waits for room"
    );
}

#[test]
fn an_overtaken_call_keeps_only_errors_of_the_socket() {
    let burst = TestBurst::begin(2);
    let (word, interrupted) = burst.prepare_call(2);
    assert_eq!(hand_over(Flush::Wait, None), HandoverResult::All);
    for errno in ERRORS_OF_OVERTAKEN {
        assert!(matches!(
            interrupted.evaluate_result(Some(errno), word, burst.properties()),
            SendCallResult::Overtaken
        ));
        assert_eq!(burst.slot().take_pending_error(burst.descriptor()), None, "errno {errno}");
    }
    assert!(matches!(
        interrupted.evaluate_result(Some(libc::ECONNREFUSED), word, burst.properties()),
        SendCallResult::Overtaken
    ));
    assert_eq!(burst.slot().take_pending_error(burst.descriptor()), Some(libc::ECONNREFUSED));
}

/// Makes the burst belong to another socket.
fn replace_cookie(burst: &TestBurst) {
    let BurstProperties { descriptor, cookie, shape, room, slot } = *burst.properties();
    set_burst_properties(burst.guard(), BurstProperties { descriptor, cookie: !cookie, shape, room, slot });
}

#[test]
fn a_discarded_burst_forgets_its_socket() {
    let burst = TestBurst::begin(2);
    replace_cookie(&burst);
    assert_eq!(hand_over(Flush::Full, Some(burst.guard())), HandoverResult::All);
    assert_eq!(burst.slot().known_kind(), None, "it is looked at again");
    assert_eq!((BurstStateWord::load().datagram_count(), burst.arrived_numbers()), (0, vec![]));
}

#[test]
fn a_vfork_child_does_not_send_the_parents_burst() {
    let burst = TestBurst::begin(2);
    replace_cookie(&burst);
    let word = BurstStateWord::load();
    SHARED.process.store(sys::process_id() as u32 + 1, Relaxed);
    let result = hand_over(Flush::Close, Some(burst.guard()));
    SHARED.process.store(0, Relaxed);
    assert_eq!((result, BurstStateWord::load()), (HandoverResult::NotOwner, word));
    assert_eq!(burst.slot().known_kind(), Some(slots::SocketKind::Active));
}

#[test]
fn a_burst_whose_segmentation_is_refused_is_sent_singly() {
    for errno in [libc::EMSGSIZE, libc::EINVAL, libc::EIO] {
        let burst = TestBurst::begin(3);
        let (word, ours) = burst.prepare_call(3);
        assert_eq!(ours.on_refused(errno, word, burst.properties(), Flush::Full), HandoverResult::All);
        assert_eq!(
            (burst.slot().take_pending_error(burst.descriptor()), burst.arrived_numbers()),
            (None, vec![0, 1, 2]),
            "errno {errno}"
        );
        // SAFETY: the lock is held, and no other reference is alive.
        let run = unsafe { &mut burst.slot().udp_socket_state().unwrap().run };
        run.record_send(burst.properties().shape, UnbatchedCause::NoRun, true, || 0);
        assert_eq!(
            run.decide_datagram(burst.properties().shape, || 0),
            RunDecision::SendSingly(UnbatchedCause::NoRun),
            "no further bursts"
        );
    }
}
