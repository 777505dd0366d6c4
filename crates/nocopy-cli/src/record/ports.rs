//! Recording packets taken from the host, by ports on all queues.

use std::io;
use std::thread::sleep;
use std::time::Duration;

use nocopy::filter::Program;
use nocopy::metadata::Clock;
use nocopy::port::Queues;
use nocopy::{Chain, Packet as Received, Port};
use nocopy_proto::errno::is_interface_down;
use nocopy_proto::pcapng::{InterfaceCounts, PacketDirection, PacketHeader};

use super::collector::PacketCollector;
use super::progress::RecordingProgress;
use super::sink::{BUFFER_BYTES, RecordingSink};
use super::summary::{LossCounters, kernel_counter};
use super::target::RecordingTarget;
use super::{PacketRecorder, RecordingDescription};
use crate::arguments::RecordArguments;
use crate::{Failure, take};
use nocopy_report::Interrupt;
use nocopy_report::wall_clock::now_ns;

/// Frames, and ring entries, of each queue.
const FRAMES: u32 = 16_384;
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const WAIT_MAX: Duration = Duration::from_millis(100);

/// Ports whose packets are collected.
#[derive(Debug)]
pub(super) struct PortRecorder {
    queues: Queues,
    collector: PacketCollector,
    remaining: u64,
    received: u64,
    beyond_count: u64,
    /// Packets whose time the card recorded.
    timed: u64,
    buffers_max: usize,
    fill_max: f64,
    joined: Vec<u8>,
}

pub(super) fn open_ports(arguments: &RecordArguments, filter: Option<&Program>) -> Result<Queues, Failure> {
    let builder = Port::builder(&arguments.interface)
        .frame_count(FRAMES, 64)
        .ring_sizes(FRAMES, 64)
        .promiscuous(!arguments.no_promiscuous)
        .receive_metadata(true);
    let builder = match filter {
        Some(filter) => builder.filter(filter),
        None => builder,
    };
    take::open_taking_queues(builder, &arguments.interface)
}

impl PortRecorder {
    pub(super) fn new(queues: Queues, arguments: &RecordArguments, target: RecordingTarget) -> Self {
        Self {
            queues,
            collector: PacketCollector::new(arguments, target),
            remaining: arguments.count.unwrap_or(u64::MAX),
            received: 0,
            beyond_count: 0,
            timed: 0,
            buffers_max: (arguments.buffer / BUFFER_BYTES as u64) as usize,
            fill_max: 0.0,
            joined: Vec::new(),
        }
    }

    fn receive_batch(&mut self, sink: &mut RecordingSink, timeout: Duration) -> io::Result<()> {
        let now = now_ns();
        let mut batch = self.queues.receive_timeout(timeout)?;
        while let Some(packet) = batch.next_chain() {
            self.received += 1;
            if self.remaining == 0 {
                self.beyond_count += 1;
                continue;
            }
            let arrival = packet.as_ref().first().map(Received::arrival);
            let time = arrival.and_then(|arrival| arrival.timestamp.ok());
            let time = time.filter(|time| time.clock != Clock::Tai);
            self.timed += u64::from(time.is_some());
            let original_bytes = packet.len() as u32;
            let time_ns = time.map_or(now, |time| time.ns);
            let header = PacketHeader { time_ns, original_bytes, direction: PacketDirection::In };
            if self.collector.add_packet(sink, &header, contiguous_bytes(&packet, &mut self.joined))? {
                self.remaining -= 1;
            }
        }
        Ok(())
    }
}

/// A packet in place, or joined, if it is in several frames.
fn contiguous_bytes<'a>(packet: &'a Chain<Received<'_>>, joined: &'a mut Vec<u8>) -> &'a [u8] {
    if let [whole] = packet.as_ref() {
        return whole;
    }
    joined.clear();
    joined.extend(packet.as_ref().iter().flat_map(|piece| piece.iter()));
    joined
}

impl PacketRecorder for PortRecorder {
    fn run(&mut self, sink: &mut RecordingSink, progress: &mut RecordingProgress) -> io::Result<()> {
        while !progress.must_end() && self.remaining > 0 && sink.failed.is_none() {
            let has_room = sink.pending_pieces() < self.buffers_max;
            if has_room {
                let timeout =
                    if sink.is_busy() { POLL_INTERVAL } else { self.collector.limit_wait(WAIT_MAX) };
                match self.receive_batch(sink, timeout) {
                    // It may come up again; until then nothing is received.
                    Err(error) if is_interface_down(&error) => sleep(timeout),
                    received => received?,
                }
            } else {
                sink.wait_for_write(POLL_INTERVAL)?;
            }
            self.collector.flush_old(sink)?;
            sink.advance_writes();
            let fill = sink.pending_pieces() as f64 / self.buffers_max as f64;
            self.fill_max = self.fill_max.max(fill);
            progress.show_live_line(sink, fill);
        }
        Ok(())
    }

    fn stop(&mut self, sink: &mut RecordingSink, _: &Interrupt) -> io::Result<LossCounters> {
        // From now on the host gets arriving packets. If the kernel refuses this, closing the ports soon has
        // the same effect: until then more may arrive, so the number of packets still taken is limited to the
        // size of the rings.
        self.queues.stop_taking();
        for _ in 0..FRAMES {
            let before = self.received;
            if self.receive_batch(sink, Duration::ZERO).is_err() || self.received == before {
                break;
            }
        }
        let stats = self.queues.stats();
        let filter_lost = kernel_counter(&stats, "filter_lost")?;
        let dropped = stats.dropped - filter_lost;
        let received = self.received + dropped;
        sink.counts = InterfaceCounts { time_ns: now_ns(), received, dropped };
        Ok(LossCounters {
            received,
            rx_dropped: kernel_counter(&stats, "rx_dropped")?,
            rx_ring_full: kernel_counter(&stats, "rx_ring_full")?,
            rx_fill_ring_empty_descs: kernel_counter(&stats, "rx_fill_ring_empty_descs")?,
            beyond_count: self.beyond_count,
            no_payload: self.collector.no_payload,
            filter_lost,
            ..LossCounters::default()
        })
    }

    fn collector(&mut self) -> Option<&mut PacketCollector> {
        Some(&mut self.collector)
    }

    fn describe(&mut self) -> RecordingDescription {
        let ports = self.queues.ports();
        // Each port's balance includes its halves' reports; the last one is read after all of them.
        let balance = ports.iter().map(Port::balance).last().map(|balance| balance.to_string());
        let port = &ports[0];
        let times = if self.timed > 0 { "times by the card" } else { "times when a batch was taken" };
        let one_frame = self.joined.is_empty();
        let copies = if one_frame { "a copy more" } else { "a copy more, two of packets in several frames" };
        RecordingDescription {
            mode: format!("{}, taken from the host; {times}", port.mode()),
            evidence: format!("{}; gathered into whole sectors: {copies}", port.explain().evidence),
            balance,
            fill_max: self.fill_max,
        }
    }
}
