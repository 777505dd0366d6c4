//! Events of the feature `tracing`, over sockets of this machine.

use std::io::Read;
use std::net::UdpSocket;

use nocopy::tcp::{Listener, Stream};
use nocopy::udp::{Method, Sender, Socket};
use nocopy::{BufferMut, Evidence, Ledger};
use tracing::Level;

use crate::common::events::{events_of, first_copies};
use crate::common::{PATIENCE, area_with_frames_of, lab};
use crate::udp_by_port::{kernel_receiver, port_sender, wait_until_port_is_used};

fn causes(ledger: Ledger) -> Vec<String> {
    let copied = ledger.into_iter().filter_map(|(evidence, _)| match evidence {
        Evidence::Copied(cause) => Some(cause.to_string()),
        _ => None,
    });
    copied.collect()
}

#[test]
fn a_udp_socket_reports_the_first_copy_of_each_cause() {
    let mut socket = Socket::bind("127.0.0.1:0").unwrap();
    let to = socket.local_addr().unwrap();
    let exchange = |socket: &mut Socket, rounds: usize| {
        for _ in 0..rounds {
            socket.sender().send_to(vec![1; 100], to).unwrap();
            socket.sender().flush().unwrap();
            socket.sender().send_copy_to(&[2; 100], to).unwrap();
            let mut left = 2;
            while left > 0 {
                left -= socket.receiver().receive_timeout(PATIENCE).unwrap().count();
            }
        }
    };
    let first = events_of(|| exchange(&mut socket, 1));
    let expected = [
        ("udp sender", "below threshold"),
        ("udp sender", "given as a slice"),
        ("udp receiver", "socket call"),
    ];
    assert_eq!(first_copies(&first), expected);
    assert_eq!(causes(socket.sender().ledger()), ["below threshold", "given as a slice"]);
    assert_eq!(causes(socket.receiver().ledger()), ["socket call"]);
    let others = events_of(|| exchange(&mut socket, 5000));
    assert!(others.is_empty(), "of 10,000 calls without a change: {others:?}");
}

#[test]
fn a_copy_through_the_kernel_beside_a_port_is_reported_at_once() {
    let lab = lab!();
    let end = lab.left();
    let mut sender = port_sender(&lab, None, &area_with_frames_of(4096));
    let here = end.namespace().run(|| UdpSocket::bind((end.ipv4(), 0)).unwrap());
    let send = |sender: &mut Sender| sender.send_copy_to(&[1; 100], here.local_addr().unwrap()).unwrap();
    let first = events_of(|| send(&mut sender)); // nothing is queued, so nothing is flushed
    assert_eq!(first_copies(&first), [("udp sender", "socket call")]);
    assert_eq!(causes(sender.ledger()), ["socket call"]);
    let others = events_of(|| (0..1000).for_each(|_| send(&mut sender)));
    assert!(others.is_empty(), "{others:?}");
}

/// A slice is copied into a frame, or sent by a call while the program has all frames.
#[test]
fn a_cause_of_both_a_port_and_the_kernel_is_reported_once() {
    let lab = lab!();
    let (receiver, to) = kernel_receiver(&lab);
    let mut sender = port_sender(&lab, Some(Method::Xdp), &area_with_frames_of(4096));
    let mut over_port = Vec::new();
    let events = events_of(|| {
        wait_until_port_is_used(&mut sender, &receiver, to);
        for held in [0, usize::MAX] {
            let held: Vec<BufferMut> = std::iter::from_fn(|| sender.buffer()).take(held).collect();
            sender.send_copy_to(&[1; 100], to).unwrap();
            sender.flush().unwrap();
            drop(held);
            assert!(sender.drain(PATIENCE).unwrap());
            over_port.push(sender.stats().get("over_port").unwrap());
        }
    });
    assert_eq!(over_port, [2, 2], "the last one was sent by a call");
    let of_socket = first_copies(&events).into_iter().filter(|(half, _)| *half == "udp sender");
    let mut reported: Vec<_> = of_socket.map(|(_, cause)| cause).collect();
    let mut copied = causes(sender.ledger());
    reported.sort_unstable();
    copied.sort_unstable();
    assert_eq!(reported, copied);
}

