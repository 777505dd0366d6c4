//! What must hold of any bytes that are read as a capture file. A property test and a fuzz target run it.

use std::io::Cursor;
use std::time::Duration;

use nocopy_proto::MacAddress;

use super::checksums::{self, ChecksumCorrection};
use super::playback::{Playback, PlaybackSettings};
use super::{GAP_MAX, MacAddresses};
use crate::arguments::RepeatCount;
use crate::send::source::PeekResult;

/// The most packets to look at: a short file may hold many.
const PACKETS_MAX: u64 = 10_000;

/// Reads a file to an end or an error; each frame has the length that was announced, and its checksums are
/// corrected once.
///
/// # Panics
/// If one of this does not hold.
pub fn check_file(bytes: &[u8]) {
    let addresses = MacAddresses {
        source: bytes.first().is_some_and(|first| first % 3 == 0).then_some(MacAddress([2; 6])),
        destination: None,
        own: MacAddress([4; 6]),
        absent: MacAddress([6; 6]),
    };
    let settings =
        PlaybackSettings { rounds: RepeatCount::Times(2), gap_max: GAP_MAX, addresses, fix_checksums: true };
    let Ok(mut playback) = Playback::new(Cursor::new(bytes), settings, || false) else { return };
    let (mut before_ns, mut packets) = (0, 0);
    while let Ok(ahead @ (PeekResult::Packet(_) | PeekResult::Silence)) = playback.peek() {
        if let PeekResult::Packet(upcoming) = ahead {
            let gap_ns = upcoming.recorded_ns.checked_sub(before_ns).expect("times do not step back");
            assert!(Duration::from_nanos(gap_ns) <= GAP_MAX, "{gap_ns} ns");
            before_ns = upcoming.recorded_ns;
            let mut frame = vec![0; upcoming.bytes];
            playback.write(&mut frame);
            checksums::correct_checksums(&mut frame);
            assert_ne!(checksums::correct_checksums(&mut frame), ChecksumCorrection::Made, "twice");
            playback.advance();
        }
        packets += 1;
        if packets == PACKETS_MAX {
            return;
        }
    }
}
