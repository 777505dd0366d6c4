//! Messages that go by TCP connections beside the datagrams, between two network namespaces.

use std::fs::File;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;
use std::time::Duration;

use crate::common::lab;
use crate::common::message::{connect, pattern, receive, send};
use nocopy::message::{Builder, Endpoint, Peer};
use nocopy::{Port, Reason};
use nocopy_lab::End;
use nocopy_lab::patience::wait_until;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    PidfdFlags, PidfdGetfdFlags, Resource, Rlimit, getpid, getrlimit, pidfd_getfd, pidfd_open, setrlimit,
};

/// Lengths that go by datagrams, by streams, and in batches of either.
const LENGTHS: [usize; 7] = [10, 9_000, 300_000, 0, 1_400, 64 << 10, 1 << 20];

fn bind(end: &End, builder: Builder) -> Endpoint {
    let address = SocketAddr::new(end.ipv4().into(), 0);
    end.namespace().run(|| builder.streams(true).bind(address).unwrap())
}

/// Waits on the descriptor for a millisecond at most, as an event loop of the program's does.
fn wait_on_descriptor(endpoint: &mut Endpoint) {
    if !endpoint.arm().unwrap() {
        let millisecond = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
        let _ = poll(&mut [PollFd::from_borrowed_fd(endpoint.as_fd(), PollFlags::IN)], Some(&millisecond));
    }
}

/// An endpoint, which opens streams in the network namespace of the thread that calls it, and its end of the
/// link.
type Side<'a> = (&'a End, &'a mut Endpoint);

/// Sends messages of all lengths, and checks that they arrive once and in order.
fn converse((left_end, left): Side<'_>, to_right: Peer, (right_end, right): Side<'_>, messages: usize) {
    let of = |number: usize| pattern(number, LENGTHS[number % LENGTHS.len()]);
    let (mut sent, mut received) = (0, 0);
    let mut send = || {
        while sent < messages {
            let result = match sent % 2 {
                0 => left.send_copy_to(&of(sent), to_right),
                _ => left.send_to(of(sent), to_right).map_err(|rejected| rejected.reason),
            };
            match result {
                Ok(()) => sent += 1,
                Err(Reason::Full) => break,
                Err(reason) => panic!("message {sent}: {reason}"),
            }
        }
        left.flush().unwrap();
        left.wait(Duration::ZERO).unwrap();
    };
    let mut receive = || {
        while let Some(message) = right.try_receive().unwrap() {
            assert!(message.to_vec() == of(received), "message {received} of {} bytes", message.len());
            received += 1;
        }
        wait_on_descriptor(right);
        received == messages
    };
    wait_until("all messages", || {
        left_end.namespace().run(&mut send);
        right_end.namespace().run(&mut receive)
    });
}

fn check([left_end, right_end]: [&End; 2], mut left: Endpoint, mut right: Endpoint) {
    let (to_right, to_left) = connect(&mut left, &mut right);
    converse((left_end, &mut left), to_right, (right_end, &mut right), 140);
    converse((right_end, &mut right), to_left, (left_end, &mut left), 140);
    let stats = left.stats();
    assert!(
        stats.get("streams_attached").unwrap() > 0
            && stats.get("units_sent").unwrap() > 50
            && stats.get("units_received").unwrap() > 50,
        "{stats}"
    );
    assert_eq!((stats.get("streams_cut").unwrap(), stats.get("streams_refused").unwrap()), (0, 0), "{stats}");
}

#[test]
fn long_messages_go_by_a_stream_beside_sockets() {
    let lab = lab!();
    let ends = [lab.left(), lab.right()];
    check(ends, bind(ends[0], Endpoint::builder()), bind(ends[1], Endpoint::builder()));
}

#[test]
fn long_messages_go_by_a_stream_beside_ports() {
    let lab = lab!();
    let over_port = |end: &End| bind(end, Endpoint::builder().port(Port::builder(end.interface())));
    let ends = [lab.left(), lab.right()];
    check(ends, over_port(ends[0]), over_port(ends[1]));
}

/// Shuts the TCP connections of this process to an address down, as a reset by the peer would.
fn cut_streams_to(peer: SocketAddr) -> usize {
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let descriptors = std::fs::read_dir("/proc/self/fd").unwrap();
    let numbers = descriptors.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    let all = numbers.filter_map(|number| pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).ok());
    all.filter(|descriptor| {
        let socket = socket2::SockRef::from(descriptor);
        let is_stream = socket.r#type().is_ok_and(|kind| kind == socket2::Type::STREAM);
        let is_its = socket.peer_addr().is_ok_and(|address| address.as_socket() == Some(peer));
        is_stream && is_its && socket.shutdown(std::net::Shutdown::Both).is_ok()
    })
    .count()
}

