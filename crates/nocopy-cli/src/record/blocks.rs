//! Recording the kernel's blocks in place.

use std::io;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::capture::Block;
use nocopy::filter::Program;
use nocopy::integration::disk::Sectors;
use nocopy::integration::{Contents, PcapngLayout};
use nocopy::{Capture, Cause, Evidence, Stats};
use nocopy_proto::errno::is_interface_down;
use nocopy_proto::pcapng::{InterfaceCounts, PacketDirection, PacketHeader};

use super::collector::PacketCollector;
use super::progress::RecordingProgress;
use super::sink::{BUFFER_BYTES, FilePiece, PacketAmount, RecordingSink};
use super::summary::{LossCounters, kernel_counter};
use super::target::RecordingTarget;
use super::{PacketRecorder, RecordingDescription};
use crate::Failure;
use crate::arguments::{RecordArguments, RecordFormat};
use nocopy_report::Interrupt;
use nocopy_report::boot_clock::BootInstant;
use nocopy_report::wall_clock::now_ns;
use nocopy_transfer::arguments::LOOPBACK;

/// The longest sleep while a write is in progress.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// The longest wait: Ctrl-C and the live line are looked after in between.
const WAIT_MAX: Duration = Duration::from_millis(100);
const COUNTS_EVERY: Duration = Duration::from_secs(1);

/// A capture whose blocks become pieces of files.
#[derive(Debug)]
pub(super) struct BlockRecorder {
    blocks: Capture,
    snap_bytes: u32,
    target: RecordingTarget,
    remaining: u64,
    totals: BlockTotals,
    counted_at: Instant,
    /// Counts that are in no block yet.
    unwritten_counts: Option<InterfaceCounts>,
    /// Set if blocks are not written in place.
    collector: Option<PacketCollector>,
    buffers_max: usize,
    fill_max: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct BlockTotals {
    packets: u64,
    malformed: u64,
    beyond_count: u64,
    moved: u64,
}

pub(super) fn open_capture(
    arguments: &RecordArguments,
    filter: Option<&Program>,
    target: RecordingTarget,
) -> Result<Capture, Failure> {
    let most = target.block_bytes_max();
    let small = arguments.rotate_size.map_or(most, |bytes| (bytes / 8).clamp(1 << 17, most));
    let block_bytes = 1_u32 << small.min(arguments.buffer / 4).ilog2();
    let block_count = u32::try_from(arguments.buffer / u64::from(block_bytes)).unwrap_or(u32::MAX);
    let outgoing = !arguments.incoming && arguments.interface != LOOPBACK;
    let builder = Capture::builder(&arguments.interface)
        .blocks(block_bytes, block_count)
        .block_timeout(target.block_timeout())
        .snap(arguments.snap)
        .promiscuous(!arguments.no_promiscuous)
        .outgoing(outgoing)
        .filter(filter);
    Ok(builder.open()?)
}

impl BlockRecorder {
    pub(super) fn new(blocks: Capture, arguments: &RecordArguments, target: RecordingTarget) -> Self {
        Self {
            blocks,
            snap_bytes: arguments.snap,
            target,
            remaining: arguments.count.unwrap_or(u64::MAX),
            totals: BlockTotals::default(),
            counted_at: Instant::now(),
            unwritten_counts: None,
            collector: (arguments.format == RecordFormat::Payload)
                .then(|| PacketCollector::new(arguments, target)),
            buffers_max: (arguments.buffer / BUFFER_BYTES as u64 / 4).max(2) as usize,
            fill_max: 0.0,
        }
    }

    /// Packets that are neither dropped nor taken yet.
    fn missing_packets(&self, stats: &Stats) -> io::Result<u64> {
        let BlockTotals { packets, malformed, beyond_count, .. } = self.totals;
        let gone = kernel_counter(stats, "tp_drops")? + packets + malformed + beyond_count;
        Ok(kernel_counter(stats, "tp_packets")?.saturating_sub(gone))
    }

    fn has_buffer_room(&self, sink: &RecordingSink) -> bool {
        self.collector.is_none() || sink.pending_pieces() < self.buffers_max
    }

