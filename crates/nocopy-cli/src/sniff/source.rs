//! The source of packets: the only module that uses ports.

use std::borrow::Cow;
use std::thread::sleep;
use std::time::Duration;

use nocopy::filter::Program;
use nocopy::integration::PortTuning;
use nocopy::metadata::Clock;
use nocopy::port::{PortBuilder, Purpose, Queues};
use nocopy::{Chain, Evidence, Mode, Packet, Port, Stats};

use crate::arguments::SniffArguments;
use crate::{Failure, take};
use nocopy_proto::errno::is_interface_down;
use nocopy_report::wall_clock::now_ns;
use nocopy_transfer::arguments::LOOPBACK;

/// Bytes that are joined for a description if a packet is in pieces: more than all headers together.
const DESCRIBED_BYTES: usize = 2048;

/// How long a packet may wait in the kernel: short for a reader; and a ring of blocks that each wait this
/// long, though hardly filled, lasts for longer than the pause between two reads.
const BLOCK_TIMEOUT: Duration = Duration::from_millis(20);

/// Packets for which the ring has room, of 2 KiB each.
const RING_PACKETS: u32 = 16_384;

pub(super) struct CapturedPacket<'a> {
    /// The captured bytes, from the first.
    pub(super) bytes: &'a [u8],
    /// The packet's length on the wire.
    pub(super) packet_bytes: usize,
    pub(super) time: PacketTime,
    /// Whether the host sent it; `None` if that is unknown.
    pub(super) outgoing: Option<bool>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct PacketTime {
    /// Since 1970.
    pub(super) ns: u64,
    pub(super) clock: ClockSource,
}

/// Whose clock the time is from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ClockSource {
    Kernel,
    Device,
    /// This process, when it read the packet.
    Process,
}

impl ClockSource {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Device => "device",
            Self::Process => "process",
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ReceiveResult {
    Packets,
    Nothing,
}

/// Which packets to show, and how many bytes of each.
#[derive(Debug, Clone, Copy)]
pub(super) struct ShowOptions {
    /// The most bytes shown of a packet.
    snap_bytes_max: usize,
    /// The most bytes joined of a packet in pieces: more would be copied for nothing.
    joined_bytes_max: usize,
    /// Only sent packets (true), or only received ones (false).
    outgoing: Option<bool>,
}

impl ShowOptions {
    fn from_arguments(arguments: &SniffArguments) -> Self {
        let snap_bytes_max =
            arguments.snap.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(usize::MAX);
        let joined_bytes_max =
            if arguments.hex { snap_bytes_max } else { snap_bytes_max.min(DESCRIBED_BYTES) };
        let outgoing = (arguments.incoming || arguments.outgoing).then_some(!arguments.incoming);
        Self { snap_bytes_max, joined_bytes_max, outgoing }
    }
}

pub(super) struct PacketSource {
    queues: Queues,
    show_options: ShowOptions,
    joined: Vec<u8>,
}

impl PacketSource {
    pub(super) fn open(arguments: &SniffArguments, filter: Option<&Program>) -> Result<Self, Failure> {
        let queues =
            if arguments.take { open_taking(arguments, filter)? } else { open_passive(arguments, filter)? };
        Ok(Self { queues, show_options: ShowOptions::from_arguments(arguments), joined: Vec::new() })
    }

