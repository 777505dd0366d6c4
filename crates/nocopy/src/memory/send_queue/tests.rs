mod entries;
mod model;

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use nocopy_lab::patience::{PATIENCE, wait_until};

use super::*;
use crate::engine::reaper::{self, CloseTimeouts};
use crate::memory::pool::Pool;
use crate::sys::error_queue::CompletionReport;
use crate::sys::fork::tests::in_forked_child;
use crate::sys::udp_send::KernelDestination;

impl CallNote for () {}

impl Payload for Buffer {
    fn buffers(&self) -> &[Buffer] {
        std::slice::from_ref(self)
    }

    fn into_buffers(self) -> Buffers {
        Buffers::One(self)
    }
}

type Queue = SendQueue<Buffer, ()>;

/// A queue that keeps what is free for `completed`.
fn new_queue(socket: Arc<KernelSocket>) -> Queue {
    SendQueue::new(socket, BufferCache::new(Pool::new(1, 4096).unwrap()), true)
}

fn connected_sockets() -> (Arc<KernelSocket>, UdpSocket) {
    let (from, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    (KernelSocket::new(Arc::new(from.into())), to)
}

/// All of one entry.
fn whole_entry(ticket: u64) -> Extent {
    Extent { start: Position::start_of(ticket), end: Position::start_of(ticket + 1), bytes: 100 }
}

fn open_call_for(extent: Extent) -> OpenCall<()> {
    OpenCall { extent, note: () }
}

/// Queues a datagram of 100 bytes.
fn push_datagram(queue: &mut Queue) -> Extent {
    let Ticket(ticket) = queue.push(vec![7; 100].into());
    whole_entry(ticket)
}

fn send_without_copy(queue: &mut Queue, extent: Extent) -> io::Result<usize> {
    let mut burst = Burst::new();
    let mut batch = queue.begin_batch(&mut burst, KernelDestination::CONNECTED);
    batch.add(extent, None, ());
    batch.send_zero_copy(0)
}

fn send_one_datagram(queue: &mut Queue) {
    let extent = push_datagram(queue);
    assert_eq!(send_without_copy(queue, extent).unwrap(), 1);
    queue.advance(extent.end, None);
    assert!(queue.completed().is_none(), "a call reads it");
}

struct SharedBytes(Arc<[u8; 100]>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &*self.0
    }
}

#[test]
fn memory_read_by_the_kernel_survives_the_drop_of_its_queue() {
    for is_read in [false, true] {
        let bytes = Arc::new([7; 100]);
        let (socket, _to) = connected_sockets();
        let mut queue = new_queue(socket);
        queue.push(Buffer::from_owner(SharedBytes(Arc::clone(&bytes))));
        if is_read {
            queue.entries.open_call(0..1);
            queue.numbered.calls.push(open_call_for(whole_entry(0)));
        }
        drop(queue);
        assert_eq!(Arc::strong_count(&bytes), if is_read { 2 } else { 1 });
    }
}

#[test]
fn memory_of_reported_calls_is_not_abandoned() {
    let mut queue = new_queue(connected_sockets().0);
    for ticket in 0..2 {
        push_datagram(&mut queue);
        queue.entries.open_call(ticket..ticket + 1);
        queue.numbered.calls.push(open_call_for(whole_entry(ticket)));
    }
    queue.advance(Position::start_of(2), None);
    queue.finish_reported_calls(CompletionReport { first: 0, last: 0, copied: false });
    assert_eq!(queue.in_flight(), 2, "neither is settled");
    assert_eq!(queue.abandon(), 100, "only the second is still read");
}

