//! What is read and not sent.

use super::*;
use crate::send::pacer::Pace;
use crate::send::queue::{NextSendAction, Schedule, ScheduledSource, SendLimits};

/// A file without end: a beginning, and the same block again and again.
#[derive(Debug)]
struct EndlessFile {
    begin: Cursor<Vec<u8>>,
    block: Cursor<Vec<u8>>,
}

impl Read for EndlessFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.begin.read(buffer)?;
        if count > 0 {
            return Ok(count);
        }
        if self.block.position() == self.block.get_ref().len() as u64 {
            self.block.rewind()?;
        }
        self.block.read(buffer)
    }
}

impl Seek for EndlessFile {
    fn seek(&mut self, _: io::SeekFrom) -> io::Result<u64> {
        Err(io::ErrorKind::NotSeekable.into())
    }
}

/// A few packed bytes may be gigabytes without a packet.
#[test]
fn a_search_for_a_packet_can_be_interrupted() {
    let order = super::Order { big_endian: false };
    let long = Packet::new(0, vec![0; 1 << 20]);
    let of_other_link = interface(order, Interface { link_type: 147, ..ETHERNET });
    for repeated in [block(order, 0xbad, &[0; 1 << 20]), enhanced(order, 0, 0, &long)] {
        let begin = [section(order), of_other_link.clone()].concat();
        let file = EndlessFile { begin: Cursor::new(begin), block: Cursor::new(repeated) };
        let looked = std::cell::Cell::new(0);
        let settings = PlaybackSettings {
            rounds: RepeatCount::Times(1),
            gap_max: GAP_MAX,
            addresses: ADDRESSES,
            fix_checksums: false,
        };
        let interrupted = Playback::new(file, settings, || {
            looked.set(looked.get() + 1);
            looked.get() == 3
        });
        assert!(matches!(interrupted, Err(CaptureError::Silence)), "{interrupted:?}");
    }
}

#[test]
fn skipped_packets_do_not_count_as_truncated_or_corrected() {
    let path = std::env::temp_dir().join(format!("nocopy-replay-skipped-{}", std::process::id()));
    let mut packets = test_packets(1);
    packets.push(Packet::new(packets[0].time_ns, vec![0; 3000]));
    packets.iter_mut().for_each(|packet| packet.cut_bytes = 100);
    std::fs::write(&path, pcap(false, false, 1, &packets)).unwrap();
    let interrupt = Interrupt::catch().unwrap();
    let settings = PlaybackSettings {
        rounds: RepeatCount::Times(1),
        gap_max: GAP_MAX,
        addresses: ADDRESSES,
        fix_checksums: true,
    };
    let input = open_replay_input(&path, &interrupt).unwrap();
    let source = ReplaySource::new(&path, input, settings, &interrupt).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut queue = ScheduledSource {
        source,
        schedule: Schedule::new(Pace::FlatOut, SendLimits::default()),
        mtu_bytes: 1500,
    };
    loop {
        match queue.next_action(0).unwrap() {
            NextSendAction::Send(bytes) => {
                queue.source.write(&mut vec![0; bytes]);
                queue.record_sent(bytes, 1);
            }
            NextSendAction::Skip => {}
            NextSendAction::Stop(_) => break,
        }
    }
    let left = CorrectionCounters { made: 0, impossible: 1 };
    assert_eq!((queue.schedule.tally.packets, queue.schedule.tally.too_long), (1, 1));
    assert_eq!((queue.source.truncated_packets(), queue.source.corrections()), (1, Some(left)));
}
