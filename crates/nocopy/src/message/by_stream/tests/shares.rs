//! Many streams of one address, and those of another one beside them.

use std::net::SocketAddr;

use super::*;
use crate::memory::pool::Buffer;
use crate::message::sent_shares::Free;

const MANY: [u8; 4] = [127, 0, 0, 2];
const ANOTHER: [u8; 4] = [127, 0, 0, 1];

fn bind_at(ip: [u8; 4]) -> Endpoint {
    Endpoint::builder().streams(true).bind(SocketAddr::from((ip, 0))).unwrap()
}

/// Connects to a server once more, with a stream.
fn join(client: &mut Endpoint, server: &mut Endpoint) -> Peer {
    let to_server = client.start_connect(server.local_addr()).unwrap();
    wait_until("a connection", || {
        client.wait(Duration::ZERO).unwrap();
        server.wait(Duration::ZERO).unwrap();
        matches!(client.poll_event(), Some(Event::Connected(peer, _)) if peer == to_server)
    });
    open_stream(client, to_server, server);
    to_server
}

/// Sends a message to a server, which answers with the same; returns what the server calls the client.
fn ask(client: &mut Endpoint, to_server: Peer, server: &mut Endpoint, message: &[u8]) -> Peer {
    let (mut is_asked, mut answer, mut from) = (false, None, None);
    wait_until("the answer", || {
        is_asked = is_asked || client.send_to(message.to_vec(), to_server).is_ok();
        client.flush().unwrap();
        if let Some(came) = client.try_receive().unwrap() {
            return came.to_vec() == message;
        }
        if let Some(came) = server.try_receive().unwrap() {
            answer = Some((came.peer(), came.to_vec()));
        }
        if let Some((peer, bytes)) = &answer
            && server.send_to(bytes.clone(), *peer).is_ok()
        {
            (answer, from) = (None, Some(*peer));
        }
        server.flush().unwrap();
        false
    });
    from.expect("it has answered")
}

/// A new connection, as its client and its server know it.
fn join_both(client: &mut Endpoint, server: &mut Endpoint) -> (Peer, Peer) {
    let to_server = join(client, server);
    let to_client = ask(client, to_server, server, b"who am I");
    (to_server, to_client)
}

/// An address with more unfinished units than there is memory for stops no other one.
#[test]
fn unfinished_units_of_one_address_leave_memory_to_others() {
    const BUFFERS: u32 = 4;
    let [mut server, mut many, mut another] = [ANOTHER, MANY, ANOTHER].map(bind_at);
    server.streams.as_mut().unwrap().limit(100, BUFFERS).unwrap();
    let peers: Vec<Peer> = (0..3 * BUFFERS).map(|_| join(&mut many, &mut server)).collect();
    let (to_server, to_another) = join_both(&mut another, &mut server);
    for peer in peers {
        // Beside a message by a datagram only a part of it is sent.
        many.send_copy_to(&[1; 10], peer).unwrap();
        many.send_to(vec![1; 240_000], peer).unwrap();
        many.flush().unwrap();
    }
    wait_until("their units wait", || {
        while server.try_receive().unwrap().is_some() {}
        counter(&server, "units_without_memory") > 0
    });
    let before = counter(&server, "units_received");
    for number in 0..30 {
        ask(&mut another, to_server, &mut server, &[number; 100_000]);
    }
    assert_eq!(counter(&server, "units_received") - before, 30, "they went by the stream");
    assert_eq!(server.streams.as_ref().unwrap().waited(to_another), 0, "{}", server.stats());
}

/// A peer is not ended because the program reads nothing, and there is no memory for its next message.
#[test]
fn a_peer_whose_unit_waits_for_memory_is_kept() {
    let [mut server, mut many, mut another] = [ANOTHER, MANY, ANOTHER].map(bind_at);
    server.streams.as_mut().unwrap().limit(100, 1).unwrap();
    let peers = [(); 4].map(|()| join(&mut many, &mut server));
    let (to_server, to_another) = join_both(&mut another, &mut server);
    for peer in peers {
        many.send_to(vec![1; 240_000], peer).unwrap();
    }
    wait_until("all memory is taken", || {
        many.flush().unwrap();
        many.wait(Duration::ZERO).unwrap();
        server.wait(Duration::ZERO).unwrap();
        counter(&server, "units_without_memory") > 0
    });
    for message in [vec![2; 100_000], vec![3; 10]] {
        another.send_to(message, to_server).unwrap();
        another.flush().unwrap();
    }
    wait_until("others would be ended", || {
        for endpoint in [&mut server, &mut many, &mut another] {
            endpoint.wait(Duration::ZERO).unwrap();
        }
        server.streams.as_ref().unwrap().lacked() >= Duration::from_secs(5)
    });
    assert!(server.streams.as_ref().unwrap().waited(to_another) > 0, "it has no memory");
    let mut left = vec![10, 100_000];
    wait_until("its messages", || {
        many.wait(Duration::ZERO).unwrap();
        another.wait(Duration::ZERO).unwrap();
        while let Some(message) = server.try_receive().unwrap() {
            if message.peer() == to_another {
                assert_eq!(Some(message.len()), left.pop());
            }
        }
        left.is_empty()
    });
}

/// An address that has all places for streams gives one to another address, and goes on by datagrams.
#[test]
fn streams_of_one_address_leave_places_to_others() {
    const STREAMS: usize = 6;
    let [mut server, mut many, mut another] = [ANOTHER, MANY, ANOTHER].map(bind_at);
    server.streams.as_mut().unwrap().limit(STREAMS, 8).unwrap();
    let peers: Vec<Peer> = (0..STREAMS).map(|_| join(&mut many, &mut server)).collect();
    let mut others = Vec::new();
    for cut in 1..=STREAMS as u64 / 2 {
        others.push(join(&mut another, &mut server));
        assert!(counter(&server, "streams_cut") >= cut, "{}", server.stats());
    }
    for (client, peers) in [(&mut many, peers), (&mut another, others)] {
        for peer in peers {
            ask(client, peer, &mut server, &[7; 100_000]);
        }
    }
}

/// Owned messages that the connections of one address do not acknowledge leave memory for those to others.
#[test]
fn owned_messages_to_one_address_leave_memory_to_others() {
    const CONNECTIONS: usize = 60;
    let bytes = std::sync::Arc::new(vec![5; 1 << 20]);
    let message = || [Buffer::from_shared(std::sync::Arc::clone(&bytes), |bytes| &bytes[..])];
    let [mut server, mut many, mut another] = [ANOTHER, MANY, ANOTHER].map(bind_at);
    server.streams.as_mut().unwrap().limit(2 * CONNECTIONS, 8).unwrap();
    let peers: Vec<Peer> = (0..CONNECTIONS).map(|_| join_both(&mut many, &mut server).1).collect();
    let (_, to_another) = join_both(&mut another, &mut server);
    for peer in peers {
        while server.send_to(message(), peer).is_ok() {}
    }
    let Free { left, all } = server.streams.as_ref().unwrap().room_for_owned();
    assert!(left > all / 4 && left < all * 3 / 4, "{left} of {all}");
    let before = server.sent.by_stream;
    server.send_to(message(), to_another).unwrap();
    assert_eq!(server.sent.by_stream - before, bytes.len() as u64, "there is room for another address");
}
