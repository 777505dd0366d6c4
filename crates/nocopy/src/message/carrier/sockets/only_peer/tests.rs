use std::net::UdpSocket;
use std::time::{Duration, Instant};

use nocopy_lab::patience::{PATIENCE, wait_until};
use rustix::event::{PollFd, PollFlags};

use super::*;
use crate::message::carrier::AnyCarrier;
use crate::message::{Builder, Endpoint, Event, Peer, tests};
use crate::port::Wait;
use crate::sys::poll::{Wakeup, poll};

fn builder() -> Builder {
    Endpoint::builder().keep_alive(10 * PATIENCE).dead_after(20 * PATIENCE).streams(false)
}

/// A message that begins with a number; every other one in a conversation takes several packets.
fn message(number: u32, is_long: bool) -> Vec<u8> {
    let rest = if is_long { vec![number as u8; 4_000] } else { Vec::new() };
    [&number.to_be_bytes()[..], &rest].concat()
}

fn is_long(number: u32) -> bool {
    number % 2 == 1
}

fn send(from: &mut Endpoint, number: u32, to: Peer) {
    send_message(from, &message(number, false), to);
}

fn send_message(from: &mut Endpoint, message: &[u8], to: Peer) {
    from.send_copy_to(message, to).unwrap();
    from.flush().unwrap();
    from.wait(Duration::ZERO).unwrap(); // for acknowledgements of earlier ones
}

/// The next message, and who it is from. The sender works meanwhile: if the machine stood still, it sends the
/// rest later or once more.
fn next(at: &mut Endpoint, sender: &mut Endpoint) -> (u32, Peer) {
    let give_up = Instant::now() + PATIENCE;
    loop {
        while at.poll_event().is_some() {}
        if let Some(message) = at.receive_timeout(Duration::from_millis(10)).unwrap() {
            let (bytes, from) = (message.to_vec(), message.peer());
            let number = u32::from_be_bytes(*bytes.first_chunk().unwrap());
            assert!(bytes == self::message(number, bytes.len() > 4));
            return (number, from);
        }
        sender.wait(Duration::ZERO).unwrap();
        assert!(Instant::now() < give_up, "no message: {}", at.explain());
    }
}

/// Sends a number there and back so often that it takes the connected sockets.
fn converse(left: &mut Endpoint, to_right: Peer, right: &mut Endpoint) -> Peer {
    let mut to_left = None;
    for number in 0..2 * IN_A_ROW {
        let message = message(number, is_long(number));
        send_message(left, &message, to_right);
        let (came, from) = next(right, left);
        assert_eq!(came, number);
        send_message(right, &message, from);
        assert_eq!(next(left, right), (number, to_right));
        to_left = Some(from);
    }
    wait_until("everything is acknowledged", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        left.in_flight() + right.in_flight() == 0
    });
    to_left.expect("at least one")
}

fn has_second(endpoint: &Endpoint) -> bool {
    endpoint.explain().to_string().contains("one connected to")
}

/// Connects a third endpoint.
fn other_of(right: &mut Endpoint) -> (Endpoint, Peer) {
    let mut other = builder().bind("127.0.0.1:0").unwrap();
    let to_right = other.start_connect(right.local_addr()).unwrap();
    wait_until("a connection", || {
        other.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        matches!(other.poll_event(), Some(Event::Connected(..)))
    });
    (other, to_right)
}

#[test]
fn an_only_peer_gets_a_socket_and_others_are_still_heard() {
    for wait in [Wait::Spin, Wait::Interrupt, Wait::Adaptive { spin: Duration::from_micros(20) }] {
        let (mut left, to_right, mut right) = tests::connected([builder().wait(wait), builder().wait(wait)]);
        assert!(!has_second(&left));
        let to_left = converse(&mut left, to_right, &mut right);
        assert!(has_second(&left) && has_second(&right), "{wait:?}: {}", left.explain());
        let (mut other, other_to_right) = other_of(&mut right);
        for number in 0..100 {
            send(&mut other, number, other_to_right);
            let (came, from) = next(&mut right, &mut other);
            assert!(came == number && from != to_left, "{wait:?}");
            send(&mut left, number, to_right);
            assert_eq!(next(&mut right, &mut left), (number, to_left), "{wait:?}");
        }
    }
}

/// A message is found without waiting, whichever socket it came to, and however long nothing came there.
#[test]
fn a_look_without_waiting_leaves_no_socket_out() {
    let (mut left, to_right, mut right) = tests::connected([builder(), builder().wait(Wait::Spin)]);
    let (mut other, other_to_right) = other_of(&mut right);
    converse(&mut left, to_right, &mut right);
    assert!(right.receive_timeout(Duration::from_millis(5)).unwrap().is_none(), "it looks many times");
    send(&mut other, 7, other_to_right);
    assert_eq!(right.try_receive().unwrap().unwrap().to_vec(), message(7, false));
    assert!(right.receive_timeout(Duration::from_millis(5)).unwrap().is_none());
    send(&mut other, 8, other_to_right);
    let mut came = Vec::new();
    assert_eq!(right.try_receive_each(|message| came = message.to_vec()).unwrap(), 1);
    assert_eq!(came, message(8, false));
}