#[test]
fn a_call_reads_only_entries_with_accepted_bytes() {
    let mut queue = new_queue(connected_sockets().0);
    for bytes in [10, 0, 20, 0] {
        queue.push(vec![0; bytes].into());
    }
    let entries = &queue.entries;
    let lengths = |extent: Extent| entries.pieces(extent).map(<[u8]>::len).collect::<Vec<_>>();
    let start = Position { ticket: 0, bytes: 4 };
    for (bytes, end, pieces) in [
        (1, Position { ticket: 0, bytes: 5 }, vec![1]),
        (6, Position::start_of(1), vec![6]),
        (7, Position { ticket: 2, bytes: 1 }, vec![6, 0, 1]),
        (26, Position::start_of(3), vec![6, 0, 20]),
    ] {
        let extent = entries.extent(start, bytes);
        assert_eq!((extent.end, lengths(extent)), (end, pieces), "{bytes}");
    }
    for start in [start, Position::start_of(0)] {
        assert!(entries.extent(start, 0).tickets().is_empty(), "a call that took nothing reads nothing");
    }
}

#[test]
#[should_panic(expected = "another queue")]
fn a_completion_of_another_queue_is_refused() {
    let (mut queue, mut other) = (new_queue(connected_sockets().0), new_queue(connected_sockets().0));
    for queue in [&mut queue, &mut other] {
        queue.allow_zero_copy().unwrap();
        send_one_datagram(queue);
    }
    let give_up = Instant::now() + PATIENCE;
    let done = loop {
        assert!(Instant::now() < give_up, "stuck");
        queue.collect();
        if let Some(done) = queue.next_completion() {
            break done;
        }
    };
    other.settle(done, None);
}

/// The reports came before the fork, and were not settled.
#[test]
fn a_forked_child_sees_no_completions_of_its_parent() {
    let mut queue = new_queue(connected_sockets().0);
    queue.allow_zero_copy().unwrap();
    send_one_datagram(&mut queue);
    let give_up = Instant::now() + PATIENCE;
    while queue.finished.is_empty() {
        assert!(Instant::now() < give_up, "stuck");
        queue.collect();
    }
    let queue = std::cell::RefCell::new(queue);
    in_forked_child(|| {
        queue.borrow_mut().collect();
        assert!(queue.borrow_mut().next_completion().is_none());
    });
    queue.borrow_mut().settle_without_evidence();
    assert_eq!(queue.borrow().in_flight(), 0);
}

#[test]
fn collecting_submits_sends_that_did_not_fit_the_ring() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let (socket, to) = connected_sockets();
    let mut queue = new_queue(socket);
    queue.open_ring(128).unwrap();
    let extent = push_datagram(&mut queue);

    // Something that is no ring, in the place of the ring.
    let ring = queue.ring_descriptor().unwrap().as_raw_fd();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: descriptors of this test; the ring's number goes on to be the ring's.
    let original = unsafe { libc::dup(ring) };
    // SAFETY: as above.
    unsafe { libc::dup2(nothing.as_raw_fd(), ring) };
    queue.queue_on_ring(extent, KernelDestination::CONNECTED, None, ()).unwrap();
    queue.advance(extent.end, None);
    let submitted = queue.submit_ring();
    // SAFETY: as above.
    unsafe { (libc::dup2(original, ring), libc::close(original)) };
    assert!(submitted.is_err());
    assert_eq!(queue.in_flight(), 1, "taken, and noted");

    let give_up = Instant::now() + PATIENCE;
    while queue.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        queue.collect_ring();
        queue.settle_without_evidence();
    }
    let mut bytes = [0; 200];
    assert_eq!((to.recv(&mut bytes).unwrap(), bytes[0]), (100, 7));
}

/// The ring has the pool's pages registered: it must end before the pool, under its lock, replaces those that
/// were given up.
#[test]
fn a_ring_is_dropped_before_its_memory_returns() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let mut queue = new_queue(connected_sockets().0);
    queue.open_ring(1).unwrap();
    let ring = format!("/proc/self/fd/{}", queue.ring_descriptor().unwrap().as_raw_fd());
    let opened = std::fs::read_link(&ring).unwrap();
    let pool = queue.cache().pool().clone();
    let locked = pool.lock_registered_rings().expect("memory of this process");
    let dropping = std::thread::spawn(move || drop(queue));
    wait_until("the ring's end", || std::fs::read_link(&ring).map_or(true, |now| now != opened));
    assert!(!dropping.is_finished(), "the memory is still registered");
    drop(locked);
    dropping.join().unwrap();
}

