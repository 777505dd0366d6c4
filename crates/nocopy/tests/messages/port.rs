//! Messages over ports, on a veth pair in a lab.
//!
//! ```text
//!   left: an endpoint over a port ──── right: one over a port, or over sockets
//! ```

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::message::{connect, echo, pattern, receive, send};
use crate::common::{PATIENCE, lab};
use nocopy::message::{Builder, Endpoint, Kind};
use nocopy::port::Wait;
use nocopy::{Buffer, Cause, Evidence, Port};
use nocopy_lab::End;
use nocopy_lab::patience::wait_until;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Port,
    Sockets,
}

fn endpoint(end: &End, way: Way, set: impl FnOnce(Builder) -> Builder + Send) -> Endpoint {
    let address = SocketAddr::new(end.ipv4().into(), 0);
    end.namespace().run(|| {
        let builder = set(Endpoint::builder());
        match way {
            Way::Port => builder.port(Port::builder(end.interface())).bind(address).expect("opened"),
            Way::Sockets => builder.bind(address).expect("bound"),
        }
    })
}

const WAYS: [(Way, Way); 3] = [(Way::Port, Way::Port), (Way::Port, Way::Sockets), (Way::Sockets, Way::Port)];

#[test]
fn messages_of_every_length_go_both_ways() {
    for (left, right) in WAYS {
        for crc in [false, true] {
            let lab = lab!();
            let mut left = endpoint(lab.left(), left, |builder| builder.crc(crc));
            let mut right = endpoint(lab.right(), right, |builder| builder);
            let (to_right, to_left) = connect(&mut left, &mut right);
            for (number, bytes) in
                [0, 1, 64, 1400, 1436, 1437, 3000, 100_000, 1 << 20].into_iter().enumerate()
            {
                let message = pattern(number, bytes);
                send(&mut left, &mut right, to_right, &message);
                assert!(receive(&mut left, &mut right) == (to_left, Kind::Plain, message), "{bytes} B");
                let message = pattern(number + 100, bytes);
                send(&mut right, &mut left, to_left, &message);
                assert!(receive(&mut right, &mut left) == (to_right, Kind::Plain, message), "{bytes} B back");
            }
            // Nothing here looks for frames that the kernel has sent (`reap`, `drain`).
            wait_until("everything is acknowledged", || {
                left.wait(Duration::ZERO).unwrap();
                right.wait(Duration::ZERO).unwrap();
                left.in_flight() + right.in_flight() == 0
            });
            drop((left, right));
        }
    }
}

fn sent_by_sockets(end: &End) -> u64 {
    let counts = end.namespace().run(|| std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap());
    let [names, values] = [0, 1].map(|line| {
        let line = counts.lines().filter(|line| line.starts_with("Udp: ")).nth(line).unwrap();
        line.split_whitespace()
    });
    names.zip(values).find(|(name, _)| *name == "OutDatagrams").unwrap().1.parse().unwrap()
}

#[test]
fn addresses_that_may_be_forged_are_answered_through_the_kernel() {
    let lab = lab!();
    let mut server = endpoint(lab.right(), Way::Port, |builder| builder);
    let mut client = endpoint(lab.left(), Way::Port, |builder| builder);
    assert_eq!(sent_by_sockets(lab.right()), 0);
    let (to_server, to_client) = connect(&mut client, &mut server);
    let cookies = sent_by_sockets(lab.right());
    assert!(cookies > 0, "a way was looked up for an address that nobody had proved to be at");
    for number in 0..10 {
        send(&mut client, &mut server, to_server, &pattern(number, 100));
        assert!(receive(&mut client, &mut server).2 == pattern(number, 100));
        send(&mut server, &mut client, to_client, &pattern(number, 100));
        assert!(receive(&mut server, &mut client).2 == pattern(number, 100));
    }
    assert_eq!((sent_by_sockets(lab.left()), sent_by_sockets(lab.right())), (0, cookies));
}

#[test]
fn long_packets_several_queues_and_the_longest_messages() {
    let labs = [nocopy_lab::Lab::builder().mtu(9000), nocopy_lab::Lab::builder().queues(2)];
    for builder in labs {
        let lab = lab!(builder);
        for (left, right) in WAYS {
            let set = |builder: Builder| builder.max_message_bytes(16 << 20);
            let mut left = endpoint(lab.left(), left, set);
            let mut right = endpoint(lab.right(), right, set);
            let (to_right, to_left) = connect(&mut left, &mut right);
            for (number, bytes) in [64, 5000, 16 << 20].into_iter().enumerate() {
                let message = pattern(number, bytes);
                send(&mut left, &mut right, to_right, &message);
                assert!(receive(&mut left, &mut right) == (to_left, Kind::Plain, message), "{bytes} B");
            }
        }
    }
}

