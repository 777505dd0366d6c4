//! Properties that must hold for any datagram; the property tests here and the fuzz targets in `fuzz/` check
//! them.
//!
//! Not part of the interface. A violation is a panic, which both report with the input that caused it.

use super::*;

/// Reads `bytes`, as they are and again with a correct checksum appended, and writes what was read: the same
/// bytes, except for padding.
///
/// # Panics
/// When they are not, or when what was written reads differently.
pub fn check_round_trip(bytes: &[u8]) {
    check(bytes);
    let mut sealed = bytes.to_vec();
    if let [_, flags, ..] = &mut sealed[..] {
        *flags |= Flags::CRC.bits();
    }
    crc::seal(&mut sealed);
    check(&sealed);
}

fn check(bytes: &[u8]) {
    let Ok(datagram) = Datagram::parse(bytes) else { return };
    let written = emit(&datagram);
    assert_eq!(Datagram::parse(&written), Ok(datagram));
    let (fields, padding) = match datagram {
        Datagram::Hello(_) => (12, bytes.len() - 12),
        Datagram::Connect(_) => (52, bytes.len() - 52),
        Datagram::Accept(_) => (44, bytes.len() - 44),
        _ => (bytes.len(), 0),
    };
    assert_eq!(written[..fields], bytes[..fields]);
    match datagram {
        Datagram::Hello(_) => assert!(written.len() == HELLO_BYTES_MIN && written.len() <= bytes.len()),
        _ => assert_eq!(written.len(), fields + padding),
    }
}

/// Reads `bytes` as what precedes a unit, and as the first bytes of a stream, those also with a correct
/// checksum, and writes what was read: the same bytes.
///
/// # Panics
/// When they are not.
pub fn check_stream(bytes: &[u8]) {
    if let Some(header) = bytes.first_chunk()
        && let Ok(unit) = Unit::parse(header)
    {
        let mut written = [0; HEADER_BYTES];
        unit.emit(&mut written);
        assert_eq!(written, *header);
    }
    let sealed = |length: usize| {
        let mut sealed = bytes.get(..length - crc::CRC_BYTES).unwrap_or_default().to_vec();
        crc::seal(&mut sealed);
        sealed
    };
    let mut written = Vec::new();
    for begin in [bytes, &sealed(ATTACH_BYTES), &sealed(ATTACHED_BYTES)] {
        if let Some(words) = begin.first_chunk()
            && let Ok(attach) = Attach::parse(words)
        {
            attach.emit(&mut written);
            assert_eq!(written, words);
        }
        if let Some(words) = begin.first_chunk()
            && let Ok(attached) = Attached::parse(words)
        {
            attached.emit(&mut written);
            assert_eq!(written, words);
        }
    }
}

/// The datagram as it is sent.
pub fn emit(datagram: &Datagram<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    match datagram {
        Datagram::Data(header, payload) => {
            let mut front = [0; HEADER_BYTES];
            header.emit(&mut front);
            bytes.extend_from_slice(&front);
            bytes.extend_from_slice(payload);
            if header.flags.contains(Flags::CRC) {
                crc::seal(&mut bytes);
            }
        }
        Datagram::Ack(header, ranges) => {
            let expected = crate::message::sequence::first(header.expected);
            assert_eq!(emit_ack(header, expected, ranges.iter(expected), &mut bytes), ranges.len());
        }
        Datagram::Hello(hello) => hello.emit(&mut bytes),
        Datagram::Cookie(cookie) => cookie.emit(&mut bytes),
        Datagram::Refused(refused) => refused.emit(&mut bytes),
        Datagram::Connect(connect) => connect.emit(&mut bytes),
        Datagram::Accept(accept) => accept.emit(&mut bytes),
        Datagram::Abort(abort) => abort.emit(&mut bytes),
        Datagram::Unknown(unknown) => unknown.emit(&mut bytes),
    }
    bytes
}
