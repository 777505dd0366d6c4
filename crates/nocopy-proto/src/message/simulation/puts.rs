//! Programs that write to each other's memory: what they put, what is placed, and how that is answered.

use std::collections::VecDeque;

use super::host::{Host, Truth};
use crate::message::framing::{self, Laid};
use crate::message::wire::HEADER_BYTES;
use crate::message::{
    BesideError, Endpoint, Event, Kind, PUT_HEADER_BYTES, Peer, PutHeader, PutRefusal, Regions, Time,
    parse_put_answer, put_answer,
};

/// Bytes in front of those of a put that is alone in its unit.
const FRONT_BYTES: usize = HEADER_BYTES + 8 + PUT_HEADER_BYTES;

/// A host's memory for others, and what it writes to theirs.
#[derive(Debug, Default)]
pub(super) struct Puts {
    pub(super) regions: Regions<Vec<u8>>,
    /// Puts of peers that were done here, in order.
    pub(super) placed: Vec<(Peer, PutHeader, usize)>,
    /// How many of those were written to their place on arrival.
    pub(super) straight: usize,
    /// Puts to be sent, with their peers.
    pub(super) to_put: VecDeque<(Peer, PutHeader, Vec<u8>)>,
    /// Numbers of puts without an answer yet.
    asked: VecDeque<u32>,
    next: u32,
    /// How each put was answered, in their order, and when.
    pub(super) results: Vec<(Time, Result<(), PutRefusal>)>,
    /// Why the last attempt to send a put failed.
    pub(super) refused: Option<BesideError>,
}

impl Puts {
    /// Writes a put to its place on arrival, if none before it waits to be written; returns the part of its
    /// unit that is kept.
    pub(super) fn place_straight(
        &mut self,
        endpoint: &Endpoint<Vec<u8>, Vec<u8>>,
        peer: Peer,
        unit: &[u8],
    ) -> Option<Vec<u8>> {
        let main = endpoint.main_of(peer).filter(|_| !endpoint.has_unplaced(peer))?;
        let (kind, bytes) = framing::whole_header(&unit[HEADER_BYTES..])?;
        let is_alone = HEADER_BYTES + 8 + bytes == unit.len();
        if !matches!(kind, Kind::Request(_)) || !is_alone || bytes < PUT_HEADER_BYTES || bytes % 3 == 0 {
            return None;
        }
        let (front, bytes) = unit.split_at(FRONT_BYTES);
        let put = PutHeader::parse(front.last_chunk()?);
        let (_, memory, range) = self.regions.place(main, &put, bytes.len()).ok()?;
        memory[range].copy_from_slice(bytes);
        self.straight += 1;
        Some(front.to_vec())
    }

    fn place(&mut self, main: Peer, message: &[u8], placed: Option<usize>) -> Result<(), PutRefusal> {
        let (header, bytes) = message.split_first_chunk().ok_or(PutRefusal::NoRegion)?;
        let put = PutHeader::parse(header);
        let length = placed.unwrap_or(bytes.len());
        let (_, memory, range) = self.regions.place(main, &put, length)?;
        if placed.is_none() {
            memory[range].copy_from_slice(bytes);
        }
        self.placed.push((main, put, length));
        Ok(())
    }
}

