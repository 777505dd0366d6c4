//! The message protocol, `docs/protocol.md`: reliable, ordered messages between peers, in UDP datagrams.

pub mod crc;
pub mod sequence;
pub mod wire;
