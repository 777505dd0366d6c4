mod model;

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::*;
use crate::engine::reaper::{self, Parting};

const PATIENCE: Duration = Duration::from_secs(60);

impl Note for () {}

impl Load for Buffer {
    fn buffers(&self) -> &[Buffer] {
        std::slice::from_ref(self)
    }

    fn into_buffers(self) -> impl Iterator<Item = Buffer> {
        std::iter::once(self)
    }
}

type Sender = Kept<Buffer, (), ()>;

fn connected() -> (Arc<KernelSocket>, UdpSocket) {
    let (from, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    (KernelSocket::new(Arc::new(from.into())), to)
}

/// Queues a datagram of 100 bytes, and returns its span.
fn push(kept: &mut Sender) -> Span {
    let Ticket(ticket) = kept.push(vec![7; 100].into(), ());
    Span { first: ticket, last: ticket, at: 0, bytes: 100 }
}

fn unknown(_: &(), _: Told) -> Evidence {
    Evidence::Unknown
}

fn send(kept: &mut Sender, span: Span) -> io::Result<usize> {
    let mut burst = Burst::new();
    let mut filling = kept.fill(&mut burst, None);
    filling.add(span, 0, ());
    filling.send_zero_copy(0)
}

fn send_one(kept: &mut Sender) {
    let span = push(kept);
    assert_eq!(send(kept, span).unwrap(), 1);
    kept.handed_over(span.first, None, &mut |_, _, _| panic!("a call reads it"));
}

#[test]
fn what_is_dropped_while_it_is_read_stays() {
    for is_read in [false, true] {
        let load = Arc::new([7; 100]);
        let (socket, _to) = connected();
        let mut kept = Sender::new(socket, None);
        kept.push(Buffer::from_owner(SharedBytes(Arc::clone(&load))), ());
        if is_read {
            kept.messages.called(0..1);
            kept.calls.push(Made { reads: 0..1, taken: 100, note: () });
        }
        drop(kept);
        assert_eq!(Arc::strong_count(&load), if is_read { 2 } else { 1 });
    }
}

struct SharedBytes(Arc<[u8; 100]>);

impl AsRef<[u8]> for SharedBytes {
    fn as_ref(&self) -> &[u8] {
        &*self.0
    }
}

#[test]
fn a_call_reads_only_the_loads_that_it_took_bytes_of() {
    let mut kept = Sender::new(connected().0, None);
    for bytes in [10, 0, 20, 0] {
        kept.push(vec![0; bytes].into(), ());
    }
    let span = Span { first: 0, last: 3, at: 4, bytes: 26 };
    let lengths = |span: Span| span.pieces(&kept.messages).map(<[u8]>::len).collect::<Vec<_>>();
    assert_eq!(lengths(span), [6, 0, 20, 0]);
    assert_eq!(lengths(Span { bytes: 7, ..span }), [6, 0, 1, 0]);
    for (taken, last) in [(1, 0), (6, 0), (7, 2), (26, 2)] {
        assert_eq!(span.taken(taken, &kept.messages), 0..last + 1, "{taken}");
    }
    assert!(span.taken(0, &kept.messages).is_empty());
}

#[test]
fn reading_completions_submits_what_did_not_fit_the_ring() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let (socket, to) = connected();
    let mut kept = Sender::new(socket, None);
    assert!(kept.open_ring(&Pool::new(1, 4096).unwrap(), 128).unwrap());
    let span = push(&mut kept);

    // Something that is no ring, in the place of the ring.
    let ring = kept.ring.as_ref().unwrap().sender.as_fd().as_raw_fd();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: descriptors of this test; the ring's number goes on to be the ring's.
    let original = unsafe { libc::dup(ring) };
    // SAFETY: as above.
    unsafe { libc::dup2(nothing.as_raw_fd(), ring) };
    kept.queue_by_ring(span, None, None, ()).unwrap();
    kept.handed_over(0, None, &mut |_, _, _| panic!("a call reads it"));
    let submitted = kept.submit();
    // SAFETY: as above.
    unsafe { (libc::dup2(original, ring), libc::close(original)) };
    assert!(submitted.is_err());
    assert_eq!(kept.in_flight(), 1, "taken, and noted");

    let give_up = Instant::now() + PATIENCE;
    while kept.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        kept.reap_ring(&mut unknown, &mut |_, _, _| {});
    }
    let mut bytes = [0; 200];
    assert_eq!((to.recv(&mut bytes).unwrap(), bytes[0]), (100, 7));
}

