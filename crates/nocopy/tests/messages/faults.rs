//! Messages while the network fails, and connections that end.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::message::{connect, pattern, receive};
use crate::common::stream::drop_all_packets;
use crate::common::{PATIENCE, SECOND, lab};
use nocopy::message::{Builder, Endpoint, Event, LostReason};
use nocopy::{Port, Reason};
use nocopy_lab::End;

fn over_sockets(end: &End, set: impl FnOnce(Builder) -> Builder + Send) -> Endpoint {
    let address = SocketAddr::new(end.ipv4().into(), 0);
    end.namespace().run(|| set(Endpoint::builder()).bind(address)).expect("bound")
}

fn over_port(end: &End) -> Endpoint {
    let address = SocketAddr::new(end.ipv4().into(), 0);
    let open = || Endpoint::builder().port(Port::builder(end.interface())).bind(address);
    end.namespace().run(open).expect("opened")
}

/// Runs an endpoint until it has an event, and returns that.
fn event(endpoint: &mut Endpoint, other: Option<&mut Endpoint>) -> Event {
    let (give_up, mut other) = (Instant::now() + PATIENCE, other);
    loop {
        assert!(Instant::now() < give_up, "no event");
        if let Some(other) = &mut other {
            other.wait(Duration::ZERO).unwrap();
        }
        endpoint.wait(Duration::from_millis(1)).unwrap();
        if let Some(event) = endpoint.poll_event() {
            return event;
        }
    }
}

#[test]
fn what_is_lost_is_sent_again() {
    for by_port in [false, true] {
        let lab = lab!();
        let mut left =
            if by_port { over_port(lab.left()) } else { over_sockets(lab.left(), |builder| builder) };
        let mut right = over_sockets(lab.right(), |builder| builder);
        let (to_right, _) = connect(&mut left, &mut right);
        for round in 0..3 {
            let Some(loss) = drop_all_packets(&lab) else { return };
            for number in 0..50 {
                left.send_copy_to(&pattern(round * 50 + number, 700), to_right).unwrap();
            }
            left.flush().unwrap();
            let (until, give_up) = (Instant::now() + SECOND / 20, Instant::now() + PATIENCE);
            while Instant::now() < until || loss.packets().unwrap() == 0 {
                assert!(Instant::now() < give_up, "nothing is lost");
                left.wait(Duration::from_millis(1)).unwrap();
                right.wait(Duration::ZERO).unwrap();
            }
            drop(loss);
            for number in 0..50 {
                assert!(receive(&mut left, &mut right).2 == pattern(round * 50 + number, 700));
            }
        }
        assert!(left.stats().get("packets_sent_again").unwrap() > 0);
    }
}

#[test]
fn both_ends_finish_and_are_told() {
    let lab = lab!();
    let (mut left, mut right) = (over_port(lab.left()), over_sockets(lab.right(), |builder| builder));
    let (to_right, to_left) = connect(&mut left, &mut right);
    left.send_copy_to(b"the last", to_right).unwrap();
    left.finish(to_right).unwrap();
    assert!(matches!(left.send_copy_to(b"more", to_right), Err(Reason::Finished)));
    assert_eq!(receive(&mut left, &mut right).2, b"the last");
    assert_eq!(event(&mut right, Some(&mut left)), Event::Finished(to_left));
    right.send_copy_to(b"and mine", to_left).unwrap();
    right.finish(to_left).unwrap();
    assert_eq!(receive(&mut right, &mut left).2, b"and mine");
    assert_eq!(event(&mut left, Some(&mut right)), Event::Finished(to_right));
    assert_eq!(event(&mut left, Some(&mut right)), Event::Closed(to_right));
    assert_eq!(event(&mut right, Some(&mut left)), Event::Closed(to_left));
}

