//! nocopy's own side: ports, used as a program would use them.

use std::io;
use std::time::Duration;

use nocopy::filter::Program;
use nocopy::integration::{Fanout, PortTuning};
use nocopy::port::{OpenError, Port, PortBuilder, Purpose, Receiver, Sender, Wait};
use nocopy::{Mode, Reason};

use super::frame::{self, FrameTemplate, HEADER_BYTES};
use super::generator::GeneratorLoad;
use super::stage::{NetworkSite, SitePair};
use super::window::WindowGauge;
use crate::Failure;
use nocopy_report::result::{CopyEvidence, Evidence};
use nocopy_transfer::exchange::{self, Exchange};

const TX_RING: u32 = 2048;

/// The size of the ring in packet ring mode: as much memory as the baseline.
const RING_RX: u32 = 4096;

/// Packets of a batch: fewer than a ring holds, so that frames return to the kernel while others are being
/// read.
const RX_BATCH: u32 = 256;

/// The fanout group of ports; the baseline's sockets are in another.
const FANOUT_GROUP: u16 = 2;

/// How often a port is opened while its queue is in use; each time the library waits for it.
const OPENINGS: usize = 6;

/// How long a receiver waits before it checks for the end of the trial.
const PATIENCE: Duration = Duration::from_millis(10);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PortWaitMode {
    Poll,
    Spinning,
    /// Spinning for a while, then asleep.
    Adaptive,
    /// Deliberate sleep, whose length depends on the load.
    Coalesced(GeneratorLoad),
}

impl PortWaitMode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            PortWaitMode::Poll => "poll",
            PortWaitMode::Spinning => "spinning",
            PortWaitMode::Adaptive => "adaptive",
            PortWaitMode::Coalesced(_) => "coalesced",
        }
    }

    /// Entries of the rx ring, with a frame for each: few, so that frames are still in a cache when they are
    /// used again, unless the receiver is to sleep long.
    fn rx_ring_entries(self) -> u32 {
        match self {
            PortWaitMode::Coalesced(GeneratorLoad::Paced { .. }) => 8192,
            _ => 2048,
        }
    }

    fn library_wait(self) -> Wait {
        match self {
            PortWaitMode::Poll => Wait::Interrupt,
            PortWaitMode::Spinning => Wait::Spin,
            PortWaitMode::Adaptive => Wait::Adaptive { spin: exchange::SPIN },
            // Half a ring of packets would do; at millions a second it fills in a fraction of a millisecond.
            PortWaitMode::Coalesced(GeneratorLoad::Full) => {
                Wait::Coalesced { packets: 1024, delay: Duration::from_micros(200) }
            }
            PortWaitMode::Coalesced(GeneratorLoad::Paced { .. }) => {
                // The same delay as the packet ring's blocks.
                Wait::Coalesced { packets: 4096, delay: Duration::from_millis(10) }
            }
        }
    }
}

/// How long to sleep if one packet in a hundred matches.
const SPARSE_DELAY: Duration = Duration::from_millis(10);