#[test]
fn the_next_sender_goes_on_counting_when_the_last_one_has_done() {
    let (socket, to) = connected();
    let mut first = Sender::new(Arc::clone(&socket), None);
    first.allow_zero_copy().unwrap();
    let mut second = Sender::new(Arc::clone(&socket), None);
    second.allow_zero_copy().expect_err("two would count from the same number");
    let span = push(&mut second);
    let refused = send(&mut second, span).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "no call without a number");

    (0..3).for_each(|_| send_one(&mut first));
    assert_eq!(first.in_flight(), 3);
    reaper::leave(&mut first, Parting { patience: PATIENCE, cut_off: None });
    drop(first);
    let give_up = Instant::now() + PATIENCE;
    while second.allow_zero_copy().is_err() {
        assert!(Instant::now() < give_up, "the numbering never came back");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(second.calls.end(), 3);
    send(&mut second, span).unwrap();
    to.recv(&mut [0; 200]).unwrap();
    while second.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        // Another half may read the queue.
        socket.read();
        let (_, strange) = second.reap(&mut unknown, &mut |_, _, _| {});
        assert_eq!(strange, 0);
    }
}

#[test]
fn calls_that_are_given_up_end_the_numbering() {
    let (socket, _to) = connected();
    let mut first = Sender::new(Arc::clone(&socket), None);
    first.allow_zero_copy().unwrap();
    send_one(&mut first);
    assert_eq!(first.in_flight(), 1);
    assert_eq!(first.abandon(), 100, "foreign memory");
    assert!(socket.claim().is_none());
}

/// The meaning of a failed call, by the reports that follow.
#[test]
fn a_call_in_doubt_holds_its_memory_until_its_number_is_known() {
    let done = |number| Done { first: number, last: number, copied: false };
    // First reports; whether the kernel then holds no call; whether the memory is free then; the next number.
    let cases = [
        (vec![], false, false, 0),
        (vec![], true, true, 0),
        (vec![0], false, true, 1),
        (vec![0, 1], false, true, 2),
        (vec![1], false, false, 2),
    ];
    for (told, was_quiet, is_free, next) in cases {
        let mut kept = Sender::new(connected().0, None);
        kept.allow_zero_copy().unwrap();
        push(&mut kept);
        kept.messages.called(0..1);
        kept.doubt = Some(Doubt::new(Made { reads: 0..1, taken: 0, note: () }));
        assert!(kept.messages.is_read(0) && kept.messages.only().is_none(), "not to be taken away");
        let freed = std::cell::Cell::new(0);
        let free = &mut |_, _, _| freed.set(freed.get() + 1);
        kept.handed_over(0, Some(Evidence::Unknown), free); // sent in another way
        assert_eq!((freed.get(), kept.in_flight()), (0, 1));
        for &number in &told {
            assert_eq!(kept.done(done(number), &mut unknown, free), (0, 0));
        }
        kept.conclude(was_quiet, free);
        assert_eq!((freed.get() == 1, kept.calls.end()), (is_free, next), "{told:?} {was_quiet}");
        if !is_free {
            assert_eq!(kept.in_flight(), 1);
            kept.done(done(0), &mut unknown, free);
            kept.conclude(false, free);
        }
        assert_eq!((freed.get(), kept.in_flight()), (1, 0), "{told:?} {was_quiet}");
    }
}
