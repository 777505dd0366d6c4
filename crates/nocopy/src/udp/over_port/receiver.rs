//! The half that receives.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nocopy_proto::UdpPacket;
use nocopy_proto::wire::UdpFlow;

use super::super::OpenError;
use super::super::drops::sk_drops_counter;
use super::super::metadata::Metadata;
use super::super::run::DatagramInfo;
use super::kernel::KernelSockets;
use super::route_cache::ETHERNET_BYTES;
use crate::counter::{Counter, counters};
use crate::engine::wait::{self, STARVED_INTERVAL, WaitSource, WakeupCoalescer};
use crate::events::{Causes, Half, ReportedCauses};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::metadata::Timestamp;
use crate::facts::method_explanation::Explanation;
use crate::memory::area::{Chain, Frame, Packet};
use crate::memory::pool::Buffer;
use crate::port::drivers;
use crate::port::{self, ToHost, ToHostError, Wait};
use crate::stats::Stats;
use crate::sys::alarm::Alarm;
use crate::sys::interface::Interface;
use crate::sys::poll::Wakeup;
use crate::sys::timed_epoll::TimedEpoll;
use crate::sys::udp_receive::{LocalAddress, RecvmmsgArguments};

/// The interval at which the ordinary sockets are checked while the port keeps receiving.
const STRAYS_INTERVAL: Duration = Duration::from_millis(1);

/// The most batches that are taken before the clock is read.
const BATCHES_PER_POLL: u32 = 16;

/// How often to read the kernel's drops, so that no overflow of its 32-bit counter is missed: at 10 million
/// packets a second it overflows in seven minutes.
const DROPS_INTERVAL: Duration = Duration::from_secs(60);

const STRAYS_AT_A_TIME: usize = 64;

const DATAGRAM_BYTES_MAX: usize = 1 << 16;

counters! {
    /// Counts received datagrams, and other packets by their fate.
    pub(crate) struct ReceivedCounters {
        /// Datagrams over the port.
        over_port,
        /// Payload bytes of the datagrams over the port.
        over_port_bytes,
        /// Datagrams that arrived through the kernel: in fragments, with options, on another queue, from this
        /// host.
        strays,
        /// Payload bytes of the datagrams that arrived through the kernel.
        stray_bytes,
        /// Datagrams over the port whose sender left the checksum to a card that does not exist (veth, a
        /// virtual machine's card).
        unfinished_checksums,
        /// Datagrams over the port that were in several buffers and were joined by a copy.
        gathered,
        /// Payload bytes of the datagrams that were joined by a copy.
        gathered_bytes,
        /// Packets over the port with a wrong checksum: lost.
        bad_checksums,
        /// Packets over the port longer than the MTU, which sockets of this machine sent as one for several
        /// datagrams: lost.
        several_in_one,
        /// Datagrams from other senders than the connected peer.
        of_others,
        /// Packets over the port that were not datagrams for the socket: they were returned to the host.
        to_host,
        /// Packets over the port that were not datagrams for the socket, and could not be returned to the
        /// host: lost.
        lost,
    }
}

/// Receives over a port, and through the kernel.
#[derive(Debug)]
pub(crate) struct Receiver {
    port: crate::port::NonblockingReceiver,
    kernel: Arc<KernelSockets>,
    /// Another socket, over another queue, reports the counts of the shared ordinary sockets.
    counts_elsewhere: bool,
    classifier: PacketClassifier,
    reported: ReportedCauses,
    strays: VecDeque<StrayDatagram>,
    /// When the ordinary sockets were last polled.
    polled: Instant,
    /// Batches since the clock was last read for that.
    batches_since_poll: u32,
    /// When their drops were last read.
    drops_read: Instant,
    buffer: Box<[u8]>,
    call: RecvmmsgArguments,
    /// Readable when the port or an ordinary socket is.
    timed_epoll: TimedEpoll,
    alarm: Alarm,
}

#[derive(Debug)]
struct StrayDatagram {
    info: DatagramInfo,
    time: Option<Timestamp>,
    bytes: Box<[u8]>,
}