#[test]
fn the_next_sender_continues_the_numbering() {
    let (socket, to) = connected_sockets();
    let mut first = new_queue(Arc::clone(&socket));
    first.allow_zero_copy().unwrap();
    let mut second = new_queue(Arc::clone(&socket));
    second.allow_zero_copy().expect_err("two would count from the same number");
    let extent = push_datagram(&mut second);
    let refused = send_without_copy(&mut second, extent).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "no call without a number");

    (0..3).for_each(|_| send_one_datagram(&mut first));
    assert_eq!(first.in_flight(), 3);
    reaper::hand_over_to_reaper(&mut first, CloseTimeouts { patience: PATIENCE, cut_off: None });
    drop(first);
    let give_up = Instant::now() + PATIENCE;
    while second.allow_zero_copy().is_err() {
        assert!(Instant::now() < give_up, "the numbering never came back");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(second.numbered.calls.next_number(), 3);
    send_without_copy(&mut second, extent).unwrap();
    to.recv(&mut [0; 200]).unwrap();
    while second.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        // Another half may read the queue.
        socket.read_error_queue();
        second.collect();
        second.settle_without_evidence();
        assert_eq!(second.unknown_completions(), 0);
    }
}

#[test]
fn no_sender_claims_the_numbering_after_abandoned_calls() {
    let (socket, _to) = connected_sockets();
    let mut first = new_queue(Arc::clone(&socket));
    first.allow_zero_copy().unwrap();
    send_one_datagram(&mut first);
    assert_eq!(first.in_flight(), 1);
    assert_eq!(first.abandon(), 100, "foreign memory");
    assert!(socket.claim_numbering().is_none());
}

impl Queue {
    /// As after a call that failed, and may have a number.
    fn fail_with_uncertain_call(&mut self, extent: Extent) {
        self.entries.open_call(extent.tickets());
        self.numbered.push_uncertain(open_call_for(Extent { bytes: 0, ..extent }));
    }

    /// As after the kernel's report; returns how many of its numbers are unknown.
    fn finish_reported_calls(&mut self, report: CompletionReport) -> u64 {
        self.numbered.finish_reported_calls(report, &mut self.finished)
    }

    fn resolve_uncertain_call(&mut self, was_quiet: bool) {
        if let Some(failed) = self.numbered.resolve_uncertain(was_quiet) {
            self.entries.end_call(failed.extent.tickets(), None, &mut self.freed);
        }
    }
}

/// The meaning of a failed call, by the reports that follow.
#[test]
fn an_uncertain_call_holds_its_memory_until_resolved() {
    let report = |number| CompletionReport { first: number, last: number, copied: false };
    // First reports; whether the kernel then holds no call; whether the memory is free then; the next number.
    let cases = [
        (vec![], false, false, 0),
        (vec![], true, true, 0),
        (vec![0], false, true, 1),
        (vec![0, 1], false, true, 2),
        (vec![1], false, false, 2),
    ];
    for (reported, was_quiet, is_free, next) in cases {
        let mut queue = new_queue(connected_sockets().0);
        queue.allow_zero_copy().unwrap();
        let extent = push_datagram(&mut queue);
        queue.fail_with_uncertain_call(extent);
        assert!(queue.entries.is_read(0), "not to be taken away");
        queue.advance(extent.end, Some(Evidence::Unknown)); // sent in another way
        assert!(queue.completed().is_none() && queue.in_flight() == 1);
        for &number in &reported {
            assert_eq!(queue.finish_reported_calls(report(number)), 0);
        }
        queue.resolve_uncertain_call(was_quiet);
        assert_eq!(queue.numbered.calls.next_number(), next, "{reported:?} {was_quiet}");
        assert_eq!(queue.completed().is_some(), is_free, "{reported:?} {was_quiet}");
        if !is_free {
            assert_eq!(queue.in_flight(), 1);
            queue.finish_reported_calls(report(0));
            queue.resolve_uncertain_call(false);
            queue.settle_without_evidence();
            assert!(queue.completed().is_some(), "{reported:?} {was_quiet}");
        }
        assert_eq!(queue.in_flight(), 0, "{reported:?} {was_quiet}");
    }
}
