//! The half that sends.

#[cfg(feature = "message")]
mod for_messages;

use std::borrow::Cow;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nocopy_proto::{UdpChecksum, UdpFrame, UdpTemplate};
use smallvec::SmallVec;

use super::super::destinations::Added;
#[cfg(feature = "message")]
use super::super::strangers::UnverifiedPeerLimit;
use super::kernel::KernelSockets;
use super::route_cache::{KernelReason, RouteCache, SendPath};
use super::route_socket_error;
use crate::counter::{Counter, counters};
use crate::events::{Causes, Half, ReportedCauses};
use crate::facts::evidence::{Cause, Evidence, Ledger};
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::{Chain, Frame};
use crate::memory::send_queue::KernelSocket;
use crate::stats::Stats;
use crate::sys::clock::boottime_ns;

counters! {
    /// What a socket sent, by path. Datagrams over the port have the port's evidence; those through the
    /// kernel were copied.
    pub(crate) struct SentCounters {
        /// Datagrams over the port.
        over_port,
        /// Payload bytes of the datagrams over the port.
        over_port_bytes,
        /// Datagrams over the port that were given as slices, and copied into frames.
        from_slices,
        /// Payload bytes of the datagrams that were given as slices.
        from_slices_bytes,
        /// Datagrams through the kernel: the next hop's hardware address was not known yet.
        unresolved,
        /// Through the kernel, so that it confirms the address of a neighbour that was silent for some time.
        confirming,
        /// Through the kernel: longer than the MTU, so it fragments them.
        too_long,
        /// Through the kernel: the route uses another interface.
        other_interface,
        /// Through the kernel: the destination was this host.
        local,
        /// Through the kernel: the destination was a broadcast address.
        broadcast,
        /// Through the kernel: the route encapsulates packets.
        encapsulated,
        /// Through the kernel: answers to addresses that may be forged, for which no route is looked up.
        strangers,
        /// Bytes of the payloads of all datagrams through the kernel.
        through_kernel_bytes,
        /// How often a change of routes, neighbours or interfaces made the sender look up routes again;
        /// look-ups because of age do not count.
        announced_changes,
    }
}

impl SentCounters {
    /// Datagrams through the kernel, for any reason.
    pub(crate) fn through_kernel_count(&self) -> u64 {
        let by_route = self.other_interface + self.local + self.broadcast + self.encapsulated;
        self.unresolved + self.confirming + self.too_long + self.strangers + by_route
    }

    /// All counters; the kernel has taken so many of the datagrams over the port.
    fn all_counters(&self, taken: u64) -> impl Iterator<Item = Counter> + use<> {
        let counter = |name, meaning, value| Counter { name: Cow::Borrowed(name), meaning, value };
        let through = "Datagrams through the kernel, for all of these reasons.";
        let through = counter("through_kernel", through, self.through_kernel_count());
        let queued = "Datagrams over the port that the kernel has not taken yet: its queue is full, or the interface down.";
        let queued = counter("still_queued", queued, self.over_port.saturating_sub(taken));
        self.counters().chain([through, queued])
    }

    fn count_from_slices(&mut self, bytes: usize) {
        self.from_slices += 1;
        self.from_slices_bytes += bytes as u64;
    }

    #[inline]
    fn count_over_port(&mut self, bytes: usize) {
        self.over_port += 1;
        self.over_port_bytes += bytes as u64;
    }

    fn count_through_kernel(&mut self, why: KernelReason, bytes: usize) {
        let count = match why {
            KernelReason::Unresolved => &mut self.unresolved,
            KernelReason::Confirming => &mut self.confirming,
            KernelReason::TooLong => &mut self.too_long,
            KernelReason::OtherInterface => &mut self.other_interface,
            KernelReason::Local => &mut self.local,
            KernelReason::Broadcast => &mut self.broadcast,
            KernelReason::Encapsulated => &mut self.encapsulated,
        };
        *count += 1;
        self.through_kernel_bytes += bytes as u64;
    }
}

fn kernel_send_reason(error: io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::WouldBlock => Reason::Full,
        _ if error.raw_os_error() == Some(libc::ENOBUFS) => Reason::Full,
        _ => Reason::System(error),
    }
}