/// Recognises the socket's datagrams among other packets.
#[derive(Debug)]
struct PacketClassifier {
    own_addresses: Vec<IpAddr>,
    port_number: u16,
    interface_index: u32,
    /// The longest possible frame on the interface.
    frame_bytes_max: usize,
    /// Packets may come from this machine, without a wire, so checksums may be incomplete.
    wireless: bool,
    /// The flow of the last datagram, and the facts of all its datagrams.
    last: Option<(UdpFlow, DatagramSpan)>,
    peer: Option<SocketAddr>,
    /// Hands packets that are not for the socket to the host; otherwise they are lost, unless the host has
    /// them already.
    host: Result<ToHost, ToHostError>,
    received: ReceivedCounters,
}

impl Receiver {
    pub(super) fn new(
        port: crate::port::NonblockingReceiver,
        kernel: Arc<KernelSockets>,
        interface: &Interface,
        counts_elsewhere: bool,
    ) -> Result<Self, OpenError> {
        let timed_epoll = TimedEpoll::open().map_err(OpenError::Descriptor)?;
        let alarm = Alarm::new().map_err(OpenError::Descriptor)?;
        let classifier = PacketClassifier {
            own_addresses: kernel.addresses().collect(),
            port_number: kernel.local_addr().port(),
            interface_index: interface.index,
            frame_bytes_max: ETHERNET_BYTES + interface.mtu_bytes as usize,
            last: None,
            peer: None,
            wireless: drivers::may_have_unfinished_checksums(interface),
            host: port.to_host(),
            received: ReceivedCounters::default(),
        };
        Ok(Self {
            port,
            kernel,
            counts_elsewhere,
            classifier,
            reported: ReportedCauses::default(),
            strays: VecDeque::new(),
            polled: Instant::now(),
            batches_since_poll: 0,
            drops_read: Instant::now(),
            buffer: vec![0; DATAGRAM_BYTES_MAX].into(),
            call: RecvmmsgArguments::new(1),
            timed_epoll,
            alarm,
        })
    }

