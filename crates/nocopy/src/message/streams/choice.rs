//! Which messages go by the stream.

use nocopy_proto::message::Peer;

use super::OpenUnit;

/// Messages from that length on go by the stream.
const LONG_BYTES: usize = 8 << 10;
/// When so many packets are full between two flushes, the messages behind them go by the stream, and those of the next batch.
const FULL_PACKETS: u32 = 6;
/// After a shorter batch by the stream, the next one begins with datagrams.
const BATCH_BYTES: usize = 4 << 10;

pub(super) const RULE: &str = "messages from 8192 bytes on, and what is behind 6 full packets that were not flushed; the others go by datagrams";

/// What is known of the ways to a peer.
#[derive(Debug, Default)]
pub(super) struct Way {
    pub(super) peer: Option<Peer>,
    /// The stream that is used to send.
    pub(super) stream: Option<u32>,
    /// Messages that are put together for it.
    pub(super) open: Option<OpenUnit>,
    /// The batch that the others are about.
    batch: u32,
    /// Packets that were full.
    full_packets: u32,
    /// Bytes that were put into units.
    unit_bytes: usize,
    /// The batch before was long enough for the stream.
    is_long: bool,
}

impl Way {
    pub(super) fn of(peer: Peer) -> Self {
        Self { peer: Some(peer), ..Self::default() }
    }

    /// Looks at the batch.
    #[inline]
    fn turn_to(&mut self, batch: u32) {
        if self.batch != batch {
            self.is_long = self.unit_bytes >= BATCH_BYTES;
            (self.batch, self.full_packets, self.unit_bytes) = (batch, 0, 0);
        }
    }

    /// Whether a message of so many bytes is better sent by the stream.
    #[inline]
    pub(super) fn wants_stream(&mut self, bytes: usize, batch: u32) -> bool {
        self.turn_to(batch);
        bytes >= LONG_BYTES || self.is_long || self.full_packets >= FULL_PACKETS
    }

    /// One packet more was full before the flush; returns whether it is better to go on by the stream.
    pub(super) fn note_full_packet(&mut self, batch: u32) -> bool {
        self.turn_to(batch);
        self.full_packets += 1;
        self.full_packets >= FULL_PACKETS
    }

    /// Takes the open unit out.
    pub(super) fn close(&mut self, batch: u32) -> Option<OpenUnit> {
        let unit = self.open.take()?;
        self.turn_to(batch);
        self.unit_bytes += unit.bytes();
        Some(unit)
    }
}