/// Sends over a port, or through the kernel if the port cannot carry a datagram.
///
/// A send over the port only writes the port's ring; [`flush`](Sender::flush) makes the kernel read it, once
/// for a whole batch. Datagrams that must go through the kernel are sent at once, after everything that was
/// queued before.
#[derive(Debug)]
pub(crate) struct Sender {
    port: crate::port::NonblockingSender,
    kernel: Arc<KernelSockets>,
    /// Another socket, over another queue, reports the counts of the shared ordinary sockets.
    counts_elsewhere: bool,
    route_cache: RouteCache,
    sent: SentCounters,
    reported: ReportedCauses,
    /// Whether nothing was queued since the last flush.
    at_rest: bool,
    /// Whether there were too few free frames to copy the last datagram.
    lacked_frames: bool,
    #[cfg(feature = "message")]
    strangers: UnverifiedPeerLimit,
}

enum ChosenPath<'a> {
    Port(&'a UdpTemplate),
    Kernel(KernelReason),
}

/// The route of a datagram, looked up again if something changed; the clock is read once per batch.
#[inline]
fn choose_path<'a>(
    route_cache: &'a mut RouteCache,
    at_rest: bool,
    to: SocketAddr,
    added: Option<&Added>,
    bytes: usize,
) -> Result<ChosenPath<'a>, Reason> {
    if at_rest {
        route_cache.expire(boottime_ns());
    }
    let path = match added {
        None => route_cache.path_to(to),
        Some(added) => route_cache.path_with(to, added.ancillary),
    };
    Ok(match path.map_err(|error| Reason::System(route_socket_error(error)))? {
        SendPath::Port { confirm: confirm @ true, .. } => {
            *confirm = false;
            ChosenPath::Kernel(KernelReason::Confirming)
        }
        SendPath::Port { template, payload_bytes_max, .. } if bytes <= *payload_bytes_max => {
            ChosenPath::Port(template)
        }
        SendPath::Port { .. } => ChosenPath::Kernel(KernelReason::TooLong),
        SendPath::Kernel(why) => ChosenPath::Kernel(*why),
    })
}

impl Sender {
    pub(super) fn new(
        port: crate::port::NonblockingSender,
        kernel: Arc<KernelSockets>,
        route_cache: RouteCache,
        counts_elsewhere: bool,
    ) -> Self {
        Self {
            port,
            kernel,
            counts_elsewhere,
            route_cache,
            sent: SentCounters::default(),
            reported: ReportedCauses::default(),
            at_rest: true,
            lacked_frames: false,
            #[cfg(feature = "message")]
            strangers: UnverifiedPeerLimit::default(),
        }
    }

    /// An empty frame to fill with a payload and send, with room for headers in front; `None` while all are
    /// in use (flush, and try again).
    #[inline]
    pub(crate) fn frame(&mut self) -> Option<Frame> {
        self.port.buffer()
    }

    /// Sends a payload in a frame of the port's area, with at least 42 bytes free in front of it over IPv4
    /// and 62 over IPv6; 16 more if the port was opened with
    /// [`send_metadata`](crate::port::PortBuilder::send_metadata). Over the port no byte of it is copied.
    /// Returns the unchanged payload if there is no room (flush first), or it cannot be sent at all.
    #[inline]
    pub(in crate::udp) fn send_to(
        &mut self,
        frame: Frame,
        to: SocketAddr,
        added: Option<&Added>,
    ) -> Result<(), Rejected<Frame>> {
        self.send_by_any_path(frame, to, added).map(drop)
    }

    /// Returns the frame of a datagram that was sent through the kernel.
    #[inline]
    fn send_by_any_path(
        &mut self,
        frame: Frame,
        to: SocketAddr,
        added: Option<&Added>,
    ) -> Result<Option<Frame>, Rejected<Frame>> {
        let bytes = frame.len();
        match choose_path(&mut self.route_cache, self.at_rest, to, added, bytes) {
            Ok(ChosenPath::Port(template)) => {
                queue_with_headers(&mut self.port, frame, template)?;
                self.count_queued(bytes);
                Ok(None)
            }
            Ok(ChosenPath::Kernel(why)) => match self.send_by_kernel(to, added, &[&frame], why) {
                Ok(()) => Ok(Some(frame)),
                Err(reason) => Err(Rejected { item: frame, reason }),
            },
            Err(reason) => Err(Rejected { item: frame, reason }),
        }
    }