    /// Waits for datagrams, in the way set by [`Receiver::set_wait`], for at most `timeout` if there is one,
    /// and returns them as one batch, which may be empty: nothing arrived in that time, a signal ended the
    /// wait, or the packets were not for the socket.
    pub(in crate::udp) fn receive_within(&mut self, timeout: Option<Duration>) -> io::Result<Batch<'_>> {
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        self.poll_kernel_if_due()?;
        if !self.is_ready() {
            let how = self.port.wait_setting();
            wait::wait(self, how, deadline)?;
        }
        self.next_batch()
    }

    /// Returns waiting datagrams, possibly none, without waiting.
    pub(crate) fn try_receive(&mut self) -> io::Result<Batch<'_>> {
        // What is there is taken without a look at the clock, unless there always is something.
        if self.batches_since_poll == BATCHES_PER_POLL || !WaitSource::is_ready(&mut self.port) {
            self.poll_kernel_if_due()?;
        }
        // At most `BATCHES_PER_POLL`: a poll sets it to 0.
        self.batches_since_poll += 1;
        self.next_batch()
    }

    fn next_batch(&mut self) -> io::Result<Batch<'_>> {
        let received = &self.classifier.received;
        let copied = || {
            Causes::default()
                .with(Evidence::Copied(Cause::Gathered), received.gathered_bytes)
                .with(Evidence::Copied(Cause::SocketCall), received.stray_bytes)
        };
        self.reported.update(|| Half::UdpReceiver.into(), copied);
        let in_several = self.port.is_multi_buffer();
        let packets = self.port.try_receive()?;
        Ok(Batch { packets, in_several, strays: &mut self.strays, classifier: &mut self.classifier })
    }

    /// Polls the ordinary sockets, but not too often, because each poll is a system call.
    fn poll_kernel_if_due(&mut self) -> io::Result<()> {
        self.batches_since_poll = 0;
        let now = Instant::now();
        if now.duration_since(self.polled) < STRAYS_INTERVAL {
            return Ok(());
        }
        self.polled = now;
        if now.duration_since(self.drops_read) >= DROPS_INTERVAL {
            self.drops_read = now;
            let _ = self.kernel.drop_count(); // `stats` reports why there is none
        }
        self.poll_kernel()
    }

    fn poll_kernel(&mut self) -> io::Result<()> {
        while self.strays.len() < STRAYS_AT_A_TIME
            && let Some((message, to)) = self.kernel.receive(&mut self.call, &mut self.buffer)?
        {
            let local = message.local.unwrap_or_else(|| self.classifier.local_address(to, 0));
            let info = DatagramInfo { local: Some(local), ..DatagramInfo::from(&message) };
            self.strays.push_back(StrayDatagram {
                info,
                time: message.time,
                bytes: self.buffer[..message.bytes].into(),
            });
        }
        Ok(())
    }

    /// Changes how to wait, from the next wait on. (At first the port's setting applies.)
    pub(crate) fn set_wait(&mut self, wait: Wait) {
        // Measurements for the same setting remain valid.
        if wait != self.port.wait_setting() {
            self.port.set_wait_setting(wait);
        }
    }

    /// Prepares for a wait on [`AsFd`], and returns whether something is waiting already; see
    /// [`nocopy::Receiver::arm`].
    ///
    /// [`nocopy::Receiver::arm`]: crate::port::NonblockingReceiver::arm
    /// Errors: the interface is down or was removed.
    pub(crate) fn arm(&mut self) -> io::Result<bool> {
        // Earlier arrivals at the ordinary sockets are not reported again.
        self.poll_kernel()?;
        let is_ready = !self.strays.is_empty() || self.port.arm()?;
        let lacks_frames = !is_ready && self.port.lacks_frames();
        self.timed_epoll.set_timer(lacks_frames.then_some(STARVED_INTERVAL))?;
        Ok(is_ready)
    }

    /// Waits until this or another receiver, of the same ordinary sockets, is readable.
    pub(crate) fn wait_readable_beside(&mut self, others: &[Self], timeout: Duration) -> io::Result<Wakeup> {
        let Self { port, kernel, alarm, .. } = self;
        let ports = std::iter::once(port.port_descriptor())
            .chain(others.iter().map(|other| other.port.port_descriptor()));
        alarm.wait_readable(ports.chain(kernel.descriptors()), timeout)
    }

    /// Takes a frame back for receiving into; see [`nocopy::Receiver::recycle`].
    ///
    /// [`nocopy::Receiver::recycle`]: crate::port::NonblockingReceiver::recycle
    #[inline]
    pub(crate) fn recycle(&mut self, frame: Frame) {
        self.port.recycle(frame);
    }

    pub(in crate::udp) fn set_peer(&mut self, to: SocketAddr) {
        self.classifier.peer = Some(to);
        self.classifier.last = None;
    }

    /// Counts of datagrams, of other packets, and of drops at the ordinary sockets.
    pub(in crate::udp) fn stats(&self) -> Stats {
        let all = self.classifier.received;
        let is_dropped =
            |counter: &Counter| ["bad_checksums", "several_in_one", "lost"].contains(&&*counter.name);
        let (dropped, others): (Vec<Counter>, Vec<Counter>) = all.counters().partition(is_dropped);
        let stats = Stats::with_moved(all.over_port + all.strays, all.over_port_bytes + all.stray_bytes);
        let below = self.port.stats();
        let stats = stats
            .with_dropped(dropped)
            .with_counters(others)
            .with_dropped(below.counters_named(&["rx_dropped", "rx_ring_full", "tp_drops", "filter_lost"]))
            .with_faults(below.counters_named(&["rx_invalid_descs"]))
            .with_faults(below.counters_named(&port::RX_FAULTS));
        let sk_drops = if self.counts_elsewhere { Some(0) } else { self.kernel.drop_count().ok() };
        let sk_drops = sk_drops.map(sk_drops_counter);
        // The sockets ignore datagrams that a packet ring also receives: those drops are no losses.
        match self.classifier.host {
            Err(ToHostError::HostHasThem { .. }) => stats.with_counters(sk_drops),
            _ => stats.with_dropped(sk_drops),
        }
    }

    /// The evidence for all payloads so far: the port's evidence, or the cause of a copy. (Taking one
    /// from a packet ring copies once more: `rx_copied_out` of the port's stats.)
    pub(crate) fn ledger(&self) -> Ledger {
        let ReceivedCounters {
            over_port,
            over_port_bytes,
            gathered,
            gathered_bytes,
            strays,
            stray_bytes,
            ..
        } = self.classifier.received;
        let mut ledger = Ledger::default();
        // No underflow: datagrams that were gathered are among those over the port.
        ledger.add(self.port.evidence(), over_port - gathered, over_port_bytes - gathered_bytes);
        ledger.add(Evidence::Copied(Cause::Gathered), gathered, gathered_bytes);
        ledger.add(Evidence::Copied(Cause::SocketCall), strays, stray_bytes);
        ledger
    }

    /// The port's explanation, and the datagrams that are not received over it.
    pub(in crate::udp) fn explain(&self) -> Explanation {
        let strays = "over a port; datagrams in fragments, with options or from this host come through the kernel's socket, with a copy";
        self.port.explain().prefixed_with(&strays)
    }

    #[cfg(test)]
    pub(super) fn port(&self) -> &crate::port::NonblockingReceiver {
        &self.port
    }
}