/// The descriptor of an endpoint is readable for either socket, also if it was watched before there were two.
#[test]
fn either_socket_makes_the_descriptor_readable() {
    let (mut left, to_right, mut right) = tests::connected([builder(), builder()]);
    let (mut other, other_to_right) = other_of(&mut right);
    right.arm().unwrap();
    let to_left = converse(&mut left, to_right, &mut right);
    for _ in 0..3 {
        for (from, to, is_left) in [(&mut left, to_right, true), (&mut other, other_to_right, false)] {
            wait_until("nothing more to do", || !right.arm().unwrap());
            send(from, 7, to);
            let readable = &mut [PollFd::new(&right, PollFlags::IN)];
            assert_eq!(poll(readable, Some(PATIENCE)).unwrap(), Wakeup::Ready);
            assert_eq!(next(&mut right, from).1 == to_left, is_left);
        }
    }
}

/// Neither socket is left unread because something always comes to the other.
#[test]
fn a_busy_socket_does_not_silence_the_other() {
    let (mut left, to_right, mut right) = tests::connected([builder(), builder()]);
    let (mut other, other_to_right) = other_of(&mut right);
    let to_left = converse(&mut left, to_right, &mut right);
    for (busy, by_busy, quiet, by_quiet) in
        [(0, other_to_right, 1, to_right), (1, to_right, 0, other_to_right)]
    {
        let mut senders = [&mut other, &mut left];
        send(senders[quiet], 7, by_quiet);
        let came = (0..50).any(|number| {
            send(senders[busy], number, by_busy);
            right.try_receive().unwrap().is_some_and(|message| (message.peer() == to_left) == (quiet == 1))
        });
        assert!(came, "sender {quiet}");
        wait_until("the rest", || {
            senders[busy].wait(Duration::ZERO).unwrap();
            right.try_receive().unwrap().is_none()
        });
    }
}

/// Also if a forked child keeps it open.
#[test]
fn the_socket_is_closed_when_packets_go_elsewhere() {
    let (mut left, to_right, mut right) = tests::connected([builder(), builder()]);
    let (mut other, other_to_right) = other_of(&mut right);
    right.arm().unwrap();
    converse(&mut left, to_right, &mut right);
    let _child = match &right.carrier {
        AnyCarrier::Sockets(sockets) => {
            sockets.receiver.connected_socket().unwrap().try_clone_to_owned().unwrap()
        }
        AnyCarrier::Port(_) => unreachable!("it was opened without a port"),
    };
    converse(&mut other, other_to_right, &mut right);
    assert!(!has_second(&right), "{}", right.explain());
    let to_left = converse(&mut left, to_right, &mut right);
    assert!(!has_second(&right), "the row must be longer now: {}", right.explain());
    send(&mut right, 7, to_left);
    assert_eq!(next(&mut left, &mut right), (7, to_right));
    wait_until("no descriptor that is ready, as the old socket would be", || {
        let is_armed = !right.arm().unwrap();
        let readable = &mut [PollFd::new(&right, PollFlags::IN)];
        is_armed && poll(readable, Some(Duration::ZERO)).unwrap() == Wakeup::TimedOut
    });
}

/// A connected socket gets errors for packets that nobody took, which one that is not does not get.
#[test]
fn a_peer_that_is_gone_is_no_error() {
    let (mut left, to_right, mut right) = tests::connected([builder(), builder()]);
    converse(&mut left, to_right, &mut right);
    let address = right.local_addr();
    drop(right);
    for number in 0..10 {
        let _ = left.send_copy_to(&message(number, is_long(number)), to_right); // it says goodbye, if that was heard
        left.flush().unwrap();
        assert!(left.try_receive().unwrap().is_none());
    }
    let mut right = builder().bind(address).unwrap();
    let to_right = left.start_connect(address).unwrap();
    wait_until("a connection with its successor", || {
        left.wait(Duration::ZERO).unwrap();
        right.wait(Duration::ZERO).unwrap();
        std::iter::from_fn(|| left.poll_event())
            .any(|event| matches!(event, Event::Connected(peer, _) if peer == to_right))
    });
    converse(&mut left, to_right, &mut right);
}

#[test]
fn nobody_else_can_take_the_address() {
    let (mut left, to_right, mut right) = tests::connected([builder(), builder()]);
    converse(&mut left, to_right, &mut right);
    assert!(has_second(&left));
    let socket =
        rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::DGRAM, None).unwrap();
    sockopt::set_socket_reuseaddr(&socket, true).unwrap();
    assert_eq!(rustix::net::bind(&socket, &left.local_addr()), Err(rustix::io::Errno::ADDRINUSE));
    assert!(UdpSocket::bind(left.local_addr()).is_err());
}

/// Addresses of IPv6, and an endpoint at all addresses of the host.
#[test]
fn an_only_peer_may_be_anywhere() {
    if !nocopy_lab::ipv6_or_skip() {
        return;
    }
    for (left, right) in [("[::1]:0", "[::1]:0"), ("0.0.0.0:0", "127.0.0.1:0"), ("[::]:0", "[::1]:0")] {
        let bind = |address: &str| builder().bind(address).unwrap();
        let (mut left, mut right) = (bind(left), bind(right));
        let to_right = left.start_connect(right.local_addr()).unwrap();
        wait_until("a connection", || {
            left.wait(Duration::ZERO).unwrap();
            right.wait(Duration::ZERO).unwrap();
            matches!(left.poll_event(), Some(Event::Connected(..)))
        });
        converse(&mut left, to_right, &mut right);
        assert!(has_second(&left) && has_second(&right), "{}", left.explain());
    }
}