    /// Takes every block that is ready, and waits for the first.
    fn receive_blocks(&mut self, sink: &mut RecordingSink, mut timeout: Duration) -> io::Result<()> {
        // The collected data must not outgrow its memory: packets wait in their blocks instead.
        self.update_fill_max();
        while self.has_buffer_room(sink) {
            match self.blocks.receive_timeout(timeout) {
                Ok(Some(block)) => match self.collector.take() {
                    Some(mut collector) => {
                        let copied = self.copy_packets(block, sink, &mut collector);
                        // Also without memory for more: what follows is no piece of a file.
                        self.collector = Some(collector);
                        copied?;
                    }
                    None => self.record_block(block, sink),
                },
                Ok(None) => break,
                // The interface may come up again.
                Err(error) if is_interface_down(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
            timeout = Duration::ZERO;
        }
        self.update_fill_max();
        Ok(())
    }

    fn update_fill_max(&mut self) {
        self.fill_max = self.fill_max.max(self.blocks.fill().used_ratio());
    }

    fn copy_packets(
        &mut self,
        block: Block,
        sink: &mut RecordingSink,
        collector: &mut PacketCollector,
    ) -> io::Result<()> {
        let mut reader = block.into_reader();
        while let Some(packet) = reader.next_packet() {
            self.totals.packets += 1;
            if self.remaining == 0 {
                (self.totals.packets, self.totals.beyond_count) =
                    (self.totals.packets - 1, self.totals.beyond_count + 1);
                continue;
            }
            let direction = if packet.outgoing { PacketDirection::Out } else { PacketDirection::In };
            let (time_ns, original_bytes) = (packet.time_ns, packet.original_bytes);
            let header = PacketHeader { time_ns, original_bytes, direction };
            if collector.add_packet(sink, &header, packet.bytes)? {
                self.remaining -= 1;
            }
        }
        self.totals.malformed += u64::from(reader.malformed_count());
        Ok(())
    }

    fn record_block(&mut self, block: Block, sink: &mut RecordingSink) {
        let layout = PcapngLayout {
            counts: self.unwritten_counts.take(),
            snap_bytes: self.snap_bytes,
            packets_max: self.remaining,
            unit_bytes: self.target.alignment_bytes(RecordFormat::Pcapng),
        };
        let piece = block.into_pcapng(&layout);
        let Contents { packets, packet_bytes, malformed, left_out: beyond_count, moved, .. } =
            *piece.contents();
        self.totals.packets += packets;
        self.totals.malformed += malformed;
        self.totals.beyond_count += beyond_count;
        self.totals.moved += moved;
        self.remaining -= packets;
        let amount = PacketAmount { packets, bytes: packet_bytes };
        sink.push_piece(FilePiece {
            sectors: Sectors::Block(piece),
            amount,
            received_at: BootInstant::now(),
        });
    }

    /// Asks the kernel for its counts, now and then.
    fn update_counts(&mut self, sink: &mut RecordingSink) -> io::Result<()> {
        if sink.counts.time_ns == 0 || self.counted_at.elapsed() >= COUNTS_EVERY {
            sink.counts = capture_counts(&self.blocks.stats())?;
            self.unwritten_counts = Some(sink.counts);
            self.counted_at = Instant::now();
        }
        Ok(())
    }
}

impl PacketRecorder for BlockRecorder {
    fn run(&mut self, sink: &mut RecordingSink, progress: &mut RecordingProgress) -> io::Result<()> {
        while !progress.must_end() && self.remaining > 0 && sink.failed.is_none() {
            self.update_counts(sink)?;
            let wait = self.collector.as_ref().map_or(WAIT_MAX, |collector| collector.limit_wait(WAIT_MAX));
            let timeout = if sink.is_busy() { Duration::ZERO } else { wait };
            self.receive_blocks(sink, timeout)?;
            if let Some(collector) = &mut self.collector {
                collector.flush_old(sink)?;
            }
            sink.advance_writes();
            if sink.is_busy() {
                sink.wait_for_write(POLL_INTERVAL)?;
                sink.advance_writes();
            }
            progress.show_live_line(sink, self.blocks.fill().used_ratio());
        }
        Ok(())
    }

    fn stop(&mut self, sink: &mut RecordingSink, interrupt: &Interrupt) -> io::Result<LossCounters> {
        self.blocks.stop()?;
        // Counted in polls, not in time: while the machine stood still there were none.
        let polls_max =
            (3 * RecordingTarget::Disk.block_timeout() + WAIT_MAX).as_micros() / POLL_INTERVAL.as_micros();
        let mut stats = self.blocks.stats();
        let (mut missing, mut polls, mut progress) = (u64::MAX, 0, sink.write_progress());
        while self.remaining > 0 && self.missing_packets(&stats)? > 0 && polls < polls_max {
            polls += 1;
            // Blocks that wait for the disk or a reader are not missing.
            if self.missing_packets(&stats)? < missing || !self.has_buffer_room(sink) {
                (missing, polls) = (self.missing_packets(&stats)?, 0);
            }
            match self.receive_blocks(sink, POLL_INTERVAL) {
                // Even after the interface was removed there may be another block.
                Err(_) => sleep(POLL_INTERVAL),
                Ok(()) => sink.wait_with_reader_timeout(POLL_INTERVAL, interrupt, &mut progress),
            }
            sink.advance_writes();
            stats = self.blocks.stats();
        }
        if self.remaining == 0 {
            self.totals.beyond_count += self.missing_packets(&stats)?;
        }
        sink.counts = capture_counts(&stats)?;
        Ok(LossCounters {
            received: kernel_counter(&stats, "tp_packets")?,
            tp_drops: kernel_counter(&stats, "tp_drops")?,
            tp_freeze_q_cnt: kernel_counter(&stats, "tp_freeze_q_cnt")?,
            malformed: self.totals.malformed,
            beyond_count: self.totals.beyond_count,
            moved: self.totals.moved,
            no_payload: self.collector.as_ref().map_or(0, |collector| collector.no_payload),
            ..LossCounters::default()
        })
    }

    fn collector(&mut self) -> Option<&mut PacketCollector> {
        self.collector.as_mut()
    }

    fn describe(&mut self) -> RecordingDescription {
        let how = if self.collector.is_some() {
            "; gathered into whole sectors: a copy more"
        } else {
            "; written in place"
        };
        RecordingDescription {
            mode: "packet ring".into(),
            evidence: format!("{}{how}", Evidence::Copied(Cause::PacketRing)),
            balance: None,
            fill_max: self.fill_max,
        }
    }
}

fn capture_counts(stats: &Stats) -> io::Result<InterfaceCounts> {
    let (received, dropped) = (kernel_counter(stats, "tp_packets")?, kernel_counter(stats, "tp_drops")?);
    Ok(InterfaceCounts { time_ns: now_ns(), received, dropped })
}