impl WaitSource for Receiver {
    #[inline]
    fn is_ready(&mut self) -> bool {
        !self.strays.is_empty() || WaitSource::is_ready(&mut self.port)
    }

    fn arm(&mut self) -> io::Result<bool> {
        Self::arm(self)
    }

    fn refill_and_wake(&mut self) -> io::Result<()> {
        self.poll_kernel_if_due()?;
        WaitSource::refill_and_wake(&mut self.port)
    }

    #[inline]
    fn wake_kernel(&mut self) -> io::Result<()> {
        WaitSource::wake_kernel(&mut self.port)
    }

    fn check_usable(&mut self) -> io::Result<()> {
        WaitSource::check_usable(&mut self.port)
    }

    fn sleep_max(&self) -> Duration {
        self.port.sleep_max()
    }

    fn is_starved(&mut self) -> bool {
        WaitSource::is_starved(&mut self.port)
    }

    fn wait_readable(&mut self, timeout: Duration) -> io::Result<Wakeup> {
        self.wait_readable_beside(&[], timeout)
    }

    fn read_count_and_room(&self) -> (u32, u32) {
        self.port.read_count_and_room()
    }

    fn coalescer(&mut self) -> &mut WakeupCoalescer {
        WaitSource::coalescer(&mut self.port)
    }
}

impl AsFd for Receiver {
    /// Readable when datagrams may be waiting; call [`Receiver::arm`] before waiting for it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // The port's socket itself: its own descriptor would nest epoll instances, whose depth is limited.
        self.timed_epoll
            .descriptor(std::iter::once(self.port.port_descriptor()).chain(self.kernel.descriptors()))
    }
}

/// Received datagrams: an iterator over [`Datagram`]s. Those not iterated over stay for the next batch.
#[derive(Debug)]
pub(crate) struct Batch<'half> {
    packets: port::Batch<'half>,
    in_several: bool,
    strays: &'half mut VecDeque<StrayDatagram>,
    classifier: &'half mut PacketClassifier,
}

impl<'half> Iterator for Batch<'half> {
    type Item = Datagram<'half>;

    #[inline]
    fn next(&mut self) -> Option<Datagram<'half>> {
        while let Some(packet) = self.next_packet() {
            if let Some(datagram) = packet {
                return Some(datagram);
            }
        }
        loop {
            let StrayDatagram { info, time, bytes } = self.strays.pop_front()?;
            if self.classifier.is_peer(info.from) {
                self.classifier.received.strays += 1;
                self.classifier.received.stray_bytes += bytes.len() as u64;
                return Some(Datagram { info, body: DatagramBody::Bytes(bytes, time) });
            }
        }
    }
}

impl<'half> Batch<'half> {
    /// Begins to load the first packet; false if there is none.
    #[cfg(feature = "message")]
    #[inline]
    pub(crate) fn prefetch(&self) -> bool {
        self.packets.prefetch_first()
    }

    /// The next packet of the port, as a datagram if it is one.
    #[inline]
    fn next_packet(&mut self) -> Option<Option<Datagram<'half>>> {
        if self.in_several {
            return Some(self.classifier.take_chain_datagram(self.packets.next_chain()?));
        }
        let packet = self.packets.next()?;
        packet.prefetch();
        Some(self.classifier.take_datagram(packet))
    }
}