#[test]
fn a_peer_that_goes_says_so_and_one_that_is_silent_is_lost() {
    let lab = lab!();
    // Longer than a machine stalls; otherwise the connecting endpoint would be silent for too long.
    let short = |builder: Builder| builder.keep_alive(SECOND / 2).dead_after(4 * SECOND);
    let (mut left, mut right) = (over_sockets(lab.left(), short), over_port(lab.right()));
    let (to_right, _) = connect(&mut left, &mut right);
    drop(right);
    // docs/protocol.md §11: the endpoint was closed.
    assert_eq!(event(&mut left, None), Event::Lost(to_right, LostReason::Aborted { code: 1 }));

    let mut right = over_sockets(lab.right(), |builder| builder);
    let (to_right, _) = connect(&mut left, &mut right);
    assert_eq!(event(&mut left, None), Event::Lost(to_right, LostReason::Silent));
    assert!(matches!(left.send_copy_to(b"there?", to_right), Err(Reason::Gone)));
}

#[test]
fn an_interface_that_goes_is_an_error_of_who_waits_at_a_port() {
    for delete in [false, true] {
        let lab = lab!();
        let (mut left, mut right) = (over_port(lab.left()), over_sockets(lab.right(), |builder| builder));
        let (to_right, _) = connect(&mut left, &mut right);
        match delete {
            true => lab.delete_pair().unwrap(),
            false => lab.left().set_down().unwrap(),
        }
        left.send_copy_to(b"into nothing", to_right).unwrap();
        let give_up = Instant::now() + PATIENCE;
        let error = loop {
            assert!(Instant::now() < give_up, "no error");
            if let Err(error) = left.receive_timeout(SECOND / 5) {
                break error;
            }
        };
        assert!(!matches!(error.kind(), ErrorKind::Interrupted | ErrorKind::WouldBlock), "{error}");
        if delete {
            continue;
        }
        lab.left().bring_interface_up().unwrap();
        lab.wait_for_carrier().unwrap();
        assert_eq!(receive(&mut left, &mut right).2, b"into nothing");
    }
}

#[test]
fn sockets_live_through_an_interface_that_was_down() {
    let lab = lab!();
    let mut left = over_sockets(lab.left(), |builder| builder);
    let mut right = over_sockets(lab.right(), |builder| builder);
    let (to_right, _) = connect(&mut left, &mut right);
    lab.right().set_down().unwrap();
    for number in 0..10 {
        left.send_copy_to(&pattern(number, 100), to_right).unwrap();
        left.wait(Duration::from_millis(5)).unwrap();
    }
    lab.right().bring_interface_up().unwrap();
    lab.wait_for_carrier().unwrap();
    for number in 0..10 {
        assert!(receive(&mut left, &mut right).2 == pattern(number, 100));
    }
}

#[test]
fn sockets_live_through_routes_and_addresses_that_go() {
    for (harm, mend) in [
        ("route add prohibit 10.77.0.2", "route del prohibit 10.77.0.2"),
        ("route add unreachable 10.77.0.2", "route del unreachable 10.77.0.2"),
        ("route add blackhole 10.77.0.2", "route del blackhole 10.77.0.2"),
        ("addr del 10.77.0.1/24 dev nc0", "addr add 10.77.0.1/24 dev nc0"),
    ] {
        let lab = lab!();
        let ip = |arguments: &str| {
            let done = lab
                .left()
                .namespace()
                .run(|| Command::new("ip").args(arguments.split(' ')).output().unwrap());
            assert!(done.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&done.stderr));
        };
        let mut left = over_sockets(lab.left(), |builder| builder);
        let mut right = over_sockets(lab.right(), |builder| builder);
        let (to_right, to_left) = connect(&mut left, &mut right);
        ip(harm);
        for number in 0..10 {
            left.send_copy_to(&pattern(number, 100), to_right).unwrap();
            left.wait(Duration::from_millis(5)).unwrap();
            right.send_copy_to(&pattern(number, 100), to_left).unwrap();
            right.wait(Duration::from_millis(5)).unwrap();
        }
        assert!(left.stats().get("datagrams_refused").unwrap() > 0, "{harm}: {}", left.stats());
        ip(mend);
        for number in 0..10 {
            assert!(receive(&mut left, &mut right).2 == pattern(number, 100), "{harm}");
        }
        for number in 0..10 {
            assert!(receive(&mut right, &mut left).2 == pattern(number, 100), "{harm}");
        }
    }
}
