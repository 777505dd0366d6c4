//! Messages in the payloads of packets: *chunks*, each with a header of 4, 8 or 12 bytes (docs/protocol.md
//! §4).
//!
//! A message that fits a packet is one chunk, and several such share a packet. A longer one begins in a fresh
//! packet, fills it and those that follow, and ends in its last chunk.

#[doc(hidden)]
pub mod oracle;

use std::ops::Range;

use super::Kind;
use super::wire::HEADER_BYTES;

/// Bytes of the longest header of a chunk.
pub const CHUNK_HEADER_BYTES_MAX: usize = 12;

const LENGTH_BITS: u32 = 28;

/// The kind and place of a whole message, which precede its length.
const WHOLE: u32 = 0;
const WHOLE_REQUEST: u32 = 1 << 2;
const WHOLE_RESPONSE: u32 = 2 << 2;

/// Where in its message a chunk is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is the whole message.
    Whole,
    /// The first of several.
    First,
    /// Neither the first nor the last.
    Middle,
    /// The last of several.
    Last,
}

/// A chunk in the payload of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The kind of the message. Only its first chunk has it; later chunks are `Plain`.
    pub kind: Kind,
    /// Where in the message it is.
    pub place: Place,
    /// Bytes of the whole message, where the chunk is its first; otherwise of the chunk.
    pub total_bytes: usize,
    /// Bytes in front of its bytes.
    pub header_bytes: usize,
    /// Where in the payload its bytes are.
    pub range: Range<usize>,
}

/// Why a payload cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Malformed {
    /// The payload ends in a chunk's header.
    #[error("the payload ends in the header of a chunk")]
    Cut,
    /// A chunk is longer than the rest of the payload.
    #[error("a chunk of {bytes} B has {left_bytes} B left in its packet")]
    TooLong {
        /// What it claims.
        bytes: usize,
        /// The length of the rest.
        left_bytes: usize,
    },
    /// No such kind of message.
    #[error("a chunk has an unknown kind")]
    Kind,
    /// A chunk of a message in several has no bytes.
    #[error("a piece of a message has no bytes")]
    Empty,
}

/// The chunk at byte `at` of a payload; `None` at its end.
///
/// # Errors
/// What lies there is no chunk.
#[inline]
pub fn chunk_at(payload: &[u8], at: usize) -> Result<Option<Chunk>, Malformed> {
    let Some(rest) = payload.get(at..).filter(|rest| !rest.is_empty()) else { return Ok(None) };
    let (word, mut rest) = split_number(rest)?;
    let length = (word & ((1 << LENGTH_BITS) - 1)) as usize;
    let place = match word >> LENGTH_BITS & 3 {
        0 => Place::Whole,
        1 => Place::First,
        2 => Place::Middle,
        _ => Place::Last,
    };
    let mut header_bytes = 4;
    let mut number = || {
        header_bytes += 4;
        split_number(rest).map(|(number, behind)| {
            rest = behind;
            number
        })
    };
    let total_bytes = if place == Place::First { number()? as usize } else { length };
    let begins = matches!(place, Place::Whole | Place::First);
    let kind = match word >> (LENGTH_BITS + 2) {
        0 => Kind::Plain,
        1 if begins => Kind::Request(number()?),
        2 if begins => Kind::Response(number()?),
        _ => return Err(Malformed::Kind),
    };
    if length > rest.len() {
        return Err(Malformed::TooLong { bytes: length, left_bytes: rest.len() });
    }
    if length == 0 && place != Place::Whole {
        return Err(Malformed::Empty);
    }
    let begin = at + header_bytes;
    Ok(Some(Chunk { kind, place, total_bytes, header_bytes, range: begin..begin + length }))
}

/// The kind and length of the message that begins with these bytes, if they are the header of a whole one,
/// which may end behind them.
#[inline]
pub fn whole_header(bytes: &[u8]) -> Option<(Kind, usize)> {
    let (word, rest) = bytes.split_first_chunk()?;
    let word = u32::from_be_bytes(*word);
    let call = || Some(u32::from_be_bytes(*rest.first_chunk()?));
    let kind = match word >> LENGTH_BITS {
        WHOLE => Kind::Plain,
        WHOLE_REQUEST => Kind::Request(call()?),
        WHOLE_RESPONSE => Kind::Response(call()?),
        _ => return None,
    };
    Some((kind, (word & ((1 << LENGTH_BITS) - 1)) as usize))
}