/// A datagram for the socket, and its place in the packet.
#[derive(Debug, Clone, Copy)]
struct DatagramSpan {
    info: DatagramInfo,
    at: usize,
    bytes: usize,
}

impl PacketClassifier {
    /// The socket's datagram in a packet in one buffer.
    #[inline(always)]
    fn take_datagram<'half>(&mut self, packet: Packet<'half>) -> Option<Datagram<'half>> {
        let DatagramSpan { info, at, bytes } = self.classify(&packet)?;
        Some(Datagram { info, body: DatagramBody::Packet { packet, at, bytes } })
    }

    /// Finds the socket's datagram in a packet, or handles a packet that is not for it.
    #[inline]
    fn classify(&mut self, packet: &[u8]) -> Option<DatagramSpan> {
        if let Some((flow, found)) = &self.last
            && let Some(payload) = flow.payload_if_matching(packet)
            && found.at + payload.len() <= self.frame_bytes_max
        {
            self.received.over_port += 1;
            self.received.over_port_bytes += payload.len() as u64;
            return Some(DatagramSpan { bytes: payload.len(), ..*found });
        }
        self.parse(packet)
    }

    /// As `classify`, for a packet of another flow than the last.
    fn parse(&mut self, packet: &[u8]) -> Option<DatagramSpan> {
        let Ok(view) = UdpPacket::parse(packet) else {
            return self.hand_over_to_host(packet);
        };
        let (addresses, datagram) = (view.addresses(), view.datagram());
        let (from, to) = (addresses.source(), addresses.destination());
        let is_mine = datagram.destination_port() == self.port_number && self.own_addresses.contains(&to);
        // An answer to the socket's own address would return to it.
        if !is_mine || !can_be_source_address(from) || self.own_addresses.contains(&from) {
            return self.hand_over_to_host(packet);
        }
        let (at, bytes) = view.payload_range();
        let is_unfinished = self.wireless && view.checksum_is_unfinished();
        if at + bytes > self.frame_bytes_max {
            return self.handle_too_long_packet(packet, is_unfinished);
        }
        if is_unfinished {
            self.received.unfinished_checksums += 1;
        } else if view.verify_checksum().is_err() {
            self.received.bad_checksums += 1;
            return None;
        }
        let mut from = SocketAddr::new(from, datagram.source_port());
        if !self.is_peer(from) {
            return None;
        }
        self.received.over_port += 1;
        self.received.over_port_bytes += bytes as u64;
        if let SocketAddr::V6(from) = &mut from
            && from.ip().is_unicast_link_local()
        {
            from.set_scope_id(self.interface_index);
        }
        let local = Some(self.local_address(to, self.interface_index));
        let info = DatagramInfo { from, local, truncated: false, ecn: Some(view.ecn()) };
        let found = DatagramSpan { info, at, bytes };
        self.last = UdpFlow::of_parsed_packet(&view, packet).map(|flow| (flow, found));
        Some(found)
    }

    /// Where a datagram to that address was sent to, and where an answer comes from.
    fn local_address(&self, to: IpAddr, interface: u32) -> LocalAddress {
        let reply_from = match self.own_addresses[..] {
            [IpAddr::V4(own), ..] if to.is_multicast() => Some(own),
            _ => None,
        };
        LocalAddress { reply_from, ..LocalAddress::new(to, interface) }
    }

    /// As `take_datagram`, for a packet in possibly several buffers.
    fn take_chain_datagram<'half>(&mut self, chain: Chain<Packet<'half>>) -> Option<Datagram<'half>> {
        if chain.buffers().len() == 1 {
            return self.take_datagram(chain.into_iter().next()?);
        }
        let time = chain.buffers().first().and_then(|packet| packet.arrival().timestamp.ok());
        let whole = chain.to_vec();
        let DatagramSpan { info, at, bytes } = self.classify(&whole)?;
        self.received.gathered += 1;
        self.received.gathered_bytes += bytes as u64;
        Some(Datagram { info, body: DatagramBody::Bytes(whole[at..at + bytes].into(), time) })
    }

    /// Whether datagrams from that address are accepted; others are counted.
    fn is_peer(&mut self, from: SocketAddr) -> bool {
        let is_peer = self.peer.is_none_or(|peer| (peer.ip(), peer.port()) == (from.ip(), from.port()));
        self.received.of_others += u64::from(!is_peer);
        is_peer
    }

    /// Handles a packet longer than the interface's MTU at opening. If it never was on a wire, it is assumed
    /// to be several datagrams that a socket on this machine sent as one packet (`UDP_SEGMENT`), whose
    /// lengths only the kernel knows.
    #[cold]
    fn handle_too_long_packet(&mut self, packet: &[u8], is_unfinished: bool) -> Option<DatagramSpan> {
        if is_unfinished {
            self.received.several_in_one += 1;
            return None;
        }
        self.hand_over_to_host(packet)
    }

    #[cold]
    fn hand_over_to_host(&mut self, packet: &[u8]) -> Option<DatagramSpan> {
        let host_has_it = match &mut self.host {
            Ok(host) => host.hand_over(packet).is_ok(),
            Err(why) => matches!(why, ToHostError::HostHasThem { .. }),
        };
        *if host_has_it { &mut self.received.to_host } else { &mut self.received.lost } += 1;
        None
    }
}