    pub(super) fn receive_packets(
        &mut self,
        timeout: Duration,
        show: &mut impl FnMut(CapturedPacket<'_>) -> Result<(), Failure>,
    ) -> Result<ReceiveResult, Failure> {
        let mut batch = match self.queues.receive_timeout(timeout) {
            Ok(batch) => batch,
            // The interface may come up again; until then nothing is received.
            Err(error) if is_interface_down(&error) => {
                sleep(timeout);
                return Ok(ReceiveResult::Nothing);
            }
            Err(error) => return Err(Failure::Receive(error)),
        };
        if batch.is_empty() {
            return Ok(ReceiveResult::Nothing);
        }
        let mut now = None;
        while let Some(packet) = batch.next_chain() {
            let arrival = packet.as_ref().first().map(Packet::arrival);
            let outgoing = arrival.and_then(|arrival| arrival.outgoing.ok());
            if self.show_options.outgoing.is_some_and(|requested| outgoing != Some(requested)) {
                continue;
            }
            let time = match arrival.and_then(|arrival| arrival.timestamp.ok()) {
                Some(time) if time.clock == Clock::Realtime => {
                    PacketTime { ns: time.ns, clock: ClockSource::Kernel }
                }
                Some(time) => PacketTime { ns: time.ns, clock: ClockSource::Device },
                None => PacketTime { ns: *now.get_or_insert_with(now_ns), clock: ClockSource::Process },
            };
            let (bytes, packet_bytes) =
                (shown_bytes(&packet, self.show_options, &mut self.joined), packet.len());
            show(CapturedPacket { bytes, packet_bytes, time, outgoing })?;
        }
        Ok(ReceiveResult::Packets)
    }

    pub(super) fn description(&mut self) -> String {
        let port = self.first_port();
        let host = match port.mode() {
            Mode::PacketRing => "the host has its packets too",
            _ => "taken from the host",
        };
        format!("{}, {}; {host}", port.mode(), port.explain().evidence)
    }

    pub(super) fn mode(&mut self) -> String {
        self.first_port().mode().to_string()
    }

    pub(super) fn evidence(&mut self) -> Evidence {
        self.first_port().explain().evidence
    }

    /// The explanation of each port that differs from the first.
    pub(super) fn port_explanations(&mut self) -> Vec<String> {
        let first = self.first_port().mode();
        let ports = self.queues.ports().iter().enumerate();
        ports
            .filter(|(index, port)| *index == 0 || port.mode() != first)
            .map(|(_, port)| port.explain().to_string())
            .collect()
    }

    /// Counts of lost packets by name, over all queues.
    pub(super) fn drop_counters(&mut self) -> DropCounters {
        let mut drops = DropCounters::default();
        for port in self.queues.ports() {
            // The counters of a port whose interface was removed are lost with it.
            drops.add_stats(&port.receiver().stats());
        }
        drops
    }

    fn first_port(&mut self) -> &mut Port {
        &mut self.queues.ports()[0]
    }
}

/// The settings that capturing and taking share.
fn port_builder(arguments: &SniffArguments, filter: Option<&Program>) -> PortBuilder {
    let builder = Port::builder(&arguments.interface).promiscuous(!arguments.no_promiscuous);
    filter.into_iter().fold(builder.receive_metadata(true), PortBuilder::filter)
}

/// Captures without taking packets from the host.
fn open_passive(arguments: &SniffArguments, filter: Option<&Program>) -> Result<Queues, Failure> {
    let outgoing = !arguments.incoming && (arguments.outgoing || arguments.interface != LOOPBACK);
    let builder = port_builder(arguments, filter).purpose(Purpose::Capture).mode(Mode::PacketRing);
    let builder = builder.ring_sizes(RING_PACKETS, 64).frame_count(4096, 64);
    Ok(builder
        .multi_buffer(true)
        .tuning(PortTuning { outgoing, block_timeout: Some(BLOCK_TIMEOUT), ..PortTuning::default() })
        .open_queues(..)?)
}

/// Takes matching packets; others go to the host.
fn open_taking(arguments: &SniffArguments, filter: Option<&Program>) -> Result<Queues, Failure> {
    let mut builder = port_builder(arguments, filter).purpose(Purpose::Exchange);
    if let Some(mode) = arguments.mode {
        builder = builder.mode(mode.into());
    }
    take::open_taking_queues(builder, &arguments.interface)
}

/// Lost packets under the kernel's names, and refused ring entries.
#[derive(Debug, Clone, Default)]
pub(super) struct DropCounters {
    counters: Vec<(Cow<'static, str>, u64)>,
    dropped: u64,
}

impl DropCounters {
    fn add_stats(&mut self, stats: &Stats) {
        // Packets lost by the filter did not match: the host lost them.
        self.dropped += stats.dropped - stats.get("filter_lost").unwrap_or(0);
        let is_drop = |name: &str| !["filter_to_host", "rx_copied_out"].contains(&name);
        for counter in stats.into_iter().filter(|counter| is_drop(&counter.name)) {
            self.add_count(counter.name.clone(), counter.value);
        }
    }

    fn add_count(&mut self, name: Cow<'static, str>, value: u64) {
        match self.counters.iter_mut().find(|(known, _)| *known == name) {
            Some((_, sum)) => *sum += value,
            None => self.counters.push((name, value)),
        }
    }

    /// Packets that reached the port and were dropped.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(super) fn counters(&self) -> impl Iterator<Item = (&str, u64)> {
        self.counters.iter().map(|(name, value)| (&**name, *value))
    }
}

/// The first bytes of the packet, in place if they are in one piece.
fn shown_bytes<'a>(packet: &'a Chain<Packet<'_>>, options: ShowOptions, joined: &'a mut Vec<u8>) -> &'a [u8] {
    let [first, rest @ ..] = packet.as_ref() else { return &[] };
    if rest.is_empty() || first.len() >= options.joined_bytes_max {
        return &first[..first.len().min(options.snap_bytes_max)];
    }
    joined.clear();
    for piece in packet.as_ref() {
        let room = options.joined_bytes_max - joined.len();
        joined.extend(&piece[..piece.len().min(room)]);
    }
    joined
}
