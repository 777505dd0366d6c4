//! Puts: bytes that are written to memory of a peer (docs/protocol.md §17.2). They go by a separate
//! connection, which the program does not see.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::Arc;

use nocopy_proto::message::{
    BesideError, Event, Kind, Next, PUT_HEADER_BYTES, Peer, Piece, PutHeader, PutRefusal, Region,
    parse_put_answer, put_answer,
};

use super::{Front, Registered};
use crate::counter::counters;
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::pieces::Buffers;
use crate::memory::pool::Buffer;
use crate::message::carrier::Received;
use crate::message::endpoint::EVENTS_MAX;
use crate::message::{NonblockingEndpoint, Payload};

counters! {
    pub(in crate::message) struct PutCounters {
        /// Puts that were accepted for sending.
        puts_sent,
        /// Puts of peers that were read from a stream straight into the memory that was registered for them.
        puts_placed,
        /// Puts of peers that were copied there, once, from the packets that brought them.
        puts_gathered,
        /// Puts of peers that were refused.
        puts_refused,
    }
}

/// The puts of an endpoint, and those of its peers.
#[derive(Debug, Default)]
pub(in crate::message) struct Puts {
    /// Memory that peers may write to; `None` until some is registered.
    pub(super) registered: Option<Arc<Registered>>,
    /// Connections for puts that this end has made.
    ways: HashMap<Peer, Way>,
    /// Peers that have refused such a connection since the last put to them.
    refused: Vec<Peer>,
    /// Answers without room, at most one per connection: until it is sent, no other put of the connection is
    /// handled.
    answers: Vec<Answer>,
    /// The peer for which answers lie in an unsent packet.
    answered: Option<Peer>,
    next: u32,
    pub(in crate::message) counters: PutCounters,
    /// Bytes that were copied once more.
    pub(in crate::message) gathered_bytes: u64,
}

/// An answer to a put: by which connection, to which put, and its bytes.
type Answer = (Peer, u32, [u8; PUT_HEADER_BYTES]);

/// A connection for puts to a peer.
#[derive(Debug)]
struct Way {
    main: Peer,
    is_connected: bool,
    /// Whether a put was refused because there was no room.
    is_wanted: bool,
    /// Puts without an answer yet.
    asked: VecDeque<u32>,
}

/// The headers of a put that was read from its stream. Its bytes are in their place already, unless it was
/// refused.
#[derive(Debug)]
pub(in crate::message) struct Straight {
    pub(in crate::message) front: Front,
    pub(in crate::message) is_refused: bool,
}

impl AsRef<[u8]> for Straight {
    fn as_ref(&self) -> &[u8] {
        self.front.as_ref()
    }
}

impl NonblockingEndpoint {
    /// Writes bytes to memory that a peer has [registered](Self::register) for this end, beginning at byte
    /// `offset` of the region. Returns the put's number. One [`Event::PutDone`] or [`Event::PutRefused`] with
    /// this number follows for each put, in the order of puts. The bytes are sent from where they lie, and
    /// their buffers are free when the peer has acknowledged them.
    ///
    /// Puts to a peer are executed one after the other. Messages do not wait for puts: to send a message
    /// about a put, wait for the put's event first. Puts use a separate connection, which the first put
    /// opens; until it is open, puts are refused as `Full`. A peer reads puts from a stream straight into its
    /// memory, and copies those from datagrams once. If the program changes the bytes while a put is under
    /// way, the peer may get the changed ones.
    ///
    /// # Errors
    /// Returns the bytes with the [`Reason`]: those of [`send_to`](Self::send_to); `OutOfRange` if the bytes
    /// do not lie within the region; `NoRegion` if the peer has registered no memory for this end, or if its
    /// version does not know puts.
    pub fn put(
        &mut self,
        bytes: impl Into<Payload>,
        to: Peer,
        region: Region,
        offset: u64,
    ) -> Result<u32, Rejected<Payload>> {
        let Payload(buffers) = bytes.into();
        let length: usize = buffers.iter().map(|buffer| buffer.len()).sum();
        let way = match self.way_for(to, region, offset, length as u64) {
            Ok(way) => way,
            Err(reason) => return Err(Rejected { item: Payload(buffers), reason }),
        };
        let number = self.puts.next;
        let header = Buffer::from_owner(PutHeader::new(region, offset).bytes());
        let message: Buffers = std::iter::once(header).chain(buffers).collect();
        if let Err(Rejected { item: Payload(message), reason }) =
            self.send_as(Kind::Request(number), message, way)
        {
            let buffers = message.into_iter().skip(1).collect(); // without the header
            let reason = match reason {
                Reason::TooLong { bytes_max } => Reason::TooLong { bytes_max: bytes_max - PUT_HEADER_BYTES },
                // The connection for puts is gone; the next put makes another.
                Reason::Gone => Reason::Full,
                other => other,
            };
            if let Some(way) = self.puts.ways.get_mut(&way) {
                way.is_wanted |= matches!(reason, Reason::Full);
            }
            return Err(Rejected { item: Payload(buffers), reason });
        }
        self.puts.next = number.wrapping_add(1);
        self.puts.counters.puts_sent += 1;
        if let Some(way) = self.puts.ways.get_mut(&way) {
            way.asked.push_back(number);
        }
        Ok(number)
    }