#[test]
fn a_stream_reports_the_first_copy_of_each_cause() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let exchange = |stream: &mut Stream, peer: &mut Stream, rounds: usize| {
        for _ in 0..rounds {
            stream.sender().send(vec![1; 100]).unwrap();
            stream.sender().flush().unwrap();
            assert_eq!(peer.receiver().receive_timeout(PATIENCE).unwrap().expect("bytes").len(), 100);
            stream.sender().send_copy(&[2; 100]).unwrap();
            peer.receiver().read_exact(&mut [0; 100]).unwrap();
        }
    };
    let mut both = None;
    let opened = events_of(|| {
        let stream = Stream::connect(address).unwrap();
        both = Some((stream, listener.accept().unwrap().0));
    });
    assert!(opened.is_empty(), "what a half explains from the beginning: {opened:?}");
    let (mut stream, mut peer) = both.unwrap();
    let first = events_of(|| exchange(&mut stream, &mut peer, 1));
    let expected = [
        ("tcp sender", "below threshold"),
        ("tcp receiver", "socket call"),
        ("tcp sender", "given as a slice"),
        ("tcp receiver", "given as a slice"),
    ];
    assert_eq!(first_copies(&first), expected);
    assert_eq!(causes(stream.sender().ledger()), ["below threshold", "given as a slice"]);
    assert_eq!(causes(peer.receiver().ledger()), ["socket call", "given as a slice"]);
    let others = events_of(|| exchange(&mut stream, &mut peer, 1000));
    assert!(others.is_empty(), "{others:?}");
}

#[test]
fn a_method_that_a_stream_loses_is_one_event() {
    let listener = Listener::bind("127.0.0.1:0").unwrap();
    let mut stream = Stream::connect(listener.local_addr().unwrap()).unwrap();
    let lost = events_of(|| {
        stream.sender().kernel_socket().unwrap(); // others may send on it from here on
        stream.sender().kernel_socket().unwrap();
    });
    let [event] = &lost[..] else { panic!("{lost:?}") };
    assert_eq!((event.message(), event.level), ("method ruled out", Level::INFO));
    assert_eq!(event.field("half"), "tcp sender");
    let explained = stream.sender().explain().to_string();
    let line = format!("{} is ruled out: {}", event.field("method"), event.field("reason"));
    assert!(explained.lines().any(|explained| explained == line), "{line}\n{explained}");
}

/// Whatever this machine measures to be fastest.
#[test]
fn each_change_of_a_measured_method_is_an_event() {
    let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut socket = Socket::bind("127.0.0.1:0").unwrap();
    let mut changes = 0;
    for _ in 0..2000 {
        let events = events_of(|| {
            for _ in 0..32 {
                let mut buffer = loop {
                    match socket.sender().buffer() {
                        Some(buffer) => break buffer,
                        None => assert!(socket.sender().drain(PATIENCE).unwrap()),
                    }
                };
                buffer.resize(1400);
                socket.sender().send_to(buffer, peer.local_addr().unwrap()).unwrap();
            }
            socket.sender().flush().unwrap();
        });
        for event in events.iter().filter(|event| event.message() == "method changed") {
            changes += 1;
            let explained = socket.sender().explain().to_string();
            let line = format!("{}: {},", event.field("work"), event.field("method"));
            assert!(explained.contains(&line), "{line}\n{explained}");
        }
    }
    let explained = socket.sender().explain().to_string();
    let counted = explained.lines().filter_map(|line| line.split_once(", changed ").map(|(_, times)| times));
    let counted = counted.map(|times| match times {
        "once" => 1,
        many => many.trim_end_matches(" times").parse::<u32>().unwrap(),
    });
    assert_eq!(changes, counted.sum::<u32>(), "{explained}");
}