    /// Like [`Sender::send_to`], for a payload in several frames, on ports opened with
    /// [`multi_buffer`](crate::port::PortBuilder::multi_buffer); the headers need room in front of the first.
    #[expect(clippy::result_large_err, reason = "gives back what it was given")]
    pub(in crate::udp) fn send_chain(
        &mut self,
        mut chain: Chain<Frame>,
        to: SocketAddr,
        added: Option<&Added>,
    ) -> Result<(), Rejected<Chain<Frame>>> {
        let bytes = chain.len();
        let template = match choose_path(&mut self.route_cache, self.at_rest, to, added, bytes) {
            Ok(ChosenPath::Port(template)) => with_computed_checksum(template),
            Ok(ChosenPath::Kernel(why)) => {
                let sent = self.send_by_kernel(to, added, &chain_slices(&chain), why);
                return sent.map_err(|reason| Rejected { item: chain, reason });
            }
            Err(reason) => return Err(Rejected { item: chain, reason }),
        };
        let mut headers = [0; IPV6_HEADERS];
        let headers = &mut headers[..template.header_bytes()];
        template.emit(headers, &chain_slices(&chain)).expect("its length was looked at");
        match chain.buffers_mut().first_mut() {
            None => {
                let reason = Reason::Empty;
                return Err(Rejected { item: chain, reason });
            }
            Some(first) => {
                let free_bytes = first.headroom_bytes();
                let Some(room) = first.prepend(headers.len()) else {
                    let reason = Reason::NoHeadroom { needed_bytes: headers.len(), free_bytes };
                    return Err(Rejected { item: chain, reason });
                };
                room.copy_from_slice(headers);
            }
        }
        if let Err(Rejected { item: mut chain, reason }) = self.port.send_chain(chain) {
            chain.buffers_mut()[0].trim_front(headers.len());
            return Err(Rejected { item: chain, reason });
        }
        self.count_queued(bytes);
        Ok(())
    }

