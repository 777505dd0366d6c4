//! Properties that must hold for any payload and any messages; the property tests here and the fuzz targets
//! in `fuzz/` check them.
//!
//! Not part of the interface. A violation is a panic, which both report with the input that caused it.

use super::{Kind, Place, chunks, parse, whole_header, whole_messages};

/// Reads `bytes` as a payload: chunks follow each other, and a whole message is written again as it was.
///
/// # Panics
/// They overlap, leave gaps or reach outside, or are laid out differently.
pub fn check_payload(bytes: &[u8]) {
    let mut end = 0;
    for chunk in parse(bytes) {
        let Ok(chunk) = chunk else { return };
        let header = &bytes[end..chunk.range.start];
        assert_eq!(header.len(), chunk.header_bytes);
        assert!(chunk.range.end <= bytes.len());
        if chunk.place == Place::Whole {
            let room = (bytes.len() - end).max(16);
            let [piece] = &chunks(chunk.kind, chunk.range.len(), room, room).collect::<Vec<_>>()[..] else {
                panic!("a whole message was split")
            };
            assert_eq!(piece.header(), header);
        }
        end = chunk.range.end;
    }
    assert_eq!(end, bytes.len());
}

/// Lays messages into packets of `payload_bytes_max` and reads them back: the same messages, in order.
///
/// # Panics
/// They are not, or a packet is too long, or a part does not fill its packet.
pub fn check_messages(messages: &[(Kind, &[u8])], payload_bytes_max: usize) {
    let mut packets: Vec<Vec<u8>> = Vec::new();
    for (kind, message) in messages {
        let room = packets.last().map_or(0, |open| payload_bytes_max - open.len());
        for piece in chunks(*kind, message.len(), room, payload_bytes_max) {
            if piece.fresh_packet {
                packets.push(Vec::new());
            }
            let open = packets.last_mut().expect("nothing goes on in a packet that there is not");
            open.extend_from_slice(piece.header());
            open.extend_from_slice(&message[piece.range.clone()]);
            assert!(open.len() <= payload_bytes_max);
        }
    }
    let read = read_back(&packets, payload_bytes_max);
    let read: Vec<_> = read.iter().map(|(kind, bytes)| (*kind, &bytes[..])).collect();
    assert!(read == messages, "what was read is not what was written");
}

/// Reads `bytes` as the messages of a unit.
///
/// # Panics
/// What looks only for whole messages finds others.
pub fn check_unit(bytes: &[u8]) {
    let mut messages = Vec::new();
    for chunk in parse(bytes) {
        let Ok(chunk) = chunk else { return };
        if chunk.place != Place::Whole {
            return;
        }
        messages.push((chunk.kind, chunk.range.len()));
    }
    let (first, count) = (messages.first().copied(), messages.len());
    assert_eq!((whole_header(bytes), whole_messages(bytes, usize::MAX)), (first, first.map(|_| count)));
}

fn read_back(packets: &[Vec<u8>], payload_bytes_max: usize) -> Vec<(Kind, Vec<u8>)> {
    let mut messages: Vec<(Kind, Vec<u8>)> = Vec::new();
    for packet in packets {
        check_payload(packet);
        for chunk in parse(packet) {
            let chunk = chunk.expect("what was written can be read");
            if matches!(chunk.place, Place::Whole | Place::First) {
                messages.push((chunk.kind, Vec::with_capacity(chunk.total_bytes)));
            }
            if matches!(chunk.place, Place::First | Place::Middle) {
                assert_eq!((chunk.range.end, packet.len()), (payload_bytes_max, payload_bytes_max));
            }
            let (_, message) = messages.last_mut().expect("nothing goes on that was not begun");
            message.extend_from_slice(&packet[chunk.range]);
        }
    }
    messages
}