/// What the message is and where its bytes are, if the chunk at byte `at` of a payload is a whole one.
#[inline(always)] // for each message
pub(super) fn whole_at(payload: &[u8], at: usize) -> Option<(Kind, Range<usize>)> {
    let (word, rest) = payload.get(at..)?.split_first_chunk()?;
    let word = u32::from_be_bytes(*word);
    let bytes = (word & ((1 << LENGTH_BITS) - 1)) as usize;
    let call = || Some(u32::from_be_bytes(*rest.first_chunk()?));
    let (kind, header_bytes) = match word >> LENGTH_BITS {
        WHOLE => (Kind::Plain, 4),
        WHOLE_REQUEST => (Kind::Request(call()?), 8),
        WHOLE_RESPONSE => (Kind::Response(call()?), 8),
        _ => return None,
    };
    let begin = at + header_bytes;
    (bytes <= payload.len().checked_sub(begin)?).then_some((kind, begin..begin + bytes))
}

/// How many messages a payload holds, if there are some, all of them are whole, and none is longer than
/// `bytes_max`.
#[inline(always)] // for each packet
pub(super) fn whole_messages(payload: &[u8], bytes_max: usize) -> Option<usize> {
    let (mut rest, mut messages) = (payload, 0);
    while let Some((word, behind)) = rest.split_first_chunk() {
        let word = u32::from_be_bytes(*word);
        let bytes = (word & ((1 << LENGTH_BITS) - 1)) as usize;
        let call_bytes = match word >> LENGTH_BITS {
            WHOLE => 0,
            WHOLE_REQUEST | WHOLE_RESPONSE => 4,
            _ => return None,
        };
        if bytes > bytes_max {
            return None;
        }
        (rest, messages) = (behind.get(call_bytes + bytes..)?, messages + 1);
    }
    (messages > 0 && rest.is_empty()).then_some(messages)
}

/// Bytes of a packet in front of those of a message that it continues.
const CONTINUED_AT: usize = HEADER_BYTES + 4;

/// Where the bytes of a message lie in a run: packets, one after another, that hold nothing else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spread {
    /// Bytes of each packet but the last, which may be shorter.
    pub packet_bytes: u16,
    /// Bytes in front of those of the message, in the first packet.
    pub first: u16,
}

impl Spread {
    /// The pieces of the message.
    #[inline]
    pub fn pieces(self, run: &[u8]) -> impl Iterator<Item = &[u8]> {
        let mut front = usize::from(self.first);
        let packets = run.chunks(self.packet_bytes.into());
        packets.map(move |packet| &packet[std::mem::replace(&mut front, CONTINUED_AT)..])
    }

    /// Bytes of the message in a run of so many.
    #[inline]
    pub fn bytes(self, run_bytes: usize) -> usize {
        let others = run_bytes.saturating_sub(1) / usize::from(self.packet_bytes);
        run_bytes - usize::from(self.first) - others * CONTINUED_AT
    }
}

/// Whether a payload begins with the first of several chunks of a message.
#[inline]
pub(super) fn begins_long_one(payload: &[u8]) -> bool {
    payload.first().is_some_and(|first| first >> 4 & 3 == Place::First as u8)
}

/// The message bytes in a payload that is a single middle chunk.
#[inline]
pub(super) fn middle(payload: &[u8]) -> Option<usize> {
    let (word, rest) = payload.split_first_chunk()?;
    let is_middle =
        u32::from_be_bytes(*word) as usize == (Place::Middle as usize) << LENGTH_BITS | rest.len();
    (is_middle && !rest.is_empty()).then_some(rest.len())
}

/// The message bytes in a payload that is a single chunk with the last `bytes_left` of a message, or with
/// some in front of them.
#[inline]
pub(super) fn middle_or_last(payload: &[u8], bytes_left: usize) -> Option<usize> {
    let (word, rest) = payload.split_first_chunk()?;
    let place = if rest.len() == bytes_left { Place::Last } else { Place::Middle };
    let is_it = u32::from_be_bytes(*word) as usize == (place as usize) << LENGTH_BITS | rest.len();
    (is_it && !rest.is_empty() && rest.len() <= bytes_left).then_some(rest.len())
}

