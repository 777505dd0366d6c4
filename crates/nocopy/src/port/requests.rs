//! Sending packets with requests, and which of them a port can fulfil.
//!
//! A request is an argument of sending, not a state of the frame, so no old request can be sent with a frame.
//! The kernel needs room in front of every packet of such a socket, and would never return a frame without
//! room; so these ports check each frame, on the path of oversized frames.

use super::drivers;
use super::redirect::RedirectProgram;
use super::sender::{length_refusal, request_room_refusal};
use super::{Mode, NonblockingSender, PortBuilder};
use crate::facts::features;
use crate::facts::metadata::{ChecksumField, Clock, OfferedRequests, Request, Timestamp, Unsupported};
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::{Frame, FramePool};
use crate::sys::interface::Interface;
use crate::sys::netdev::XdpFeatures;
use crate::sys::xsk::XskSocket;

// linux/netdev.h, `enum netdev_xsk_flags`
const NETDEV_XSK_FLAGS_TX_TIMESTAMP: u64 = 1 << 0;
const NETDEV_XSK_FLAGS_TX_CHECKSUM: u64 = 1 << 1;

impl PortBuilder {
    /// Sets which metadata the pools of an AF_XDP port receive, and which requests they accept.
    pub(super) fn set_pool_metadata(
        &self,
        pools: &mut (FramePool, FramePool),
        mode: Mode,
        interface: &Interface,
        redirect: &RedirectProgram,
        socket: &XskSocket,
    ) {
        pools.0.set_arrivals(redirect.arrival_metadata(self, mode));
        pools.0.set_without_wire(drivers::may_have_unfinished_checksums(interface));
        let kernel = Unsupported::Kernel(features::SEND_METADATA.kernel);
        pools.1.set_offers(match (self.send_metadata, mode) {
            (false, _) => OfferedRequests::none(Unsupported::NotRequested),
            (true, Mode::XdpZeroCopy) if !driver_offers(interface).is_any_offered() => {
                OfferedRequests::none(Unsupported::Driver)
            }
            (true, _) if !socket.asked_for_requests => OfferedRequests::none(Unsupported::Driver),
            (true, _) if !socket.takes_requests => OfferedRequests::none(kernel),
            (true, Mode::XdpZeroCopy) => driver_offers(interface),
            (true, _) => OfferedRequests { checksum: Ok(()), timestamp: Ok(Clock::Tai) },
        });
    }

    /// Whether packets may carry requests in this mode. Not if the driver would ignore them: the room in
    /// front of each packet would be wasted.
    pub(super) fn registers_requests(&self, interface: &Interface, mode: Mode) -> bool {
        self.send_metadata && (mode != Mode::XdpZeroCopy || driver_offers(interface).is_any_offered())
    }
}

/// Requests of a driver that reads packets in the area itself.
fn driver_offers(interface: &Interface) -> OfferedRequests {
    let bits = XdpFeatures::of(interface.index).ok().and_then(|features| features.send_metadata).unwrap_or(0);
    let has = |bit| if bits & bit == 0 { Err(Unsupported::Driver) } else { Ok(()) };
    OfferedRequests {
        checksum: has(NETDEV_XSK_FLAGS_TX_CHECKSUM),
        timestamp: has(NETDEV_XSK_FLAGS_TX_TIMESTAMP).map(|()| Clock::Device),
    }
}

impl OfferedRequests {
    const fn is_any_offered(&self) -> bool {
        self.checksum.is_ok() || self.timestamp.is_ok()
    }
}