fn wanted_filter() -> Program {
    Program::parse(frame::FILTER).expect("what tcpdump compiled")
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PortSpec {
    mode: PortMode,
    /// Whether packets may be longer than a frame.
    long: bool,
    /// Whether only packets that match [`frame::FILTER`] are received.
    filtered: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PortMode {
    Xdp(PortWaitMode),
    Ring(PortWaitMode),
    Default(Purpose),
}

impl PortSpec {
    const fn with_mode(mode: PortMode) -> Self {
        Self { mode, long: false, filtered: false }
    }

    pub(crate) const fn in_xdp_mode(waiting: PortWaitMode) -> Self {
        Self::with_mode(PortMode::Xdp(waiting))
    }

    /// In packet ring mode. At full rate blocks fill before a reader has to wait; at a steady pace they wait
    /// as long as the baseline's.
    pub(crate) const fn in_ring_mode(load: GeneratorLoad) -> Self {
        let waiting = match load {
            GeneratorLoad::Full => PortWaitMode::Poll,
            GeneratorLoad::Paced { .. } => PortWaitMode::Coalesced(load),
        };
        Self::with_mode(PortMode::Ring(waiting))
    }

    pub(crate) const fn with_defaults_for(purpose: Purpose) -> Self {
        Self::with_mode(PortMode::Default(purpose))
    }

    pub(crate) const fn with_long_packets(self, long: bool) -> Self {
        Self { long, ..self }
    }

    pub(crate) const fn with_filter(self) -> Self {
        Self { filtered: true, ..self }
    }

    pub(crate) const fn is_filtered(self) -> bool {
        self.filtered
    }

    pub(crate) const fn is_ring(self) -> bool {
        matches!(self.mode, PortMode::Ring(_))
    }

    pub(crate) fn waiting(self) -> Option<PortWaitMode> {
        match self.mode {
            PortMode::Xdp(waiting) | PortMode::Ring(waiting) => Some(waiting),
            PortMode::Default(_) => None,
        }
    }

    fn builder(self, site: &NetworkSite) -> PortBuilder {
        // Promiscuous, as the packet sockets are: a card would drop frames to other hosts.
        let builder = Port::builder(&site.interface).multi_buffer(self.long).promiscuous(true);
        let (builder, waiting, rx_ring) = match self.mode {
            PortMode::Default(purpose) => return builder.purpose(purpose),
            PortMode::Xdp(waiting) => (builder, waiting, waiting.rx_ring_entries()),
            PortMode::Ring(waiting) => (builder.mode(Mode::PacketRing), waiting, RING_RX),
        };
        let (builder, wait) = match self.filtered {
            // Few packets match: the ring has room for those of a longer sleep.
            true => {
                (builder.filter(&wanted_filter()), Wait::Coalesced { packets: 1024, delay: SPARSE_DELAY })
            }
            false => (builder, waiting.library_wait()),
        };
        builder.wait(wait).ring_sizes(rx_ring, TX_RING).frame_count(rx_ring, TX_RING).batch(RX_BATCH)
    }

    pub(crate) fn open(self, site: &NetworkSite) -> Result<Port, Failure> {
        Ok(site.run(|| open_when_released(|| self.builder(site).open()))?)
    }

    /// Opens a port on each queue; in packet ring mode each receives the packets of one processor.
    pub(crate) fn open_queues(self, site: &NetworkSite) -> Result<Vec<Port>, Failure> {
        let builder = self
            .builder(site)
            .tuning(PortTuning { fanout: Some((FANOUT_GROUP, Fanout::Cpu)), ..PortTuning::default() });
        Ok(site.run(|| open_when_released(|| builder.clone().open_queues(..)))?.into())
    }
}

/// Opens a port; on a busy machine the kernel releases the queues of the trial before later than the library
/// waits.
fn open_when_released<T>(open: impl Fn() -> Result<T, OpenError>) -> Result<T, OpenError> {
    let mut opened = open();
    for _ in 1..OPENINGS {
        if !matches!(opened, Err(OpenError::QueueTaken { .. })) {
            break;
        }
        opened = open();
    }
    opened
}

pub(crate) fn port_evidence(port: &Port) -> Evidence {
    match port.explain().evidence {
        nocopy::Evidence::ZeroCopy => Evidence { copies: CopyEvidence::ZeroCopy, cause: None },
        nocopy::Evidence::Copied(cause) => Evidence::copied(format!("{cause} ({})", port.mode())),
        _ => Evidence::unknown(format!("the kernel does not say ({})", port.mode())),
    }
}

pub(crate) fn send_packets(
    port: Port,
    template: &FrameTemplate,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let (_receiver, mut sender) = port.split();
    let length = template.bytes().len();
    let mut sequence = 0;
    if sender.drafts(1, length).is_err() {
        return send_chains(&mut sender, template, gauge);
    }
    while gauge.may_send() {
        let mut drafts = sender.drafts(template.batch_size(), length)?;
        let first = sequence;
        while let Some(mut draft) = drafts.next_draft() {
            template.write_frame(&mut draft, sequence);
            draft.queue();
            sequence += 1;
        }
        drop(drafts);
        sender.try_flush()?;
        gauge.count_packets(sequence - first);
    }
    Ok(())
}

fn send_chains(sender: &mut Sender, template: &FrameTemplate, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    let mut sequence: u64 = 0;
    let mut packet = template.bytes().to_vec();
    while gauge.may_send() {
        let first = sequence;
        for _ in 0..template.batch_size() {
            packet[HEADER_BYTES..][..8].copy_from_slice(&sequence.to_be_bytes());
            match sender.send_copy(&packet) {
                Ok(()) => sequence += 1,
                Err(Reason::Full) => break,
                Err(reason) => return Err(reason.into()),
            }
        }
        sender.try_flush()?;
        gauge.count_packets(sequence - first);
    }
    Ok(())
}

fn frame_too_small() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, "the port's frames are too small for the packet")
}