impl Host {
    /// Writes and answers arrived puts, records arrived answers, and sends puts while there is room. Whether
    /// anything was done.
    pub(super) fn see_to_puts(&mut self, now: Time, truth: &mut Truth) -> bool {
        let mut news = false;
        while let Some(event) = self.endpoint.poll_event_beside() {
            news = true;
            match event {
                Event::Connected(peer, _) if self.opens_streams_at_once() => self.wants_streams.push(peer),
                Event::Lost(..) | Event::Closed(_) => {
                    let unknown = (now, Err(PutRefusal::Unknown));
                    self.puts.results.extend(self.puts.asked.drain(..).map(|_| unknown));
                }
                _ => {}
            }
        }
        while let Some(next) = self.endpoint.peek_beside(|_| true) {
            let ((peer, kind), is_placed) = (next.is_of(), next.is_placed());
            if matches!(kind, Kind::Request(_)) && self.endpoint.room(peer) == Ok(0) {
                let _ = self.endpoint.want_room(peer, 1);
                break;
            }
            news = true;
            let Some(main) = self.endpoint.main_of(peer) else {
                truth.fault(|| "a put by no peer".into());
                return false;
            };
            let placed = is_placed.then(|| next.bytes() - PUT_HEADER_BYTES);
            let message = self.endpoint.receive_next(next);
            let mut bytes: Vec<u8> = message.pieces().flatten().copied().collect();
            if is_placed {
                message.take(|piece| {
                    let crate::message::Piece::Datagram(front, _) = piece else { return };
                    bytes = front[FRONT_BYTES - PUT_HEADER_BYTES..].to_vec();
                    self.kept -= 1;
                    self.inbox.kept -= 1;
                });
            } else {
                drop(message);
            }
            match kind {
                Kind::Request(number) => {
                    let answer = put_answer(self.puts.place(main, &bytes, placed));
                    let mut packet = vec![0; 8];
                    framing::put_whole_header(Kind::Response(number), answer.len(), &mut packet);
                    packet.extend_from_slice(&answer);
                    self.queued += 1;
                    self.endpoint.queue(peer, packet).expect("there was room");
                }
                Kind::Response(number) if self.puts.asked.pop_front() == Some(number) => {
                    self.puts.results.push((now, parse_put_answer(&bytes)));
                }
                _ => truth.fault(|| format!("{kind:?} is no answer")),
            }
        }
        news | self.put(now)
    }

    fn put(&mut self, now: Time) -> bool {
        let mut news = false;
        while let Some((main, put, bytes)) = self.puts.to_put.front() {
            let peer = match self.endpoint.connect_beside(now, *main) {
                Ok(peer) => peer,
                Err(error) => {
                    self.puts.refused = Some(error);
                    return news;
                }
            };
            let message = [&put.bytes()[..], bytes].concat();
            let kind = Kind::Request(self.puts.next);
            let payload_bytes_max = self.endpoint.payload_bytes_max(peer).unwrap_or(0);
            if payload_bytes_max == 0 {
                return news;
            }
            let by_stream =
                self.settings.streams.as_ref().is_some_and(|streams| {
                    self.endpoint.has_stream(peer) && message.len() >= streams.from_bytes
                });
            let (is_sent, packets) = if by_stream {
                let mut unit = vec![0; 8];
                framing::put_whole_header(kind, message.len(), &mut unit);
                unit.extend_from_slice(&message);
                let mut laid = Laid::default();
                laid.add(kind, message.len(), payload_bytes_max);
                let (span, bytes) = (laid.packets() as u32, unit.len() as u32);
                (self.endpoint.queue_unit(peer, unit, span, bytes).is_ok(), 1)
            } else {
                let chunks = framing::chunks(kind, message.len(), 0, payload_bytes_max);
                let mut packets: Vec<_> =
                    chunks.map(|chunk| [chunk.header(), &message[chunk.range.clone()]].concat()).collect();
                let count = packets.len();
                (self.endpoint.queue_all(peer, &mut packets).is_ok(), count)
            };
            if !is_sent {
                return news;
            }
            self.queued += packets;
            self.puts.asked.push_back(self.puts.next);
            self.puts.next += 1;
            self.puts.to_put.pop_front();
            news = true;
        }
        news
    }

    /// Registers memory that a peer may write to.
    #[cfg(test)]
    pub(super) fn register(&mut self, writer: Peer, bytes: usize) -> crate::message::Region {
        self.endpoint.take_puts_of(writer);
        self.puts.regions.register(writer, vec![0; bytes], bytes as u64)
    }
}
