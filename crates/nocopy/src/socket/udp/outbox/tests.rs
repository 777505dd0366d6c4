use std::net::UdpSocket;
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::*;

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
    let mut outbox = Outbox::new(Arc::new(from.into()));
    outbox.open_ring(&pool).unwrap();
    let free = &mut |_, message: Message, _| drop(message);
    outbox.push(Buffer::from(vec![7; 100]).into(), 0);

    // Something that is no ring, in the place of the ring.
    let ring = outbox.kept.ring.as_ref().unwrap().sender.as_fd().as_raw_fd();
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
        outbox.done_by_ring(|_, _| Evidence::Unknown, free);
    }
    let mut bytes = [0; 200];
    assert_eq!((to.recv(&mut bytes).unwrap(), bytes[0]), (100, 7));
}
