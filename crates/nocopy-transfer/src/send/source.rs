//! Sources of packets: generated, or replayed from a file.

use crate::Failure;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NextPacket {
    pub bytes: usize,
    /// Whether it has a VLAN tag, which the MTU does not count.
    pub tagged: bool,
    /// Its recorded time after the first packet; never less than the previous packet's.
    pub recorded_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PeekResult {
    Packet(NextPacket),
    /// No packet is available yet.
    Silence,
    /// The source has ended.
    End,
}

pub(super) trait PacketSource {
    /// The next packet, the same until [`PacketSource::advance`].
    fn peek(&mut self) -> Result<PeekResult, Failure>;

    /// Writes the next packet into a buffer of its length.
    fn write(&mut self, buffer: &mut [u8]);

    fn advance(&mut self);

    /// As [`advance`](PacketSource::advance), past a packet that is not sent.
    fn skip(&mut self) {
        self.advance();
    }
}
