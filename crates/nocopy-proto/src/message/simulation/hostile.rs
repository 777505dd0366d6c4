//! A hostile peer: it sets up a connection correctly and then violates every rule, with datagrams made by
//! hand, without an endpoint.

use std::net::SocketAddr;
use std::time::Duration;

use super::{HostId, World};
use crate::message::wire::{
    Connect, DATAGRAM_BYTES_MIN, Datagram, Flags, HEADER_BYTES, Header, HeaderKind, Hello, Parameters,
    Placement, Versions,
};

/// Longer than any answer takes on the links of these tests.
const ANSWER: Duration = Duration::from_millis(2);
/// How many packets fit into the queue of a link.
const BURST: usize = 256;

#[derive(Debug, Clone, Copy)]
pub(super) struct Hostile {
    address: SocketAddr,
    server: HostId,
    server_id: u64,
    /// The next packet expected from the server.
    expected: u32,
}

impl Hostile {
    /// Payload of the longest packets to the server.
    pub(super) const PAYLOAD_BYTES: usize = DATAGRAM_BYTES_MIN as usize - HEADER_BYTES;

    /// Connects from an address where no host is; `None` if the server does not answer.
    pub(super) fn connect(
        world: &mut World,
        server: HostId,
        address: SocketAddr,
        client_id: u64,
    ) -> Option<Self> {
        let mut datagram = Vec::new();
        Hello { versions: Versions::HERE, client_id }.emit(&mut datagram);
        let cookie = answer(world, server, address, datagram, |answer| match answer {
            Datagram::Cookie(cookie) => Some(cookie.cookie),
            _ => None,
        })?;
        let parameters = Parameters {
            datagram_bytes: DATAGRAM_BYTES_MIN,
            max_message_bytes: 1 << 16,
            initial_credit: 1_024,
            first_sequence: 0,
            crc: false,
            stream_key: None,
            placement: Placement::None,
        };
        let mut datagram = Vec::new();
        Connect { client_id, cookie, parameters }.emit(&mut datagram);
        let hostile = answer(world, server, address, datagram, |answer| match answer {
            Datagram::Accept(accept) => {
                let (server_id, expected) = (accept.server_id, accept.parameters.first_sequence);
                Some(Self { address, server, server_id, expected })
            }
            _ => None,
        })?;
        hostile.speak(world);
        Some(hostile)
    }

    /// Sends only a sign of life.
    pub(super) fn speak(&self, world: &mut World) {
        self.send(world, HeaderKind::Ack, 0, &[]);
    }

    pub(super) fn send_packets(&self, world: &mut World, numbers: std::ops::Range<u32>, payload: &[u8]) {
        for (count, number) in numbers.enumerate() {
            self.send(world, HeaderKind::Data, number, payload);
            if count % BURST == BURST - 1 {
                world.run(ANSWER);
            }
        }
        world.run(ANSWER);
    }

    /// Sends a packet with this number and payload; it arrives when the simulation continues.
    pub(super) fn send_packet(&self, world: &mut World, number: u32, payload: &[u8]) {
        self.send(world, HeaderKind::Data, number, payload);
    }

    /// The number of the next packet that the server expects, by its last acknowledgement.
    pub(super) fn next_number(&self, world: &World) -> u32 {
        let said = world.mail.iter().rev().filter(|(to, _)| *to == self.address);
        let mut numbers = said.filter_map(|(_, bytes)| match Datagram::parse(bytes) {
            Ok(Datagram::Ack(header, _) | Datagram::Data(header, _)) => Some(header.expected),
            _ => None,
        });
        numbers.next().unwrap_or(0)
    }

    fn send(&self, world: &mut World, kind: HeaderKind, sequence: u32, payload: &[u8]) {
        let header = Header {
            kind,
            flags: Flags::NONE,
            marked: 0,
            to: self.server_id,
            sequence,
            expected: self.expected,
            credit: self.expected.wrapping_add(1_024),
            sent: 0,
            echo: 0,
        };
        let mut bytes = [0; HEADER_BYTES];
        header.emit(&mut bytes);
        world.inject(self.address, self.server, [&bytes[..], payload].concat());
    }
}

/// Sends a datagram and returns what the answer contains.
fn answer<T>(
    world: &mut World,
    server: HostId,
    address: SocketAddr,
    datagram: Vec<u8>,
    read: impl Fn(Datagram<'_>) -> Option<T>,
) -> Option<T> {
    world.mail.clear();
    world.inject(address, server, datagram);
    world.run(ANSWER);
    world.mail.iter().find_map(|(to, bytes)| {
        let datagram = Datagram::parse(bytes).ok().filter(|_| *to == address)?;
        read(datagram)
    })
}