#[test]
fn cut_units_are_sent_again_though_they_hold_all_frames() {
    let lab = lab!();
    let ends = [lab.left(), lab.right()];
    let [mut left, mut right] =
        ends.map(|end| bind(end, Endpoint::builder().port(Port::builder(end.interface()))));
    let (to_right, _) = connect(&mut left, &mut right);
    converse((ends[0], &mut left), to_right, (ends[1], &mut right), 140);
    wait_until("nothing is in flight", || {
        right.wait(Duration::ZERO).unwrap();
        left.wait(Duration::ZERO).unwrap();
        left.in_flight() == 0
    });
    assert!(cut_streams_to(right.local_addr()) > 0); // which the left one does not know yet
    let mut sent = 0;
    while let Some(buffers) = std::iter::repeat_with(|| left.buffer()).take(10).collect::<Option<Vec<_>>>() {
        let mut buffers = buffers;
        buffers.iter_mut().for_each(|buffer| buffer.fill(&[sent as u8; 1_000]).unwrap());
        if left.send_to(buffers, to_right).is_err() {
            break;
        }
        sent += 1;
    }
    left.try_flush().unwrap();
    let held: Vec<_> = std::iter::from_fn(|| left.buffer()).collect();
    wait_until("the cut is noticed", || {
        left.wait(Duration::ZERO).unwrap();
        left.stats().get("streams_cut").unwrap() > 0
    });
    let mut received = 0;
    wait_until("all messages", || {
        ends[0].namespace().run(|| left.wait(Duration::ZERO)).unwrap(); // the next stream is opened there
        while let Some(message) = right.try_receive().unwrap() {
            assert!(message.to_vec() == vec![received as u8; 10_000], "message {received}");
            received += 1;
        }
        while right.poll_event().is_some() {}
        received == sent
    });
    assert!(left.stats().get("units_sent_again").unwrap() > 0, "{}", left.stats());
    drop(held);
}

/// In a process of its own, because the limit of descriptors is the process's.
#[test]
fn without_descriptors_messages_go_by_datagrams() {
    const ALONE: &str = "NOCOPY_TEST_ALONE";
    if std::env::var_os(ALONE).is_some() {
        return run_out_of_descriptors();
    }
    let test = "streams::without_descriptors_messages_go_by_datagrams";
    let mut alone = Command::new(std::env::current_exe().unwrap());
    let output = alone.args([test, "--exact", "--nocapture"]).env(ALONE, "1").output().unwrap();
    assert!(output.status.success(), "{output:?}");
}

fn run_out_of_descriptors() {
    let bind = || Endpoint::builder().streams(true).bind("127.0.0.1:0").unwrap();
    let (mut left, mut right) = (bind(), bind());
    let (to_right, _) = connect(&mut left, &mut right);
    let whole = getrlimit(Resource::Nofile);
    let next = File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let allow = |descriptors| setrlimit(Resource::Nofile, Rlimit { current: descriptors, ..whole }).unwrap();
    let mut number = 0;
    let mut deliver = |left: &mut Endpoint, right: &mut Endpoint| {
        let message = pattern(number, LENGTHS[number % LENGTHS.len()]);
        number += 1;
        send(left, right, to_right, &message);
        left.flush().unwrap();
        assert!(receive(left, right).2 == message);
    };
    // None for a socket that connects.
    allow(Some(next));
    (0..50).for_each(|_| deliver(&mut left, &mut right));
    // One for that, and none for one that is accepted: the listener, which stays readable, ends no wait.
    allow(Some(next + 1));
    wait_until("a socket that connects", || {
        deliver(&mut left, &mut right);
        std::fs::exists(format!("/proc/self/fd/{next}")).unwrap()
    });
    wait_until("the descriptor is at rest", || {
        assert!(right.try_receive().unwrap().is_none());
        left.wait(Duration::ZERO).unwrap();
        let mut polled = [PollFd::from_borrowed_fd(right.as_fd(), PollFlags::IN)];
        poll(&mut polled, Some(&Timespec::default())).unwrap() == 0
    });
    (0..50).for_each(|_| deliver(&mut left, &mut right));
    assert_eq!(
        (left.stats().get("units_sent").unwrap(), right.stats().get("streams_attached").unwrap()),
        (0, 0)
    );
    allow(whole.current);
    wait_until("a stream", || {
        deliver(&mut left, &mut right);
        left.stats().get("units_sent").unwrap() > 0
    });
}