/// Whether a packet on a wire can have this source (RFC 1122 section 3.2.1.3, RFC 4291 sections 2.5 and 2.7).
#[inline]
fn can_be_source_address(from: IpAddr) -> bool {
    let is_broadcast = matches!(from, IpAddr::V4(from) if from.is_broadcast());
    !(from.is_unspecified() || from.is_loopback() || from.is_multicast() || is_broadcast)
}

/// A received datagram. When it is dropped, its frame returns to the kernel.
#[derive(Debug)]
pub(crate) struct Datagram<'half> {
    info: DatagramInfo,
    body: DatagramBody<'half>,
}

#[derive(Debug)]
enum DatagramBody<'half> {
    Packet {
        packet: Packet<'half>,
        at: usize,
        bytes: usize,
    },
    /// In memory of its own, with the time of its arrival.
    Bytes(Box<[u8]>, Option<Timestamp>),
}

impl Datagram<'_> {
    #[inline]
    pub(crate) fn source(&self) -> SocketAddr {
        self.info.from
    }

    /// Whether a router on the path marked it.
    #[cfg(feature = "message")]
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        self.info.ecn == Some(nocopy_proto::wire::Ecn::Ce)
    }

    pub(in crate::udp) fn metadata(&self) -> Metadata {
        self.info.metadata(self.len(), self.time())
    }

    pub(in crate::udp) fn time(&self) -> Option<Timestamp> {
        match &self.body {
            DatagramBody::Packet { packet, .. } => packet.arrival().timestamp.ok(),
            DatagramBody::Bytes(_, time) => *time,
        }
    }

    #[inline]
    pub(in crate::udp) fn info(&self) -> DatagramInfo {
        self.info
    }

    /// Takes ownership of the payload: its frame, cut to the payload, without a copy in the AF_XDP modes.
    #[inline]
    pub(crate) fn take(self) -> ReceivedPayload {
        match self.body {
            DatagramBody::Packet { packet, at, bytes } => {
                let mut frame = packet.take();
                frame.trim_front(at);
                frame.truncate(bytes);
                ReceivedPayload::Frame(frame)
            }
            DatagramBody::Bytes(bytes, _) => ReceivedPayload::Bytes(bytes),
        }
    }
}

impl Deref for Datagram<'_> {
    type Target = [u8];

    #[inline]
    fn deref(&self) -> &[u8] {
        match &self.body {
            DatagramBody::Packet { packet, at, bytes } => &packet[*at..*at + *bytes],
            DatagramBody::Bytes(bytes, _) => bytes,
        }
    }
}

#[derive(Debug)]
pub(crate) enum ReceivedPayload {
    Frame(Frame),
    /// In separate memory: it arrived through the kernel, or in several buffers.
    Bytes(Box<[u8]>),
}

impl From<ReceivedPayload> for Buffer {
    fn from(payload: ReceivedPayload) -> Self {
        match payload {
            ReceivedPayload::Frame(frame) => frame.into(),
            ReceivedPayload::Bytes(bytes) => Self::from_owner(bytes),
        }
    }
}
