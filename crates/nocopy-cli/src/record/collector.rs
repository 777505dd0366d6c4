//! Packets, or their payloads, copied together into whole sectors.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use nocopy::integration::disk::{SectorBuffer, Sectors};
use nocopy_proto::pcapng::{self, FILLER_BYTES_MIN, PacketHeader};
use nocopy_proto::wire::{EtherType, IpProtocol, ethernet, ipv4, ipv6, udp, vlan};
use nocopy_report::boot_clock::BootInstant;

use super::sequence::{SequenceCounters, SequenceTracker};
use super::sink::{BUFFER_BYTES, FilePiece, PacketAmount, RecordingSink};
use super::target::RecordingTarget;
use crate::arguments::{RecordArguments, RecordFormat};

#[derive(Debug)]
pub(super) struct PacketCollector {
    format: CollectedFormat,
    target: RecordingTarget,
    /// The length of pieces is a multiple of this.
    unit: usize,
    buffer: Option<SectorBuffer>,
    used: usize,
    /// When the first packet in the buffer arrived, and when it was added.
    started: Option<BootInstant>,
    amount: PacketAmount,
    pub(super) no_payload: u64,
}

#[derive(Debug)]
enum CollectedFormat {
    Pcapng { snap_bytes: usize },
    Payload(PayloadCollection),
}

#[derive(Debug)]
struct PayloadCollection {
    sequence: Option<SequenceTracker>,
    /// Bytes added since the beginning, and bytes that were put into pieces.
    collected_bytes: u64,
    flushed_bytes: u64,
    /// The ends of payloads that are cut by the end of a piece.
    ends: VecDeque<(u64, usize)>,
}

impl PacketCollector {
    pub(super) fn new(arguments: &RecordArguments, target: RecordingTarget) -> Self {
        let format = match arguments.format {
            RecordFormat::Pcapng => CollectedFormat::Pcapng { snap_bytes: arguments.snap as usize },
            RecordFormat::Payload => CollectedFormat::Payload(PayloadCollection {
                sequence: arguments.sequence.map(SequenceTracker::new),
                collected_bytes: 0,
                flushed_bytes: 0,
                ends: VecDeque::new(),
            }),
        };
        Self {
            format,
            target,
            unit: target.alignment_bytes(arguments.format),
            buffer: None,
            used: 0,
            started: None,
            amount: PacketAmount::default(),
            no_payload: 0,
        }
    }

    pub(super) fn sequence_counters(&self) -> Option<SequenceCounters> {
        match &self.format {
            CollectedFormat::Payload(PayloadCollection { sequence: Some(sequence), .. }) => {
                Some(sequence.counters())
            }
            _ => None,
        }
    }

    /// Adds a packet, or its payload; returns false if it has none.
    pub(super) fn add_packet(
        &mut self,
        sink: &mut RecordingSink,
        packet: &PacketHeader,
        bytes: &[u8],
    ) -> io::Result<bool> {
        match &mut self.format {
            CollectedFormat::Pcapng { snap_bytes } => {
                let bytes = &bytes[..bytes.len().min(*snap_bytes)];
                self.add_packet_block(sink, packet, bytes)?;
            }
            CollectedFormat::Payload(payloads) => {
                let Some(payload) = udp_payload(bytes) else {
                    self.no_payload += 1;
                    return Ok(false);
                };
                if let Some(sequence) = &mut payloads.sequence {
                    sequence.observe_payload(payload);
                }
                payloads.collected_bytes += payload.len() as u64;
                payloads.ends.push_back((payloads.collected_bytes, payload.len()));
                self.add_payload_bytes(sink, payload)?;
            }
        }
        Ok(true)
    }

    fn add_packet_block(
        &mut self,
        sink: &mut RecordingSink,
        packet: &PacketHeader,
        bytes: &[u8],
    ) -> io::Result<()> {
        let needed = pcapng::packet_block_bytes(bytes.len());
        if self.used + needed + FILLER_BYTES_MIN > BUFFER_BYTES {
            self.flush(sink, true)?;
        }
        let at = self.used;
        pcapng::write_packet(&mut self.current_buffer(sink)?.as_mut()[at..], packet, bytes);
        self.used += needed;
        self.amount.add(PacketAmount { packets: 1, bytes: bytes.len() as u64 });
        Ok(())
    }