impl NonblockingSender {
    /// Like [`send`](Self::send), with a request to the card or the kernel, used once. A checksum that
    /// neither of them completes ([`Explanation::checksum`](crate::Explanation::checksum)) is completed in
    /// software. (Packets in several frames cannot have requests.)
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// use nocopy::{Reason, metadata::Request};
    /// let mut frame = port.sender().buffer().expect("a fresh port has free frames");
    /// frame.fill(b"hello").expect("it fits");
    /// let rejected = port.sender().send_with(frame, Request::default().timestamp(7)).unwrap_err();
    /// assert!(matches!(rejected.reason, Reason::Unsupported(_))); // this port knows no time of leaving
    /// port.sender().send(rejected.item)?; // then without
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send`](Self::send). Also: no departure time is available here, the checksum would lie outside the
    /// packet, or there is no room for the request in front of the packet (16 bytes). The frame is returned
    /// unchanged.
    pub fn send_with(&mut self, frame: Frame, request: Request) -> Result<(), Rejected<Frame>> {
        let outside = request.checksum.and_then(|place| place.check(frame.len()).err());
        let offers = self.pool.offers();
        let timestamp = request.timestamp.and_then(|_| offers.timestamp.err());
        let refused = timestamp.map(Reason::Unsupported).or(outside.map(Reason::ChecksumOutside));
        match (refused, request.checksum) {
            (Some(reason), _) => Err(Rejected { item: frame, reason }),
            (None, Some(place)) if offers.checksum.is_err() => {
                self.send_with_software_checksum(frame, place, request)
            }
            (None, _) => self.send_with_request(frame, request),
        }
    }

    /// Sends with the checksum completed in software.
    fn send_with_software_checksum(
        &mut self,
        mut frame: Frame,
        place: ChecksumField,
        request: Request,
    ) -> Result<(), Rejected<Frame>> {
        let field = usize::from(place.start) + usize::from(place.offset);
        let before = [frame[field], frame[field + 1]];
        let completed = place.complete(&mut frame);
        debug_assert!(completed.is_ok(), "looked at before");
        let sent = self.send_with_request(frame, Request { checksum: None, ..request });
        sent.map_err(|mut rejected| {
            rejected.item[field..field + 2].copy_from_slice(&before);
            rejected
        })
    }

    fn send_with_request(&mut self, frame: Frame, request: Request) -> Result<(), Rejected<Frame>> {
        if request == Request::default() {
            return self.send(frame);
        }
        if let Some(reason) = self.request_refusal(&frame) {
            return Err(Rejected { item: frame, reason });
        }
        let Some(slot) = self.tx.vacant_slot() else {
            return Err(Rejected { item: frame, reason: Reason::Full });
        };
        match self.pool.lend_with_request(frame, &request) {
            Ok(descriptor) => {
                slot.write(descriptor);
                self.correct_queued_bytes(descriptor.len as usize);
                self.departures.expect_departure(descriptor.address, &request);
                Ok(())
            }
            Err(frame) => Err(Rejected { item: frame, reason: Reason::ForeignArea }),
        }
    }

    /// [`send_with`](Self::send_with) for a checksum alone.
    pub(crate) fn send_checksummed(
        &mut self,
        frame: Frame,
        place: ChecksumField,
    ) -> Result<(), Rejected<Frame>> {
        self.send_with(frame, Request::default().checksum(place))
    }

    /// Departure times of packets sent with [`Request::timestamp`], each with its token, in the order in
    /// which the kernel finished them; [`Unsupported::Absent`] if the driver gave none. Call it after
    /// [`Sender::flush`](crate::Sender::flush) or [`reap`](Self::reap); times not taken are kept.
    ///
    /// ```no_run
    /// use nocopy::{Port, metadata::Request};
    /// let mut port = Port::builder("eth0").send_metadata(true).open()?;
    /// let mut frame = port.sender().buffer().ok_or("no frame is free")?;
    /// frame.fill(&[0xff; 60])?;
    /// port.sender().send_with(frame, Request::default().timestamp(7))?;
    /// port.sender().drain(std::time::Duration::from_secs(1))?;
    /// for (token, left) in port.sender().departures() {
    ///     println!("packet {token} left at {} ns", left?.ns);
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn departures(&mut self) -> impl Iterator<Item = (u64, Result<Timestamp, Unsupported>)> + '_ {
        self.departures.take_known()
    }

    /// Why a frame cannot be sent on a port whose packets may carry requests: the kernel needs room for a
    /// request in front of each.
    #[cold]
    pub(super) fn request_refusal(&self, frame: &Frame) -> Option<Reason> {
        if frame.is_empty() || frame.len() > self.longest_frame() {
            Some(length_refusal(frame.len(), self.longest_frame()))
        } else if !frame.has_room_for_request() {
            Some(request_room_refusal(frame))
        } else {
            None
        }
    }

    /// [`send`](Self::send) on a port whose packets may carry requests.
    #[cold]
    pub(super) fn send_reserving_request(&mut self, frame: Frame) -> Result<(), Rejected<Frame>> {
        if let Some(reason) = self.request_refusal(&frame) {
            return Err(Rejected { item: frame, reason });
        }
        self.put_into_ring(frame)
    }

    /// [`reap`](Self::reap) while departure times are expected: these are in the frames, and must be read
    /// before the frames are sent again.
    #[cold]
    pub(super) fn reap_departures(&mut self) -> u32 {
        let completed = self.completion.ready_entries(u32::MAX);
        let mut count = 0;
        while let Some(address) = completed.entry_at(count) {
            self.departures.read_departure(address, &self.pool);
            count += 1;
        }
        // None was taken. Below, no more are reaped than were looked at: of later ones the time was not read
        // yet.
        drop(completed);
        self.pool.reap(&mut self.completion, count, &mut self.faults, &mut self.kept)
    }
}