    /// The connection for such a put.
    fn way_for(&mut self, to: Peer, region: Region, offset: u64, bytes: u64) -> Result<Peer, Reason> {
        if !self.protocol.has_peer(to) {
            return Err(Reason::Gone);
        }
        if self.peers.standing(to).is_ended {
            return Err(Reason::Finished);
        }
        if offset.checked_add(bytes).is_none_or(|end| end > region.bytes) {
            let end = offset.saturating_add(bytes);
            return Err(Reason::OutOfRange { start: offset, end, bytes: region.bytes });
        }
        if let Some(at) = self.puts.refused.iter().position(|peer| *peer == to) {
            self.puts.refused.swap_remove(at);
            return Err(Reason::NoRegion);
        }
        let way = match self.protocol.connect_beside(self.now(), to) {
            Ok(way) => way,
            Err(BesideError::Gone) => return Err(Reason::Gone),
            Err(BesideError::Full) => return Err(Reason::Full),
            Err(BesideError::NoPlace) => {
                let text = "there is no place for a connection for puts; raise peers_max";
                return Err(Reason::System(io::Error::new(io::ErrorKind::QuotaExceeded, text)));
            }
            Err(BesideError::Unknown) => return Err(Reason::NoRegion),
        };
        self.puts.ways.entry(way).or_insert_with(|| Way {
            main: to,
            is_connected: false,
            is_wanted: false,
            asked: VecDeque::new(),
        });
        Ok(way)
    }

    /// Forgets all puts to a peer, because the program ends the connection.
    pub(in crate::message) fn forget_puts(&mut self, to: Peer) {
        self.puts.ways.retain(|_, way| way.main != to);
        self.puts.refused.retain(|peer| *peer != to);
    }

    /// Handles connections for puts: notes their events, executes received puts, and answers them.
    #[cold]
    pub(in crate::message) fn see_to_puts(&mut self) {
        while let Some(event) = self.protocol.poll_event_beside() {
            self.note_beside(event);
        }
        for answer in std::mem::take(&mut self.puts.answers) {
            self.answer_put(answer);
        }
        while self.events.len() < EVENTS_MAX {
            let Self { protocol, puts, .. } = self;
            let next = protocol.peek_beside(|peer| !puts.answers.iter().any(|(waits, ..)| *waits == peer));
            let Some(next) = next else { break };
            self.take_put(next);
        }
        if let Some(peer) = self.puts.answered.take() {
            self.close_packet_of(peer);
        }
    }

    /// Whether [`see_to_puts`](Self::see_to_puts) has something to do.
    #[inline]
    pub(in crate::message) fn has_news_of_puts(&self) -> bool {
        self.protocol.has_news_beside() || !self.puts.answers.is_empty()
    }

    fn note_beside(&mut self, event: Event) {
        let peer = event.peer();
        let Some(way) = self.puts.ways.get_mut(&peer) else { return };
        let main = way.main;
        match event {
            Event::Connected(..) | Event::Writable(_) => {
                way.is_connected = true;
                if std::mem::take(&mut way.is_wanted) {
                    self.report(Event::Writable(main));
                }
            }
            Event::Lost(..) | Event::Closed(_) => {
                let Some(way) = self.puts.ways.remove(&peer) else { return };
                let Self { protocol, puts, .. } = self;
                puts.refused.retain(|peer| protocol.has_peer(*peer));
                if !way.is_connected && protocol.has_peer(main) {
                    puts.refused.push(main);
                }
                for number in way.asked {
                    self.report(Event::PutRefused(main, number, PutRefusal::Unknown));
                }
                if way.is_wanted && self.protocol.has_peer(main) {
                    self.report(Event::Writable(main));
                }
            }
            _ => {}
        }
    }

    fn report(&mut self, event: Event) {
        self.events.push_back(event);
        self.unreported = true;
    }