/// The bytes of the first chunk of a payload if it continues a message; `None` if it does not.
#[inline]
pub(super) fn continuation(payload: &[u8]) -> Option<&[u8]> {
    let (word, rest) = payload.split_first_chunk()?;
    rest.get(..(u32::from_be_bytes(*word) & ((1 << LENGTH_BITS) - 1)) as usize)
}

#[inline]
fn split_number(bytes: &[u8]) -> Result<(u32, &[u8]), Malformed> {
    let (number, rest) = bytes.split_first_chunk().ok_or(Malformed::Cut)?;
    Ok((u32::from_be_bytes(*number), rest))
}

/// All chunks of a payload; ends with the first error.
#[inline]
pub fn parse(payload: &[u8]) -> impl Iterator<Item = Result<Chunk, Malformed>> {
    let mut at = Some(0);
    std::iter::from_fn(move || {
        let chunk = chunk_at(payload, at?).transpose()?;
        at = chunk.as_ref().ok().map(|chunk| chunk.range.end);
        Some(chunk)
    })
}

/// A piece of a message to send: a header, and which of the message's bytes follow it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Placed {
    /// It goes into a new packet.
    pub fresh_packet: bool,
    /// Which bytes of the message.
    pub range: Range<usize>,
    header: [u8; CHUNK_HEADER_BYTES_MAX],
    header_bytes: u8,
}

impl Placed {
    /// What goes in front of the bytes.
    #[inline]
    pub fn header(&self) -> &[u8] {
        &self.header[..usize::from(self.header_bytes)]
    }

    /// The header padded with zeros, and its length: cheaper to copy if there is room for the longest header.
    #[inline]
    pub fn padded_header(&self) -> (&[u8; CHUNK_HEADER_BYTES_MAX], usize) {
        (&self.header, self.header_bytes.into())
    }

    #[inline]
    fn new(kind: Kind, place: Place, total_bytes: usize, range: Range<usize>, fresh_packet: bool) -> Self {
        let mut header = [0; CHUNK_HEADER_BYTES_MAX];
        let mut at = 0;
        let mut put = |number: u32| {
            header[at..at + 4].copy_from_slice(&number.to_be_bytes());
            at += 4;
        };
        let begins = matches!(place, Place::Whole | Place::First);
        let (kind_bits, call) = match kind {
            Kind::Request(call) if begins => (1, Some(call)),
            Kind::Response(call) if begins => (2, Some(call)),
            _ => (0, None),
        };
        put(kind_bits << (LENGTH_BITS + 2) | (place as u32) << LENGTH_BITS | range.len() as u32);
        if place == Place::First {
            put(total_bytes as u32);
        }
        if let Some(call) = call {
            put(call);
        }
        Self { fresh_packet, range, header, header_bytes: at as u8 }
    }
}

/// Bytes of the header of a message that is one chunk.
#[inline]
pub fn whole_header_bytes(kind: Kind) -> usize {
    if kind == Kind::Plain { 4 } else { 8 }
}

/// Writes the header of a message that is one chunk, and returns how many bytes that are.
///
/// # Panics
/// There is no room for it, or the message is longer than [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX).
#[inline]
pub fn put_whole_header(kind: Kind, bytes: usize, room: &mut [u8]) -> usize {
    assert!(bytes <= super::MESSAGE_BYTES_MAX as usize, "a message of {bytes} B is too long");
    let (place, call) = match kind {
        Kind::Plain => (WHOLE, None),
        Kind::Request(call) => (WHOLE_REQUEST, Some(call)),
        Kind::Response(call) => (WHOLE_RESPONSE, Some(call)),
    };
    room[..4].copy_from_slice(&(place << LENGTH_BITS | bytes as u32).to_be_bytes());
    let Some(call) = call else { return 4 };
    room[4..8].copy_from_slice(&call.to_be_bytes());
    8
}

/// How many packets a message takes if it does not fit into the packet being filled.
#[inline]
pub fn packets(kind: Kind, bytes: usize, payload_bytes_max: usize) -> usize {
    let whole = whole_header_bytes(kind);
    let first = payload_bytes_max.saturating_sub(whole + 4);
    match whole.saturating_add(bytes) <= payload_bytes_max {
        true => 1,
        false => 1 + bytes.saturating_sub(first).div_ceil(payload_bytes_max.saturating_sub(4).max(1)),
    }
}