#[test]
fn a_message_in_buffers_cut_for_it_is_not_copied_by_us() {
    for (left, right) in WAYS {
        let lab = lab!();
        let mut sender = endpoint(lab.left(), left, |builder| builder.crc(true));
        let mut receiver = endpoint(lab.right(), right, |builder| builder);
        let (to_right, _) = connect(&mut sender, &mut receiver);
        let copied = |endpoint: &Endpoint| {
            [Cause::Gathered, Cause::Slice].map(|cause| endpoint.ledger().bytes_of(Evidence::Copied(cause)))
        };
        let before = copied(&sender);
        for (number, bytes) in [1000, 1424, 50_000].into_iter().enumerate() {
            let message = pattern(number, bytes);
            let mut rest = &message[..];
            let mut buffers = sender.buffers(bytes, to_right).unwrap();
            for buffer in &mut buffers {
                let part;
                (part, rest) = rest.split_at(buffer.len());
                buffer.fill(part).unwrap();
            }
            sender.send_to(buffers, to_right).unwrap();
            let (_, _, came) = receive(&mut sender, &mut receiver);
            assert!(came == message, "{bytes} B");
        }
        assert_eq!(copied(&sender), before, "{left:?}");
        // If it were cut differently it would still arrive.
        let message = pattern(9, 10_000);
        let parts: Vec<Buffer> = message.chunks(700).map(|part| Buffer::from(part.to_vec())).collect();
        sender.send_to(parts, to_right).unwrap();
        assert!(receive(&mut sender, &mut receiver).2 == message);
    }
}

#[test]
fn peers_that_acknowledge_nothing_leave_frames_for_others() {
    for is_owned in [false, true] {
        let lab = lab!();
        let mut server = endpoint(lab.right(), Way::Port, |builder| builder);
        let message = pattern(1, 1400);
        let send = |server: &mut Endpoint, peer| match is_owned {
            false => server.send_copy_to(&message, peer).is_ok(),
            true => server.buffers(message.len(), peer).is_ok_and(|mut buffers| {
                buffers[0].fill(&message).unwrap();
                server.send_to(buffers, peer).is_ok()
            }),
        };
        // The memory holds little more than two windows, and each of three peers may have one window in
        // flight (1,024 packets). They connect, and then do nothing.
        let silent: Vec<_> = (0..3)
            .map(|_| {
                let mut client = endpoint(lab.left(), Way::Sockets, |builder| builder);
                let (_, peer) = connect(&mut client, &mut server);
                while send(&mut server, peer) {}
                client
            })
            .collect();
        let mut client = endpoint(lab.left(), Way::Sockets, |builder| builder);
        let (_, peer) = connect(&mut client, &mut server);
        assert!(send(&mut server, peer), "a part of the frames is left");
        assert!(receive(&mut server, &mut client).2 == message);
        drop(silent);
    }
}

/// Acknowledgements through the kernel give their frames back, although nothing queued makes either end look
/// for free frames.
#[test]
fn acknowledgements_through_the_kernel_do_not_run_out_of_frames() {
    let lab = lab!();
    let mut receiver = endpoint(lab.left(), Way::Port, |builder| builder);
    let mut sender = endpoint(lab.left(), Way::Sockets, |builder| builder);
    let (peer, _) = connect(&mut sender, &mut receiver);
    for number in 0..200 {
        send(&mut sender, &mut receiver, peer, &pattern(number, 64));
        assert!(receive(&mut sender, &mut receiver).2 == pattern(number, 64));
        let give_up = Instant::now() + PATIENCE;
        while sender.peer_stats(peer).unwrap().in_flight > 0 {
            assert!(Instant::now() < give_up, "{number}: {:?}", receiver.stats());
            receiver.wait(Duration::from_micros(200)).unwrap();
            sender.wait(Duration::ZERO).unwrap();
        }
    }
    assert_eq!(receiver.stats().get("no_memory_to_send").unwrap(), 0);
}

#[test]
fn calls_are_answered_however_both_wait() {
    let coalesced = Wait::Coalesced { packets: 4, delay: Duration::from_millis(1) };
    let waits = [Wait::Spin, Wait::Interrupt, Wait::Adaptive { spin: Duration::from_micros(50) }, coalesced];
    for (left, right) in WAYS {
        for wait in waits {
            let lab = lab!();
            let server = endpoint(lab.right(), right, |builder| builder.wait(wait));
            let address = server.local_addr();
            std::thread::scope(|scope| {
                scope.spawn(move || echo(server, 1));
                let mut client = endpoint(lab.left(), left, |builder| builder.wait(wait));
                let peer = client.connect(address, PATIENCE).unwrap();
                for number in 0..200 {
                    let request = pattern(number, number * 20);
                    let response = client.call(request.clone(), peer, PATIENCE).unwrap();
                    assert!(response.to_vec() == request, "{wait:?}");
                }
                assert!(client.close(PATIENCE).unwrap());
            });
        }
    }
}
