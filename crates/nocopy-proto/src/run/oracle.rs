//! Properties that hold for any bytes; for property tests and the fuzz target.

use super::{DATAGRAM_BYTES_MAX, Message, Reply};

/// The most bytes by which a message can grow when it is written: fields that were omitted are written as
/// absent.
const LEFT_OUT_BYTES: usize = 64;

/// Reads bytes as a message and as a reply.
///
/// # Panics
/// What was read is not what is read of it when it is written.
pub fn check_round_trip(bytes: &[u8]) {
    if bytes.len() > DATAGRAM_BYTES_MAX - LEFT_OUT_BYTES {
        let _ = (Message::parse(bytes), Reply::parse(bytes));
        return;
    }
    if let Ok(message) = Message::parse(bytes) {
        let datagram = message.datagram().expect("what was read can be written");
        assert_eq!(Message::parse(&datagram).expect("what was written can be read"), message);
        if let Message::FilterRequest(request) = &message {
            let _ = request.program();
        }
    }
    if let Ok(reply) = Reply::parse(bytes) {
        let datagram = reply.datagram().expect("what was read can be written");
        assert_eq!(Reply::parse(&datagram).expect("what was written can be read"), reply);
    }
}
