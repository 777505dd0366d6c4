#![allow(unsafe_code)] // a descriptor is put in the place of another

use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::*;
use crate::engine::sending::Books;
use crate::memory::pool::Pool;
use crate::sys::error_queue::Done;

const PATIENCE: Duration = Duration::from_secs(60);

fn run_of(outbox: &Outbox) -> Run {
    outbox.run().expect("something is queued")
}

fn how(method: Method) -> How {
    How { method, flags: 0, evidence: None, since: None }
}

/// An outbox of one buffer, which gives messages back when they are free.
fn outbox(socket: Arc<KernelSocket>) -> Outbox {
    let paths = Paths::of(&*socket, None);
    Outbox::new(socket, Cache::new(Pool::new(1, 4096).unwrap()), paths, true)
}

fn push(outbox: &mut Outbox, destinations: &Destinations) {
    let destination = destinations.connected().unwrap();
    outbox.sending.push(Buffer::from(vec![7; 100]).into(), destination);
}

/// How many messages became free since this was last asked.
fn freed(outbox: &mut Outbox) -> usize {
    std::iter::from_fn(|| outbox.sending.completed()).count()
}

fn unknown(_: &mut Books, _: &Call, _: bool) -> Evidence {
    Evidence::Unknown
}

#[test]
fn what_the_ring_could_not_submit_goes_when_completions_are_read() {
    let (socket, to, destinations) = connected();
    let mut outbox = outbox(socket);
    outbox.open_ring().unwrap();
    push(&mut outbox, &destinations);

    // Something that is no ring, in the place of the ring.
    let ring = outbox.sending.kept().ring_and_next_call().0.unwrap().as_raw_fd();
    let nothing = std::fs::File::open("/dev/null").unwrap();
    // SAFETY: descriptors of this test; the ring's number goes on to be the ring's.
    let kept = unsafe { libc::dup(ring) };
    // SAFETY: as above.
    unsafe { libc::dup2(nothing.as_raw_fd(), ring) };
    let run = run_of(&outbox);
    let taken = outbox.send_by_ring(&run, how(Method::UringZeroCopy), &destinations);
    // SAFETY: as above.
    unsafe { (libc::dup2(kept, ring), libc::close(kept)) };
    assert_eq!(
        (taken.unwrap().datagrams, outbox.sending.queued(), outbox.sending.in_flight()),
        (1, 0, 1),
        "taken, and booked"
    );

    let give_up = Instant::now() + PATIENCE;
    while outbox.sending.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        outbox.sending.reap_ring(unknown);
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
    push(outbox, destinations);
    let run = run_of(outbox);
    assert_eq!(outbox.send(&run, how(Method::ZeroCopy), destinations).unwrap().calls, 1);
}

#[test]
fn the_next_sender_goes_on_counting_when_the_last_one_has_done() {
    let (socket, to, destinations) = connected();
    let mut first = outbox(Arc::clone(&socket));
    first.sending.kept_mut().allow_zero_copy().unwrap();
    let mut second = outbox(Arc::clone(&socket));
    second.sending.kept_mut().allow_zero_copy().expect_err("two would count from the same number");
    push(&mut second, &destinations);
    let run = run_of(&second);
    let refused = second.send(&run, how(Method::ZeroCopy), &destinations).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::Unsupported, "no call without a number");

    (0..3).for_each(|_| send_one(&mut first, &destinations));
    assert_eq!(first.sending.in_flight(), 3);
    drop(first); // to the reaper
    let give_up = Instant::now() + PATIENCE;
    while second.sending.kept_mut().allow_zero_copy().is_err() {
        assert!(Instant::now() < give_up, "the numbering never came back");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(second.sending.kept().ring_and_next_call().1, 3);
    second.send(&run, how(Method::ZeroCopy), &destinations).unwrap();
    to.recv(&mut [0; 200]).unwrap();
    while second.sending.in_flight() > 0 {
        assert!(Instant::now() < give_up, "stuck");
        // Another half may be the one that reads it.
        socket.read();
        second.sending.reap(unknown);
        assert_eq!(second.sending.strange_completions(), 0);
    }
}

#[test]
fn calls_that_are_given_up_end_the_numbering() {
    let (socket, _to, destinations) = connected();
    let mut first = outbox(Arc::clone(&socket));
    first.sending.kept_mut().allow_zero_copy().unwrap();
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
        let mut outbox = outbox(socket);
        outbox.sending.kept_mut().allow_zero_copy().unwrap();
        push(&mut outbox, &destinations);
        let run = run_of(&outbox);
        let note = call(outbox.measure_one(outbox.sending.next()), &run, how(Method::ZeroCopy));
        let tell = |outbox: &mut Outbox, number| {
            let free = &mut |_, message: Message, _| drop(message);
            assert_eq!(outbox.sending.kept_mut().done(done(number), |_| Evidence::Unknown, free).1, 0);
        };
        let conclude = |outbox: &mut Outbox, was_quiet| {
            let mut freed = 0;
            outbox.sending.kept_mut().conclude(was_quiet, &mut |_, _, _| freed += 1);
            freed
        };
        outbox.sending.kept_mut().doubt(Made { reads: 0..=0, note }, false);
        assert!(outbox.only().is_none(), "not to be taken away");
        assert!(outbox.take_frame().is_none(), "not to be taken away");
        outbox.pass(Some(Evidence::Unknown)); // sent in another way
        assert_eq!((freed(&mut outbox), outbox.sending.in_flight()), (0, 1));
        told.iter().for_each(|&number| tell(&mut outbox, number));
        let is_free_now = conclude(&mut outbox, was_quiet) == 1;
        let next_now = outbox.sending.kept().ring_and_next_call().1;
        assert_eq!((is_free_now, next_now), (is_free, next), "{told:?} {was_quiet}");
        if !is_free {
            assert_eq!(outbox.sending.in_flight(), 1);
            tell(&mut outbox, 0);
            conclude(&mut outbox, false);
        }
        assert_eq!(
            (outbox.sending.messages().iter().count(), outbox.sending.in_flight()),
            (0, 0),
            "{told:?} {was_quiet}"
        );
    }
}
