//! Events of the feature `tracing`, of an endpoint.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::thread;

use nocopy::message::{Endpoint, Kind, Message};

use crate::common::PATIENCE;
use crate::common::events::{events_of, first_copies};

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