pub(crate) fn receive_packets(port: Port, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    let (mut receiver, _sender) = port.split();
    while gauge.may_receive() {
        let mut count = 0;
        for packet in receiver.receive_timeout(PATIENCE)? {
            frame::read_every_byte(&packet);
            count += 1;
        }
        gauge.count_packets(count);
    }
    Ok(())
}

pub(crate) fn receive_chains(port: Port, gauge: &mut WindowGauge<'_>) -> io::Result<()> {
    let (mut receiver, _sender) = port.split();
    while gauge.may_receive() {
        let mut count = 0;
        let mut batch = receiver.receive_timeout(PATIENCE)?;
        while let Some(packet) = batch.next_chain() {
            packet.as_ref().iter().for_each(|piece| frame::read_every_byte(piece));
            count += 1;
        }
        drop(batch);
        gauge.count_packets(count);
    }
    Ok(())
}

#[derive(Debug)]
pub(crate) struct PortExchange {
    receiver: Receiver,
    sender: Sender,
    template: FrameTemplate,
    waiting: exchange::WaitMode,
}

/// The asking and the answering side, with messages of that length.
pub(crate) fn port_pair(
    stage: &SitePair,
    waiting: exchange::WaitMode,
    payload_bytes: usize,
) -> Result<((PortExchange, PortExchange), Evidence), Failure> {
    let spec = PortSpec::in_xdp_mode(match waiting {
        exchange::WaitMode::Blocking => PortWaitMode::Poll,
        exchange::WaitMode::Spinning => PortWaitMode::Spinning,
        exchange::WaitMode::Adaptive => PortWaitMode::Adaptive,
    });
    let (asking, answering) = (spec.open(&stage.sender)?, spec.open(&stage.receiver)?);
    let evidence = port_evidence(&asking);
    let frame_bytes = HEADER_BYTES + payload_bytes;
    let exchange_over = |port: Port, template| {
        let (receiver, sender) = port.split();
        PortExchange { receiver, sender, template, waiting }
    };
    let asking = exchange_over(asking, FrameTemplate::to_peer(stage, frame_bytes));
    let answering = exchange_over(answering, FrameTemplate::from_peer(stage, frame_bytes));
    Ok(((asking, answering), evidence))
}

impl Exchange for PortExchange {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        let mut frame = self.sender.buffer().ok_or_else(no_free_frame)?;
        let headers = &self.template.bytes()[..HEADER_BYTES];
        frame.append(headers.len()).ok_or_else(frame_too_small)?.copy_from_slice(headers);
        frame.append(message.len()).ok_or_else(frame_too_small)?.copy_from_slice(message);
        self.sender.send(frame).map_err(|rejected| rejected.reason)?;
        self.sender.flush()
    }

    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        let batch = match self.waiting {
            exchange::WaitMode::Spinning => self.receiver.try_receive()?,
            _ => self.receiver.receive_timeout(exchange::PATIENCE)?,
        };
        // One is in flight at a time; other packets are the hosts' own, or late.
        let own = batch.filter(|packet| packet.len() == self.template.bytes().len());
        let last = own.last();
        last.iter().for_each(|packet| take(&packet[HEADER_BYTES..]));
        Ok(last.is_some())
    }
}

fn no_free_frame() -> io::Error {
    io::Error::new(io::ErrorKind::OutOfMemory, "every frame is with the kernel")
}
