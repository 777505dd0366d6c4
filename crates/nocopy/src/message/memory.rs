//! How an endpoint divides its memory.

#[cfg(feature = "port")]
mod frames;

use super::OpenError;
use super::carrier::PASSING;
#[cfg(feature = "port")]
pub(super) use frames::Frames;

/// Bytes of a buffer for a run of datagrams, or for owned messages.
const BUFFER_BYTES: usize = 64 << 10;
/// Bytes for the header in front of a piece of an owned message.
const FRAGMENT_BYTES: usize = 64;
/// The default number of packets in each direction.
const PACKETS_MIN: usize = 8192;
/// The least buffers of either kind.
const BUFFERS_MIN: usize = 64;

/// How an endpoint over sockets divides its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) packet_bytes: usize,
    /// Packets that are written and not acknowledged.
    pub(super) send_packets: u32,
    /// Packets whose bytes lie in buffers and are not acknowledged.
    pub(super) send_fragments: u32,
    /// Single datagrams that were received and not read.
    pub(super) receive_packets: u32,
    /// Buffers into which runs of datagrams are received.
    pub(super) receive_runs: u32,
    /// Buffers for owned messages.
    pub(super) buffers: u32,
}

impl Shares {
    /// Divides `memory_bytes` (by default as much as is enough); a peer's window has this many packets.
    pub(super) fn of(
        memory_bytes: Option<usize>,
        datagram_bytes: usize,
        window_packets: usize,
    ) -> Result<Self, OpenError> {
        let packet_bytes = datagram_bytes; // no more, so that full packets can lie one behind the other
        let least = Self {
            packet_bytes,
            send_packets: number(2 * window_packets),
            send_fragments: number(2 * window_packets),
            receive_packets: number(2 * window_packets + PASSING),
            receive_runs: number(BUFFERS_MIN),
            buffers: number((2 * window_packets * datagram_bytes).div_ceil(BUFFER_BYTES).max(BUFFERS_MIN)),
        };
        let Some(memory_bytes) = memory_bytes else {
            let packets = |least: u32| least.max(number(PACKETS_MIN));
            return Ok(Self {
                send_packets: packets(least.send_packets),
                receive_packets: packets(least.receive_packets),
                ..least
            });
        };
        let Some(left) = memory_bytes.checked_sub(least.bytes()) else {
            return Err(OpenError::TooLittleMemory { memory_bytes, needed_bytes: least.bytes() });
        };
        // Half to packets that are received, since the peers decide how many those are.
        let more = |share: usize, bytes: usize| number(left / share / bytes);
        Ok(Self {
            send_packets: least.send_packets + more(4, packet_bytes),
            receive_packets: least.receive_packets + more(2, packet_bytes),
            receive_runs: least.receive_runs + more(8, BUFFER_BYTES),
            buffers: least.buffers + more(8, BUFFER_BYTES),
            ..least
        })
    }

    /// The sum of all shares, in bytes.
    pub(super) fn bytes(&self) -> usize {
        (self.send_packets as usize + self.receive_packets as usize) * self.packet_bytes
            + self.send_fragments as usize * FRAGMENT_BYTES
            + (self.receive_runs as usize + self.buffers as usize) * BUFFER_BYTES
    }
}

fn number(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_no_more_than_was_given_and_no_less_than_is_needed() {
        let least = Shares::of(None, 1472, 1024).unwrap();
        let error = Shares::of(Some(1 << 20), 1472, 1024).unwrap_err();
        let OpenError::TooLittleMemory { needed_bytes, .. } = error else { panic!("{error}") };
        assert!(needed_bytes <= least.bytes());
        for memory in [needed_bytes, needed_bytes + 12_345, 64 << 20, 1 << 30] {
            let shares = Shares::of(Some(memory), 1472, 1024).unwrap();
            assert!(shares.bytes() <= memory && shares.bytes() + (1 << 20) > memory.min(shares.bytes() * 2));
            assert!(shares.receive_packets >= 2048 && shares.send_packets >= 2048);
        }
    }
}