/// How consecutive messages fill packets (docs/protocol.md §4.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Laid {
    packets: usize,
    /// Payload bytes left in the last packet.
    room: usize,
}

impl Laid {
    /// One message more, into payloads of up to `payload_bytes_max`.
    #[inline]
    pub fn add(&mut self, kind: Kind, bytes: usize, payload_bytes_max: usize) {
        let whole = whole_header_bytes(kind) + bytes;
        if whole <= self.room {
            self.room -= whole;
        } else if whole <= payload_bytes_max {
            (self.packets, self.room) = (self.packets + 1, payload_bytes_max - whole);
        } else {
            let packets = packets(kind, bytes, payload_bytes_max);
            self.packets += packets;
            // The first has four bytes of header more than a whole message, and each behind it has four.
            self.room = (packets * (payload_bytes_max - 4)).saturating_sub(whole);
        }
    }

    /// How many packets it takes.
    #[inline]
    pub fn packets(&self) -> usize {
        self.packets
    }
}

/// The longest message of any kind that fits into this many packets.
pub(super) fn bytes_in(packets: usize, payload_bytes_max: usize) -> usize {
    packets.saturating_mul(payload_bytes_max.saturating_sub(4)).saturating_sub(8)
}

/// Lays a message into packets: one piece if it fits into the `room` left in the packet that is being filled,
/// or into a fresh one with `payload_bytes_max` bytes of payload; otherwise fresh packets, all of them full
/// but the last.
///
/// # Panics
/// The message is longer than [`MESSAGE_BYTES_MAX`](super::MESSAGE_BYTES_MAX), or packets have no room for a
/// header and a byte.
#[inline]
pub fn chunks(
    kind: Kind,
    bytes: usize,
    room: usize,
    payload_bytes_max: usize,
) -> impl Iterator<Item = Placed> {
    assert!(bytes <= super::MESSAGE_BYTES_MAX as usize, "a message of {bytes} B is too long");
    assert!(payload_bytes_max > CHUNK_HEADER_BYTES_MAX, "packets of {payload_bytes_max} B hold nothing");
    let whole = whole_header_bytes(kind) + bytes;
    let mut at = 0;
    let mut ended = false;
    std::iter::from_fn(move || {
        if ended {
            return None;
        }
        if whole <= payload_bytes_max {
            ended = true;
            return Some(Placed::new(kind, Place::Whole, bytes, 0..bytes, whole > room));
        }
        let header_bytes = if at == 0 { whole_header_bytes(kind) + 4 } else { 4 };
        let end = bytes.min(at + payload_bytes_max - header_bytes);
        ended = end == bytes;
        let place = match (at, ended) {
            (0, _) => Place::First,
            (_, false) => Place::Middle,
            (_, true) => Place::Last,
        };
        let piece = Placed::new(kind, place, bytes, at..end, true);
        at = end;
        Some(piece)
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn kinds() -> impl Strategy<Value = Kind> {
        prop_oneof![
            Just(Kind::Plain),
            any::<u32>().prop_map(Kind::Request),
            any::<u32>().prop_map(Kind::Response)
        ]
    }

    proptest! {
        /// Packets are full except the last one, and messages are split only if needed.
        #[test]
        fn what_is_laid_into_packets_is_read_again(
            kind in kinds(), bytes in 0usize..5000, room in 0usize..600, max in 13usize..600
        ) {
            let message: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
            let pieces: Vec<_> = super::chunks(kind, bytes, room.min(max), max).collect();
            let mut read = Vec::new();
            for (index, piece) in pieces.iter().enumerate() {
                let payload = [piece.header(), &message[piece.range.clone()]].concat();
                prop_assert!(payload.len() <= max);
                let is_last = index + 1 == pieces.len();
                prop_assert!(is_last || payload.len() == max);
                let chunks: Vec<_> = parse(&payload).collect::<Result<_, _>>().unwrap();
                prop_assert_eq!(chunks.len(), 1);
                let place = match (pieces.len(), index) {
                    (1, _) => Place::Whole,
                    (_, 0) => Place::First,
                    _ if is_last => Place::Last,
                    _ => Place::Middle,
                };
                prop_assert_eq!(chunks[0].place, place);
                if index == 0 {
                    prop_assert_eq!((chunks[0].kind, chunks[0].total_bytes), (kind, bytes));
                }
                read.extend_from_slice(&payload[chunks[0].range.clone()]);
            }
            prop_assert_eq!(read, message);
            let fits = whole_header_bytes(kind) + bytes <= room.min(max);
            prop_assert_eq!(pieces[0].fresh_packet, !fits);
        }

        #[test]
        fn any_bytes_are_read_without_harm(payload: Vec<u8>) {
            oracle::check_payload(&payload);
        }

        #[test]
        fn whole_messages_are_found_alike(
            chunks in prop::collection::vec((0u32..16, 0u32..12, 0usize..12), 0..8), bytes_max in 0usize..12
        ) {
            let chunk = |(kind, length, bytes): &(u32, u32, usize)| {
                [&(kind << LENGTH_BITS | length).to_be_bytes()[..], &vec![7; *bytes][..]].concat()
            };
            let payload = chunks.iter().flat_map(chunk).collect::<Vec<u8>>();
            let all: Result<Vec<Chunk>, _> = parse(&payload).collect();
            let whole = |chunk: &Chunk| chunk.place == Place::Whole && chunk.range.len() <= bytes_max;
            let expected = all.as_ref().ok().filter(|all| !all.is_empty() && all.iter().all(whole));
            prop_assert_eq!(super::whole_messages(&payload, bytes_max), expected.map(Vec::len));
            for at in 0..payload.len() {
                let chunk = chunk_at(&payload, at).ok().flatten().filter(|chunk| chunk.place == Place::Whole);
                prop_assert_eq!(whole_at(&payload, at), chunk.map(|chunk| (chunk.kind, chunk.range)));
            }
        }

        #[test]
        fn headers_of_whole_messages_are_written_alike(kind in kinds(), bytes in 0usize..500) {
            let mut room = [0; 8];
            let header_bytes = put_whole_header(kind, bytes, &mut room);
            let placed = super::chunks(kind, bytes, 600, 600).next().unwrap();
            prop_assert_eq!(&room[..header_bytes], placed.header());
        }

        /// Packets are counted as they were laid, also after a long message.
        #[test]
        fn packets_of_several_messages_are_counted(
            messages in prop::collection::vec((kinds(), 0usize..700), 0..20), max in 16usize..300
        ) {
            let (mut laid, mut packets) = (Laid::default(), Vec::<Vec<u8>>::new());
            for (number, (kind, bytes)) in messages.iter().enumerate() {
                let message = vec![number as u8; *bytes];
                let room = packets.last().map_or(0, |last| max - last.len());
                for placed in super::chunks(*kind, *bytes, room, max) {
                    if placed.fresh_packet {
                        packets.push(Vec::new());
                    }
                    let last = packets.last_mut().unwrap();
                    last.extend_from_slice(placed.header());
                    last.extend_from_slice(&message[placed.range]);
                }
                laid.add(*kind, *bytes, max);
                prop_assert_eq!((laid.packets, laid.room), (packets.len(), max - packets.last().unwrap().len()));
            }
        }

        #[test]
        fn packets_are_counted(kind in kinds(), bytes in 0usize..5000, max in 16usize..600) {
            let count = packets(kind, bytes, max);
            prop_assert_eq!(count, super::chunks(kind, bytes, 0, max).count());
            prop_assert!(packets(kind, bytes_in(count, max), max) <= count);
            prop_assert!(bytes_in(count + 1, max) >= bytes);
        }

        /// As above, with chunks that are likely to be valid.
        #[test]
        fn any_words_are_read_without_harm(words in prop::collection::vec((0u32..16, 0u32..12), 0..8)) {
            let words = words.into_iter().map(|(kind, length)| (kind << LENGTH_BITS | length).to_be_bytes());
            oracle::check_payload(&words.collect::<Vec<_>>().concat());
        }

        #[test]
        fn messages_come_back(
            messages in prop::collection::vec((kinds(), prop::collection::vec(any::<u8>(), 0..200)), 0..20),
            max in 16usize..100,
        ) {
            let messages: Vec<_> = messages.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
            oracle::check_messages(&messages, max);
        }
    }
}
