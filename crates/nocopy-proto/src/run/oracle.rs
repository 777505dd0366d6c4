//! Properties that hold for any bytes; for property tests and the fuzz target.

use super::{CommandReply, DATAGRAM_BYTES_MAX, LibraryMessage};

/// The most bytes by which a message can grow when it is written: fields that were omitted are written as
/// absent.
const LEFT_OUT_BYTES: usize = 64;

/// Reads bytes as a message and as a reply.
///
/// # Panics
/// What was read is not what is read of it when it is written.
pub fn check_round_trip(bytes: &[u8]) {
    if bytes.len() > DATAGRAM_BYTES_MAX - LEFT_OUT_BYTES {
        let _ = (LibraryMessage::parse(bytes), CommandReply::parse(bytes));
        return;
    }
    if let Ok(message) = LibraryMessage::parse(bytes) {
        let datagram = message.datagram().expect("what was read can be written");
        assert_eq!(LibraryMessage::parse(&datagram).expect("what was written can be read"), message);
        if let LibraryMessage::FilterRequest(request) = &message {
            let _ = request.checked_program();
        }
    }
    if let Ok(reply) = CommandReply::parse(bytes) {
        let datagram = reply.datagram().expect("what was read can be written");
        assert_eq!(CommandReply::parse(&datagram).expect("what was written can be read"), reply);
    }
}