    /// Handles the next message of a connection for puts: executes a put, or notes an answer.
    fn take_put(&mut self, next: Next) {
        let ((peer, kind), is_straight) = (next.is_of(), next.is_placed());
        let main = self.protocol.main_of(peer);
        let message = self.protocol.receive_next(next);
        match (kind, main) {
            (Kind::Request(number), Some(main)) => {
                let registered = self.puts.registered.as_deref();
                let written = match registered.ok_or(PutRefusal::NoRegion) {
                    Ok(registered) if is_straight => straight(message, main, registered),
                    registered => {
                        let written = registered.and_then(|registered| gathered(&message, main, registered));
                        drop(message);
                        written
                    }
                };
                self.note_put(main, is_straight, written);
                self.answer_put((peer, number, put_answer(written.map(drop))));
            }
            (Kind::Response(number), _) => {
                let mut answer = [0; PUT_HEADER_BYTES];
                copy_from(message.pieces(), 0, &mut answer);
                drop(message);
                self.note_answer(peer, number, parse_put_answer(&answer));
            }
            _ => {} // nothing that is said there
        }
    }

    fn note_put(&mut self, from: Peer, is_straight: bool, written: Result<Written, PutRefusal>) {
        let counters = &mut self.puts.counters;
        let Ok((region, offset, bytes)) = written else {
            counters.puts_refused += 1;
            return;
        };
        if is_straight {
            counters.puts_placed += 1;
        } else {
            counters.puts_gathered += 1;
            self.puts.gathered_bytes += bytes as u64;
        }
        self.report(Event::Placed { from, region, offset, bytes });
    }

    /// Notes a peer's answer to a put. Puts are executed in order, so answers to others than the oldest are
    /// ignored.
    fn note_answer(&mut self, peer: Peer, number: u32, answer: Result<(), PutRefusal>) {
        let Some(way) = self.puts.ways.get_mut(&peer).filter(|way| way.asked.front() == Some(&number)) else {
            return;
        };
        way.asked.pop_front();
        let main = way.main;
        self.report(match answer {
            Ok(()) => Event::PutDone(main, number),
            Err(refusal) => Event::PutRefused(main, number, refusal),
        });
    }

    /// Sends an answer, or keeps it if there is no room for it.
    fn answer_put(&mut self, (peer, number, answer): Answer) {
        if let Some(before) = self.puts.answered.replace(peer).filter(|before| *before != peer) {
            self.close_packet_of(before);
        }
        let message = std::iter::once(Buffer::from_owner(answer)).collect();
        let sent = self.send_as(Kind::Response(number), message, peer);
        // If the connection is gone, nothing waits for it.
        if sent.is_err_and(|rejected| matches!(rejected.reason, Reason::Full)) {
            self.puts.answers.push((peer, number, answer));
        }
    }
}

/// The region, the offset and the number of bytes that were written.
pub(in crate::message) type Written = (Region, u64, usize);

pub(in crate::message) type Incoming<'a> =
    nocopy_proto::message::Message<'a, crate::message::carrier::Packet, Received>;

/// Checks a put whose bytes were read into their place.
pub(in crate::message) fn straight(
    message: Incoming<'_>,
    main: Peer,
    registered: &Registered,
) -> Result<Written, PutRefusal> {
    let bytes = message.len() - PUT_HEADER_BYTES;
    let mut kept = None;
    message.take(|piece| kept = Some(piece));
    let Some(Piece::Datagram(Received::Put(put), _)) = kept else {
        unreachable!("nothing else is placed there")
    };
    let header = PutHeader::parse(put.front.as_ref().last_chunk().expect("it ends with that of the put"));
    // A put that was refused on arrival stays refused; the region of another may have been withdrawn since.
    let region = registered.write(main, &header, bytes, |region, _| region)?;
    if put.is_refused { Err(PutRefusal::NoRegion) } else { Ok((region, header.offset, bytes)) }
}

/// Copies the bytes of a put into their place.
pub(in crate::message) fn gathered(
    message: &Incoming<'_>,
    main: Peer,
    registered: &Registered,
) -> Result<Written, PutRefusal> {
    let bytes = message.len().checked_sub(PUT_HEADER_BYTES).ok_or(PutRefusal::NoRegion)?;
    let mut header = [0; PUT_HEADER_BYTES];
    copy_from(message.pieces(), 0, &mut header);
    let header = PutHeader::parse(&header);
    registered.write(main, &header, bytes, |region, room| {
        copy_from(message.pieces(), PUT_HEADER_BYTES, room);
        (region, header.offset, bytes)
    })
}

/// Fills `room` with the bytes of the pieces from byte `skip` on.
fn copy_from<'a>(pieces: impl Iterator<Item = &'a [u8]>, mut skip: usize, mut room: &mut [u8]) {
    for piece in pieces {
        let part = piece.get(skip..).unwrap_or_default();
        skip = skip.saturating_sub(piece.len());
        let (filled, rest) = room.split_at_mut(part.len().min(room.len()));
        filled.copy_from_slice(&part[..filled.len()]);
        room = rest;
    }
}
