#![allow(unsafe_code)] // a descriptor is put in the place of another

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::*;
use crate::sys::error_queue::Done;

const PATIENCE: Duration = Duration::from_secs(60);

fn run_of(outbox: &Outbox) -> Run {
    outbox.run().expect("something is queued")
}

fn how(method: Method) -> How {
    How { method, flags: 0, evidence: None, since: None }
}

#[test]
fn what_the_ring_could_not_submit_goes_when_completions_are_read() {
    let (from, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    let (pool, mut destinations) = (Pool::new(1, 4096).unwrap(), Destinations::new());
    destinations.connect(to.local_addr().unwrap());
    let mut outbox = Outbox::new(KernelSocket::new(Arc::new(from.into())));
    outbox.open_ring(&pool).unwrap();
    let free = &mut |_, message: Message, _| drop(message);
    outbox.push(Buffer::from(vec![7; 100]).into(), 0);

    // Something that is no ring, in the place of the ring.
    let ring = outbox.kept.ring_and_next_call().0.unwrap().as_raw_fd();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: descriptors of this test; the ring's number goes on to be the ring's.
    let kept = unsafe { libc::dup(ring) };
    // SAFETY: as above.
    unsafe { libc::dup2(nothing.as_raw_fd(), ring) };
    let run = run_of(&outbox);
    let taken = outbox.send_by_ring(&run, how(Method::UringZeroCopy), &destinations, free);
    // SAFETY: as above.
    unsafe { (libc::dup2(kept, ring), libc::close(kept)) };
    assert_eq!(
        (taken.unwrap().datagrams, outbox.queued(), outbox.in_flight()),
        (1, 0, 1),
        "taken, and booked"
    );

    let give_up = Instant::now() + PATIENCE;
    while outbox.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        outbox.kept_mut().done_by_ring(|_, _| Evidence::Unknown, free);
    }
    let mut bytes = [0; 200];
    assert_eq!((to.recv(&mut bytes).unwrap(), bytes[0]), (100, 7));
}

/// A connected socket, and the other end of it.
fn connected() -> (Arc<KernelSocket>, UdpSocket, Destinations) {
    let (from, to) = (UdpSocket::bind("127.0.0.1:0").unwrap(), UdpSocket::bind("127.0.0.1:0").unwrap());
    from.connect(to.local_addr().unwrap()).unwrap();
    to.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut destinations = Destinations::new();
    destinations.connect(to.local_addr().unwrap());
    (KernelSocket::new(Arc::new(from.into())), to, destinations)
}

fn send_one(outbox: &mut Outbox, destinations: &Destinations) {
    outbox.push(Buffer::from(vec![7; 100]).into(), 0);
    let run = run_of(outbox);
    let free = &mut |_, message: Message, _| drop(message);
    assert_eq!(outbox.send(&run, how(Method::ZeroCopy), destinations, free).unwrap().calls, 1);
}

#[test]
fn the_next_sender_goes_on_counting_when_the_last_one_has_done() {
    let (socket, to, destinations) = connected();
    let mut first = Outbox::new(Arc::clone(&socket));
    first.kept.allow_zero_copy().unwrap();
    let mut second = Outbox::new(Arc::clone(&socket));
    second.kept.allow_zero_copy().expect_err("two would count from the same number");
    second.push(Buffer::from(vec![7; 100]).into(), 0);
    let run = run_of(&second);
    let free = &mut |_, message: Message, _| drop(message);
    let refused = second.send(&run, how(Method::ZeroCopy), &destinations, free).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "no call without a number");

    (0..3).for_each(|_| send_one(&mut first, &destinations));
    assert_eq!(first.in_flight(), 3);
    drop(first); // to the reaper
    let give_up = Instant::now() + PATIENCE;
    while second.kept.allow_zero_copy().is_err() {
        assert!(Instant::now() < give_up, "the numbering never came back");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(second.kept.ring_and_next_call().1, 3);
    second.send(&run, how(Method::ZeroCopy), &destinations, free).unwrap();
    to.recv(&mut [0; 200]).unwrap();
    while second.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        // Another half may be the one that reads it.
        socket.read();
        while let Some(done) = second.kept.next_done() {
            assert_eq!(second.kept.done(done, |_| Evidence::Unknown, free), (1, 0));
        }
    }
}

#[test]
fn calls_that_are_given_up_end_the_numbering() {
    let (socket, _to, destinations) = connected();
    let mut first = Outbox::new(Arc::clone(&socket));
    first.kept.allow_zero_copy().unwrap();
    send_one(&mut first, &destinations);
    assert_eq!(first.abandon().0, 1);
    assert!(socket.claim().is_none());
}

/// What to make of a call that failed, by what is told then.
#[test]
fn a_call_in_doubt_holds_its_memory_until_its_number_is_known() {
    let done = |number| Done { first: number, last: number, copied: false };
    // What is told at first; what the kernel keeps for no call any more; whether the memory is free then; the next number.
    let cases = [
        (vec![], false, false, 0),
        (vec![], true, true, 0),
        (vec![0], false, true, 1),
        (vec![0, 1], false, true, 2),
        (vec![1], false, false, 2),
    ];
    for (told, was_quiet, is_free, next) in cases {
        let (socket, _to, destinations) = connected();
        let mut outbox = Outbox::new(socket);
        outbox.kept.allow_zero_copy().unwrap();
        outbox.push(Buffer::from(vec![7; 100]).into(), destinations.connected().unwrap());
        let run = run_of(&outbox);
        let note = call(outbox.measure_one(outbox.next), &run, how(Method::ZeroCopy));
        let freed = std::cell::Cell::new(0);
        let free = &mut |_, message: Message, _| {
            drop(message);
            freed.set(freed.get() + 1);
        };
        outbox.kept.doubt(Made { reads: 0..=0, note }, false);
        assert!(outbox.take_frame().is_none() && outbox.only().is_none(), "not to be taken away");
        outbox.pass(Some(Evidence::Unknown), free); // sent in another way
        assert_eq!((freed.get(), outbox.in_flight()), (0, 1));
        for number in &told {
            assert_eq!(outbox.kept.done(done(*number), |_| Evidence::Unknown, free), (0, 0));
        }
        outbox.kept.conclude(was_quiet, free);
        assert_eq!(
            (freed.get() == 1, outbox.kept.ring_and_next_call().1),
            (is_free, next),
            "{told:?} {was_quiet}"
        );
        if !is_free {
            assert_eq!(outbox.in_flight(), 1);
            outbox.kept.done(done(0), |_| Evidence::Unknown, free);
            outbox.kept.conclude(false, free);
        }
        assert_eq!((freed.get(), outbox.in_flight()), (1, 0), "{told:?} {was_quiet}");
    }
}