    fn add_payload_bytes(&mut self, sink: &mut RecordingSink, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let at = self.used;
            let room = &mut self.current_buffer(sink)?.as_mut()[at..];
            let (now, later) = bytes.split_at(bytes.len().min(room.len()));
            room[..now.len()].copy_from_slice(now);
            self.used += now.len();
            bytes = later;
            if self.used == BUFFER_BYTES {
                self.flush(sink, false)?;
            }
        }
        Ok(())
    }

    fn current_buffer(&mut self, sink: &mut RecordingSink) -> io::Result<&mut SectorBuffer> {
        self.started.get_or_insert_with(BootInstant::now);
        Ok(match &mut self.buffer {
            Some(buffer) => buffer,
            empty => empty.insert(sink.take_buffer()?),
        })
    }

    /// Hands over packets that have waited long enough; to a stream once it has room, because each piece
    /// takes a buffer.
    pub(super) fn flush_old(&mut self, sink: &mut RecordingSink) -> io::Result<()> {
        let has_room = self.target == RecordingTarget::Disk || sink.pending_pieces() == 0;
        match self.started {
            Some(since) if has_room && since.elapsed() >= self.target.collect_timeout() => {
                self.flush(sink, false)
            }
            _ => Ok(()),
        }
    }

    /// How long to wait for packets: not longer than collected ones may.
    pub(super) fn limit_wait(&self, timeout: Duration) -> Duration {
        match self.started {
            Some(since) if self.target == RecordingTarget::Stream => {
                timeout.min(self.target.collect_timeout().saturating_sub(since.elapsed()))
            }
            _ => timeout,
        }
    }

    /// Hands over all data; returns where the file is to end, if not at the end of a sector.
    pub(super) fn finish(&mut self, sink: &mut RecordingSink) -> io::Result<Option<u64>> {
        let rest = (self.used % self.unit) as u64;
        self.flush(sink, true)?;
        let is_cut = rest > 0 && matches!(self.format, CollectedFormat::Payload(_));
        Ok(is_cut.then_some(self.unit as u64 - rest))
    }

    /// Hands over collected packets. The rest of payloads that does not fill a unit stays, unless this is
    /// `all`.
    fn flush(&mut self, sink: &mut RecordingSink, all: bool) -> io::Result<()> {
        let Some(mut buffer) = self.buffer.take() else { return Ok(()) };
        let (used, padded) = match &self.format {
            CollectedFormat::Pcapng { .. } => (self.used, pcapng::filled_length(self.used, self.unit)),
            CollectedFormat::Payload(_) if all => (self.used, self.used.next_multiple_of(self.unit)),
            CollectedFormat::Payload(_) => {
                let padded = self.used / self.unit * self.unit;
                (padded, padded)
            }
        };
        let rest = buffer.as_ref()[used..self.used].to_vec();
        if padded == 0 {
            self.buffer = Some(buffer);
            return Ok(());
        }
        match &mut self.format {
            CollectedFormat::Pcapng { .. } => pcapng::write_filler(&mut buffer.as_mut()[used..padded]),
            CollectedFormat::Payload(payloads) => {
                buffer.as_mut()[used..padded].fill(0);
                self.amount = payloads.count_flushed_payloads(used as u64);
            }
        }
        buffer.truncate(padded);
        let received_at = self.started.take().unwrap_or_else(BootInstant::now);
        let amount = std::mem::take(&mut self.amount);
        sink.push_piece(FilePiece { sectors: Sectors::Memory(buffer), amount, received_at });
        self.used = rest.len();
        if !rest.is_empty() {
            let mut buffer = sink.take_buffer()?;
            buffer.as_mut()[..rest.len()].copy_from_slice(&rest);
            (self.buffer, self.started) = (Some(buffer), Some(BootInstant::now()));
        }
        Ok(())
    }
}

impl PayloadCollection {
    /// Which payloads end in the next bytes.
    fn count_flushed_payloads(&mut self, bytes: u64) -> PacketAmount {
        self.flushed_bytes += bytes;
        let mut amount = PacketAmount::default();
        while let Some((end, len)) = self.ends.front().copied()
            && end <= self.flushed_bytes
        {
            amount.add(PacketAmount { packets: 1, bytes: len as u64 });
            self.ends.pop_front();
        }
        amount
    }
}

/// The payload of a UDP datagram that is whole and unfragmented.
fn udp_payload(packet: &[u8]) -> Option<&[u8]> {
    let frame = ethernet::Frame::parse(packet).ok()?;
    let stack = vlan::TagStack::parse(&frame).ok()?;
    let datagram = match stack.ether_type() {
        EtherType::IPV4 => {
            let packet = ipv4::Packet::parse(stack.payload()).ok()?;
            let is_udp = packet.protocol() == IpProtocol::UDP && !packet.fragmentation().is_fragment();
            is_udp.then(|| packet.payload())?
        }
        EtherType::IPV6 => {
            let packet = ipv6::Packet::parse(stack.payload()).ok()?;
            let upper = packet.upper_layer().ok()?;
            let is_udp = upper.protocol() == IpProtocol::UDP && upper.fragmentation().is_none();
            is_udp.then(|| upper.payload())?
        }
        _ => return None,
    };
    Some(udp::Datagram::parse(datagram).ok()?.payload()).filter(|payload| !payload.is_empty())
}