    /// Sends a payload in the program's own memory, in pieces: copied into frames, and otherwise as
    /// [`Sender::send`]. Benches compare that with sending without a copy. Errors: no room (flush first), or
    /// it cannot be sent at all.
    pub(in crate::udp) fn send_copied(
        &mut self,
        to: SocketAddr,
        added: Option<&Added>,
        pieces: &[&[u8]],
    ) -> Result<(), Reason> {
        let bytes = pieces.iter().map(|piece| piece.len()).sum();
        let template = match choose_path(&mut self.route_cache, self.at_rest, to, added, bytes)? {
            ChosenPath::Port(template) => template,
            ChosenPath::Kernel(why) => return self.send_by_kernel(to, added, pieces, why),
        };
        let mut frame = free_frame_for_copy(&mut self.port, &mut self.lacked_frames)?;
        let Some(room) = frame.append(bytes) else {
            let template = with_computed_checksum(template);
            return self.send_copied_in_several_frames(frame, pieces, bytes, &template);
        };
        let mut at = 0;
        for piece in pieces {
            room[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
        queue_with_headers(&mut self.port, frame, template).map_err(|rejected| rejected.reason)?;
        self.sent.count_from_slices(bytes);
        self.count_queued(bytes);
        Ok(())
    }

    /// Whether there were too few free frames to copy the last datagram, and none is in flight and would
    /// return: the program holds them.
    pub(in crate::udp) fn program_has_frames(&self) -> bool {
        self.lacked_frames && self.port.is_idle()
    }

    #[cold]
    fn send_copied_in_several_frames(
        &mut self,
        mut first: Frame,
        pieces: &[&[u8]],
        bytes: usize,
        template: &UdpTemplate,
    ) -> Result<(), Reason> {
        let headers = first.prepend(template.header_bytes()).expect("fresh frames have room for headers");
        template.emit(headers, pieces).expect("its length was looked at");
        let mut frames: SmallVec<[Frame; 8]> = SmallVec::new();
        frames.push(first);
        for piece in pieces {
            let mut rest = *piece;
            while !rest.is_empty() {
                let mut last = frames.last_mut().expect("one at least");
                if last.tailroom_bytes() == 0 {
                    frames.push(free_frame_for_copy(&mut self.port, &mut self.lacked_frames)?);
                    last = frames.last_mut().expect("just pushed");
                }
                let (now, later) = rest.split_at(rest.len().min(last.tailroom_bytes()));
                last.append(now.len()).expect("no more than there is room").copy_from_slice(now);
                rest = later;
            }
        }
        let sent = self.port.send_chain(frames.into_iter().collect());
        sent.map_err(|rejected| rejected.reason)?;
        self.sent.count_from_slices(bytes);
        self.count_queued(bytes);
        Ok(())
    }

    /// Publishes queued datagrams to the kernel and makes it send, once for a whole batch; see
    /// [`Sender::flush`](crate::Sender::flush).
    ///
    /// Errors: the interface is down or was removed; the datagrams stay queued.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        self.at_rest = true;
        self.report(Evidence::Copied(Cause::Slice), self.sent.from_slices_bytes);
        self.port.try_flush()
    }

    /// Whether the kernel has not yet accepted all datagrams given to the port.
    #[inline]
    pub(crate) fn has_queued(&mut self) -> bool {
        self.port.has_queued()
    }

    /// Takes back frames that the kernel has sent, and returns how many.
    pub(crate) fn reap(&mut self) -> usize {
        self.port.reap()
    }

    /// Takes back a frame that is not to be sent (again); see [`nocopy::Sender::recycle`].
    ///
    /// [`nocopy::Sender::recycle`]: crate::port::NonblockingSender::recycle
    #[inline]
    pub(crate) fn recycle(&mut self, frame: Frame) {
        self.port.recycle(frame);
    }

    /// Flushes until nothing is in flight, for at most `timeout`; returns whether nothing is in flight.
    pub(crate) fn drain(&mut self, timeout: Duration) -> io::Result<bool> {
        self.at_rest = true;
        self.port.drain_within(timeout)
    }

    /// Sent datagrams, by path. Errors of the network are not included: the socket reports them.
    pub(super) fn sent_counters(&self) -> SentCounters {
        SentCounters { announced_changes: self.route_cache.announced_changes(), ..self.sent }
    }

    /// Whether the errors of the network are those of another socket, too, which counts them.
    pub(in crate::udp) fn counts_elsewhere(&self) -> bool {
        self.counts_elsewhere
    }

    /// Adds what was sent, by path, and what the port lost.
    pub(in crate::udp) fn with_sent_counters(&self, stats: Stats) -> Stats {
        let below = self.port.stats();
        stats
            .with_counters(self.sent_counters().all_counters(below.moved))
            .with_dropped(below.counters_named(&["tx_dropped", "tx_invalid_descs"]))
            .with_faults(below.counters_named(&crate::port::TX_FAULTS))
    }

    /// The evidence for all payloads: the port's evidence, or the cause of a copy.
    pub(crate) fn ledger(&self) -> Ledger {
        let SentCounters {
            over_port,
            over_port_bytes,
            from_slices,
            from_slices_bytes,
            through_kernel_bytes,
            ..
        } = self.sent;
        let mut ledger = Ledger::default();
        // No underflow: datagrams from slices are among those over the port.
        ledger.add(self.port.evidence(), over_port - from_slices, over_port_bytes - from_slices_bytes);
        ledger.add(Evidence::Copied(Cause::Slice), from_slices, from_slices_bytes);
        ledger.add(
            Evidence::Copied(Cause::SocketCall),
            self.sent.through_kernel_count(),
            through_kernel_bytes,
        );
        ledger
    }

    pub(crate) fn port(&self) -> &crate::port::NonblockingSender {
        &self.port
    }

    #[cfg(test)]
    pub(super) fn route_cache(&mut self) -> &mut RouteCache {
        &mut self.route_cache
    }

    /// The ordinary socket that has the address.
    pub(crate) fn kernel_socket(&self) -> &Arc<KernelSocket> {
        self.kernel.socket()
    }

    pub(in crate::udp) fn local_addr(&self) -> SocketAddr {
        self.kernel.local_addr()
    }

    /// From now on, dropping it does not wait for the frames that the kernel has.
    #[cfg(feature = "tokio")]
    pub(in crate::udp) fn drop_without_waiting(&mut self) {
        self.port.drop_timeout = Duration::ZERO;
    }

    /// Whether the kernel holds no frame of this sender any more.
    pub(in crate::udp) fn is_idle(&self) -> bool {
        self.port.is_idle()
    }

    /// Frames that the kernel has.
    pub(in crate::udp) fn in_flight(&self) -> usize {
        self.port.in_flight()
    }

    /// Prepares for a wait on the port's descriptor; see
    /// [`nocopy::Sender::arm`](crate::port::NonblockingSender::arm).
    pub(in crate::udp) fn arm(&mut self) -> io::Result<bool> {
        self.port.arm()
    }

    #[inline]
    fn count_queued(&mut self, bytes: usize) {
        self.at_rest = false;
        self.sent.count_over_port(bytes);
    }

    #[cold]
    fn send_by_kernel(
        &mut self,
        to: SocketAddr,
        added: Option<&Added>,
        pieces: &[&[u8]],
        why: KernelReason,
    ) -> Result<(), Reason> {
        self.flush_before_other_path().map_err(Reason::System)?;
        self.kernel.send_to(pieces, to, added.map(|added| &added.controls)).map_err(kernel_send_reason)?;
        self.sent.count_through_kernel(why, pieces.iter().map(|piece| piece.len()).sum());
        self.report(Evidence::Copied(Cause::SocketCall), self.sent.through_kernel_bytes);
        Ok(())
    }

    /// Makes an event of the first bytes with this evidence, if they were copied: by this, or by the sender
    /// that has this as one of its methods.
    #[inline]
    pub(in crate::udp) fn report(&mut self, evidence: Evidence, bytes: u64) {
        self.reported.update(|| Half::UdpSender.into(), || Causes::default().with(evidence, bytes));
    }

    /// Sends queued datagrams before one is sent by another path.
    fn flush_before_other_path(&mut self) -> io::Result<()> {
        if self.at_rest { Ok(()) } else { self.flush().map(drop) }
    }
}

const IPV6_HEADERS: usize = 14 + 40 + 8;

fn free_frame_for_copy(
    port: &mut crate::port::NonblockingSender,
    is_lacking: &mut bool,
) -> Result<Frame, Reason> {
    let frame = port.buffer();
    *is_lacking = frame.is_none();
    frame.ok_or(Reason::Full)
}

fn chain_slices(chain: &Chain<Frame>) -> SmallVec<[&[u8]; 8]> {
    chain.buffers().iter().map(|frame| &**frame).collect()
}

/// Writes the headers in front of a payload, and queues the packet. Returns the unchanged payload if it is
/// refused.
#[inline(always)]
fn queue_with_headers(
    port: &mut crate::port::NonblockingSender,
    mut frame: Frame,
    template: &UdpTemplate,
) -> Result<(), Rejected<Frame>> {
    let needed_bytes = template.header_bytes();
    if frame.prepend(needed_bytes).is_none() {
        let reason = Reason::NoHeadroom { needed_bytes, free_bytes: frame.headroom_bytes() };
        return Err(Rejected { item: frame, reason });
    }
    let (headers, payload) = frame.split_at_mut(needed_bytes);
    template.emit(headers, &[payload]).expect("its length was looked at");
    let sent = match template.offloaded_checksum_field() {
        None => port.send(frame),
        Some(place) => port.send_checksummed(frame, place),
    };
    sent.map_err(|Rejected { item: mut frame, reason }| {
        frame.trim_front(needed_bytes);
        Rejected { item: frame, reason }
    })
}

/// The headers, with a checksum completed here, because ports do not complete checksums of packets in several
/// frames.
fn with_computed_checksum(template: &UdpTemplate) -> UdpTemplate {
    match template.flow().checksum {
        UdpChecksum::Offloaded => {
            let flow = UdpFrame { checksum: UdpChecksum::Computed, ..*template.flow() };
            UdpTemplate::new(&flow).expect("as it was, with a checksum")
        }
        _ => *template,
    }
}
