//! Units between two endpoints on a table, without a stream: what comes by one is handed over here.

use super::*;
use crate::message::framing::Laid;
use crate::message::wire::{Attach, Connect, Datagram};

/// What endpoints with streams have in common here.
fn settings() -> Settings {
    Settings { streams: true, ..Settings::default() }
}

/// A unit of one plain message, and how many packets that would be.
fn unit(bytes: usize, payload_bytes_max: usize) -> (Vec<u8>, u32) {
    let mut header = [0; framing::CHUNK_HEADER_BYTES_MAX];
    let header_bytes = framing::put_whole_header(Kind::Plain, bytes, &mut header);
    let mut laid = Laid::default();
    laid.add(Kind::Plain, bytes, payload_bytes_max);
    ([&header[..header_bytes], &vec![7; bytes]].concat(), laid.packets() as u32)
}

/// A Connect that is the same but for the length of datagrams that it states.
fn shorter(connect: &[u8], datagram_bytes: u16) -> Vec<u8> {
    let Ok(Datagram::Connect(connect)) = Datagram::parse(connect) else { panic!("not a Connect") };
    let parameters = wire::Parameters { datagram_bytes, ..connect.parameters };
    let mut datagram = Vec::new();
    Connect { parameters, ..connect }.emit(&mut datagram);
    datagram
}

/// Both ends have asked for the other, and one has answered: which, the Connect that it answered, and the answer, which got lost.
fn answered(settings: &Settings) -> (Table, Peer, usize, Vec<u8>, wire::Accept) {
    let mut table = Table::new(settings);
    let peers = [0, 1].map(|host| table.hosts[host].connect(table.now, address(1 - host)).unwrap());
    let (mut connects, mut answer) = ([None, None], None);
    table.settle(|from, datagram| match Datagram::parse(datagram) {
        Ok(Datagram::Connect(_)) => {
            connects[from] = Some(datagram.to_vec());
            true
        }
        Ok(Datagram::Accept(accept)) => {
            answer = Some((from, accept));
            false
        }
        _ => true,
    });
    let (server, accept) = answer.expect("one of them answers");
    let connect = connects[1 - server].take().expect("it was answered");
    (table, peers[server], server, connect, accept)
}

/// Proves that what both ends agreed on for a stream is not changed by a Connect that comes later.
#[test]
fn an_attached_stream_keeps_the_length_of_packets() {
    let (mut table, peer, server, connect, accept) = answered(&settings());
    let client = 1 - server;
    let (host, now) = (&mut table.hosts[server], table.now);
    let payload_bytes_max = host.payload_bytes_max(peer).unwrap();
    let (bytes, span) = unit(4_000, payload_bytes_max);
    let unit_bytes = bytes.len() as u32;
    let refused = host.queue_unit(peer, bytes.clone(), span, unit_bytes);
    assert!(matches!(refused, Err((_, QueueError::Full))), "nothing was heard of the peer");
    assert_eq!(host.stream_to(peer).unwrap(), None, "nor does it know the key");
    let key = accept.parameters.stream_key.expect("it takes streams");
    let attach = Attach { to: accept.server_id, from: accept.client_id, key };
    let (attached, _) = host.attach(address(client).ip(), &attach).expect("it is right");
    assert_eq!(attached, peer);
    assert_eq!(host.poll_event(), Some(Event::Connected(peer, address(client))));
    host.stream_opened(peer).unwrap();
    host.queue_unit(peer, bytes, span, unit_bytes).unwrap();
    host.handle_datagram(now, address(client), false, shorter(&connect, 512));
    host.stream_cut(peer);
    let cut = host.next_cut(peer).expect("it is queued");
    let mut packets = 0;
    framing::lay_unit(cut.unit, cut.payload_bytes_max, |_, is_fresh| packets += usize::from(is_fresh));
    assert_eq!((packets, cut.payload_bytes_max), (span as usize, payload_bytes_max));
    host.replace_cut(peer, vec![Vec::new(); packets].into_iter());
}

/// Proves the same of packets that were queued for a peer of which nothing was heard.
#[test]
fn queued_packets_keep_the_length_of_packets() {
    let (mut table, peer, server, connect, _) = answered(&Settings::default());
    let (from, now) = (address(1 - server), table.now);
    let before = table.hosts[server].payload_bytes_max(peer).unwrap();
    table.hosts[server].handle_datagram(now, from, false, shorter(&connect, 1_000));
    let shortened = table.hosts[server].payload_bytes_max(peer).unwrap();
    assert!(shortened < before, "nothing is queued");
    table.send(server, peer, b"laid out for that");
    table.hosts[server].handle_datagram(now, from, false, shorter(&connect, 512));
    assert_eq!(table.hosts[server].payload_bytes_max(peer).unwrap(), shortened);
}
