//! Events of the feature `tracing`, of an endpoint.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use nocopy::message::{Endpoint, Kind, Message};
use nocopy::{Cause, Evidence, Port};
use nocopy_lab::patience::wait_until;

use crate::common::events::{events_of, first_copies};
use crate::common::message::connect;
use crate::common::{PATIENCE, lab};

#[test]
fn an_endpoint_reports_the_first_copy_of_each_cause() {
    let mut server = Endpoint::bind("127.0.0.1:0").unwrap();
    let address = server.local_addr();
    let (end, ended) = mpsc::channel::<()>();
    // On a thread of its own, whose events are not recorded.
    let echo = thread::spawn(move || {
        while ended.try_recv() == Err(mpsc::TryRecvError::Empty) {
            let wait = PATIENCE / 10_000;
            let Some(request) = server.receive_timeout(wait).unwrap().map(Message::take) else { continue };
            let (Kind::Request(call), client) = (request.kind(), request.peer()) else { continue };
            server.respond(request, client, call).unwrap();
            server.flush().unwrap();
        }
    });
    let exchange = |client: &mut Endpoint, peer, count: usize| {
        for _ in 0..count {
            assert_eq!(client.call(vec![7; 100], peer, PATIENCE).unwrap().len(), 100);
            client.send_copy_to(b"not answered", peer).unwrap();
        }
        client.flush().unwrap();
    };
    let mut client = Endpoint::bind("127.0.0.1:0").unwrap();
    let (mut connected, mut ledger) = (None, None);
    let first = events_of(|| {
        let peer = client.connect(address, PATIENCE).unwrap();
        exchange(&mut client, peer, 2);
        ledger = Some(client.ledger());
        // What the last work copied is reported by the next.
        exchange(&mut client, peer, 1);
        connected = Some(peer);
    });
    let (peer, ledger) = (connected.unwrap(), ledger.unwrap());
    let copied = ledger.into_iter().map(|(evidence, _)| evidence.to_string());
    let expected: BTreeSet<_> = copied.collect();
    let reported = first_copies(&first).into_iter().map(|(half, cause)| {
        assert_eq!(half, "message endpoint");
        format!("copied ({cause})")
    });
    let reported: Vec<_> = reported.collect();
    assert_eq!(reported.iter().cloned().collect::<BTreeSet<_>>(), expected);
    assert_eq!(reported.len(), expected.len(), "each once: {reported:?}");
    let others = events_of(|| exchange(&mut client, peer, 1000));
    assert!(others.is_empty(), "{others:?}");
    end.send(()).unwrap();
    echo.join().unwrap();
}

/// Datagrams go over ports, which report their copies themselves.
#[test]
fn the_first_copy_by_which_a_stream_is_received_is_reported() {
    let lab = lab!();
    let [mut left, mut right] = [lab.left(), lab.right()].map(|end| {
        let builder = Endpoint::builder().streams(true).port(Port::builder(end.interface()));
        end.namespace().run(|| builder.bind(SocketAddr::new(end.ipv4().into(), 0)).unwrap())
    });
    let (to_right, _) = connect(&mut left, &mut right);
    let mut receive_units = |count: u64| {
        let goal = right.stats().get("units_received").unwrap() + count;
        let events = events_of(|| {
            wait_until("the units", || {
                // A stream is opened in the network namespace of the thread.
                lab.left().namespace().run(|| {
                    let _ = left.send_to(vec![7; 100_000], to_right); // unless there is no room now
                    left.flush().unwrap();
                    left.wait(Duration::ZERO).unwrap();
                });
                while right.try_receive().unwrap().is_some() {}
                right.stats().get("units_received").unwrap() >= goal
            });
            right.wait(Duration::ZERO).unwrap(); // what the last work copied is reported by the next
        });
        let of_endpoint = events.iter().filter(|event| event.field("half") == "message endpoint");
        of_endpoint.map(|event| event.field("cause").to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(receive_units(10), ["socket call"]);
    let others = receive_units(100);
    assert!(others.is_empty(), "{others:?}");
    assert!(right.ledger().bytes_of(Evidence::Copied(Cause::SocketCall)) > 11_000_000);
}
