//! Heaps as SPEAD has them, sent at a rate: datagrams of 48 bytes in front of a payload.

use std::io;
use std::net::UdpSocket;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::net::SendFlags;

use crate::baseline::datagram_sender;
use crate::datagram::DatagramSpec;
use crate::stage::SitePair;

/// Of each datagram, in all as long as the others of the workload.
pub(super) const PAYLOAD_BYTES: usize = 1352;
pub(super) const HEADER_BYTES: usize = 48;
pub(super) const DATAGRAM_BYTES: usize = HEADER_BYTES + PAYLOAD_BYTES;

/// Datagrams of a heap, which are rows of a chunk.
pub(super) const HEAP_ROWS: usize = 512;

/// Where the values of the items are that tell a heap from the others, and the place of the payload in it: 6
/// bytes each.
pub(super) const HEAP_AT: usize = 10;
pub(super) const OFFSET_AT: usize = 26;

/// Version 4 of SPEAD, with items of 2 + 6 bytes, and their number.
const PREAMBLE: [u8; 8] = [0x53, 4, 2, 6, 0, 0, 0, ITEMS.len() as u8];
/// Each item's value lies in the item itself.
const IMMEDIATE: u16 = 0x8000;
/// The heap's number and bytes, the payload's offset and bytes, and one for the user.
const ITEMS: [u16; 5] = [1, 2, 3, 4, 0x1600];

/// The interval of bursts.
const INTERVAL: Duration = Duration::from_millis(1);

/// The datagrams of heaps, one heap after the other.
#[derive(Debug)]
pub(super) struct HeapSource {
    socket: UdpSocket,
    burst: Vec<u8>,
    /// Of the next datagram: heap and row.
    next: u64,
}

impl HeapSource {
    /// Sends so many datagrams by a call.
    pub(super) fn open(stage: &SitePair, a_burst: usize) -> io::Result<Self> {
        let datagrams = DatagramSpec { bytes: DATAGRAM_BYTES, a_burst };
        let socket = match a_burst {
            1 => datagram_sender::open_sender_socket(stage)?,
            _ => datagram_sender::open_gso_socket(stage, datagrams)?,
        };
        let mut burst = vec![0; datagrams.burst_bytes()];
        DatagramSpec::fill_pattern(&mut burst);
        Ok(Self { socket, burst, next: 0 })
    }

    /// Datagrams sent so far.
    pub(super) fn sent(&self) -> u64 {
        self.next
    }

    fn send_burst(&mut self) -> io::Result<()> {
        for datagram in self.burst.chunks_exact_mut(DATAGRAM_BYTES) {
            write_header(datagram, self.next);
            self.next += 1;
        }
        rustix::net::send(&self.socket, &self.burst, SendFlags::empty())?;
        Ok(())
    }

    /// Sends for a time; returns how long it took.
    pub(super) fn send_at_rate(&mut self, datagrams_per_s: f64, step: Duration) -> io::Result<Duration> {
        let (start, before) = (Instant::now(), self.next);
        let a_burst = (self.burst.len() / DATAGRAM_BYTES) as u64;
        loop {
            let elapsed = start.elapsed();
            if elapsed >= step {
                return Ok(elapsed);
            }
            let due = before + (elapsed.as_secs_f64() * datagrams_per_s) as u64;
            while self.next + a_burst <= due && start.elapsed() < step {
                self.send_burst()?;
            }
            sleep(INTERVAL.saturating_sub(start.elapsed().saturating_sub(elapsed)));
        }
    }
}

fn write_header(datagram: &mut [u8], number: u64) {
    let (heap, row) = (number / HEAP_ROWS as u64, number % HEAP_ROWS as u64);
    let payload_bytes = PAYLOAD_BYTES as u64;
    let values = [heap, HEAP_ROWS as u64 * payload_bytes, row * payload_bytes, payload_bytes, heap];
    datagram[..8].copy_from_slice(&PREAMBLE);
    for (item, (id, value)) in
        datagram[8..HEADER_BYTES].chunks_exact_mut(8).zip(ITEMS.into_iter().zip(values))
    {
        // The identifier fills the first two bytes, which no value here reaches.
        let pointer = u64::from(IMMEDIATE | id) << 48 | value;
        item.copy_from_slice(&pointer.to_be_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_has_heap_and_offset_where_receivers_look() {
        let mut datagram = [0; DATAGRAM_BYTES];
        write_header(&mut datagram, 3 * HEAP_ROWS as u64 + 7);
        let value_at =
            |at: usize| datagram[at..at + 6].iter().fold(0, |value, byte| value << 8 | u64::from(*byte));
        assert_eq!((value_at(HEAP_AT), value_at(OFFSET_AT)), (3, 7 * PAYLOAD_BYTES as u64));
        assert_eq!(datagram[..10], [0x53, 4, 2, 6, 0, 0, 0, 5, 0x80, 1]);
        assert_eq!(datagram[HEADER_BYTES - 8..HEADER_BYTES], [0x96, 0, 0, 0, 0, 0, 0, 3]);
    }
}
