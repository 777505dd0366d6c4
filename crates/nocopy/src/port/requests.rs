//! Sending packets with requests, and what a port can do of them.

use super::redirect::Redirect;
use super::{Mode, PortBuilder, Rejected, RejectedReason, Sender};
use crate::facts::metadata::{ChecksumBy, Clock, Departure, Offers, Place, Request, Unsupported};
use crate::memory::area::{Frame, Pool};
use crate::port::xdp::KernelVersion;
use crate::sys::interface::Interface;
use crate::sys::netdev::XdpFeatures;
use crate::sys::xsk::XskSocket;

/// The first kernel that takes `XDP_UMEM_TX_METADATA_LEN`; some before it knew requests in another way.
const REQUESTS_KERNEL_MIN: KernelVersion = KernelVersion(6, 11);

// linux/netdev.h, `enum netdev_xsk_flags`
const NETDEV_XSK_FLAGS_TX_TIMESTAMP: u64 = 1 << 0;
const NETDEV_XSK_FLAGS_TX_CHECKSUM: u64 = 1 << 1;

impl PortBuilder {
    /// Tells the pools of an AF_XDP port what comes with packets, and what may be asked for them.
    pub(super) fn equip(
        &self,
        pools: &mut (Pool, Pool),
        mode: Mode,
        interface: &Interface,
        redirect: &Redirect,
        socket: &XskSocket,
    ) {
        pools.0.set_arrivals(redirect.arrivals(self, mode));
        let kernel = Unsupported::Kernel(REQUESTS_KERNEL_MIN);
        pools.1.set_offers(match (self.send_metadata, mode) {
            (false, _) => Offers::none(Unsupported::NotRequested),
            (true, Mode::XdpZeroCopy) if !offers_of_driver(interface).are_any() => {
                Offers::none(Unsupported::Driver)
            }
            (true, _) if !socket.asked_for_requests => Offers::none(Unsupported::Driver),
            (true, _) if !socket.takes_requests => Offers::none(kernel),
            (true, Mode::XdpZeroCopy) => offers_of_driver(interface),
            (true, _) => Offers { checksum: Ok(ChecksumBy::Kernel), timestamp: Ok(Clock::Tai) },
        });
    }

    /// Whether packets may carry requests in this mode: not where the driver would heed none: the room in front of each
    /// packet would be for nothing.
    pub(super) fn registers_requests(&self, interface: &Interface, mode: Mode) -> bool {
        self.send_metadata && (mode != Mode::XdpZeroCopy || offers_of_driver(interface).are_any())
    }
}

/// What a driver does for packets that it takes out of the area itself.
fn offers_of_driver(interface: &Interface) -> Offers {
    let bits = XdpFeatures::of(interface.index).ok().and_then(|features| features.send_metadata).unwrap_or(0);
    let has = |bit| if bits & bit == 0 { Err(Unsupported::Driver) } else { Ok(()) };
    Offers {
        checksum: has(NETDEV_XSK_FLAGS_TX_CHECKSUM).map(|()| ChecksumBy::Device),
        timestamp: has(NETDEV_XSK_FLAGS_TX_TIMESTAMP).map(|()| Clock::Device),
    }
}

impl Offers {
    const fn are_any(&self) -> bool {
        self.checksum.is_ok() || self.timestamp.is_ok()
    }

    /// Why a request cannot be met.
    fn refusal_of(&self, request: &Request) -> Option<Unsupported> {
        let checksum = request.checksum.and_then(|_| self.checksum.err());
        checksum.or_else(|| request.timestamp.and_then(|_| self.timestamp.err()))
    }
}

impl Sender {
    /// What this port can do for the packets it sends, of what was asked for with
    /// [`send_metadata`](PortBuilder::send_metadata).
    pub fn offers(&self) -> Offers {
        self.pool.offers()
    }

    /// Like [`Sender::send`], with a request to the card or the kernel, which holds for this one time. (Packets in several frames
    /// take none.)
    ///
    /// # Errors
    /// As [`Sender::send`]; and the request cannot be met here ([`Sender::offers`]), the checksum would lie outside the packet, or
    /// there is no room for the request in front of the packet (16 bytes).
    pub fn send_with(&mut self, frame: Frame, request: Request) -> Result<(), Rejected> {
        if request == Request::new() {
            return self.send(frame);
        }
        let outside = request.checksum.and_then(|place| place.check(frame.len()).err());
        let reason = match self.pool.offers().refusal_of(&request) {
            Some(unsupported) => Some(RejectedReason::Unsupported(unsupported)),
            None => outside.map(RejectedReason::ChecksumOutside).or_else(|| self.refusal_on_sight(&frame)),
        };
        if let Some(reason) = reason {
            return Err(Rejected { frame, reason });
        }
        let Some(slot) = self.tx.vacant() else {
            return Err(Rejected { frame, reason: RejectedReason::RingFull });
        };
        match self.pool.lend_with(frame, &request) {
            Ok(descriptor) => {
                slot.write(descriptor);
                self.departures.expect(descriptor.address, &request);
                Ok(())
            }
            Err(frame) => Err(Rejected { frame, reason: RejectedReason::ForeignArea }),
        }
    }

    /// Sends a frame whose checksum is still to be completed at `place`: by card or kernel where they do it, in software where not.
    /// Returns who does it.
    ///
    /// # Errors
    /// As [`Sender::send`]; and the checksum would lie outside the packet. The frame that is given back is as it was.
    pub fn send_checksummed(&mut self, mut frame: Frame, place: Place) -> Result<ChecksumBy, Rejected> {
        if let Ok(by) = self.pool.offers().checksum {
            return self.send_with(frame, Request::new().checksum(place)).map(|()| by);
        }
        if let Err(outside) = place.check(frame.len()) {
            return Err(Rejected { frame, reason: RejectedReason::ChecksumOutside(outside) });
        }
        let field = usize::from(place.start) + usize::from(place.offset);
        let before = [frame[field], frame[field + 1]];
        let completed = place.complete(&mut frame);
        debug_assert!(completed.is_ok(), "looked at just now");
        match self.send(frame) {
            Ok(()) => Ok(ChecksumBy::Software),
            Err(mut rejected) => {
                rejected.frame[field..field + 2].copy_from_slice(&before);
                Err(rejected)
            }
        }
    }

    /// When packets left that were sent with [`Request::timestamp`], in the order in which the kernel was done with them. Look after
    /// [`Sender::flush`] or [`Sender::reap`]; what is not taken is kept.
    pub fn departures(&mut self) -> impl Iterator<Item = Departure> + '_ {
        self.departures.take()
    }

    /// Why a frame cannot be sent, on a port whose packets may carry requests: the kernel wants room for one in front of each.
    #[cold]
    pub(super) fn refusal_on_sight(&self, frame: &Frame) -> Option<RejectedReason> {
        if frame.is_empty() {
            Some(RejectedReason::Empty)
        } else if frame.len() > self.longest_frame() {
            Some(RejectedReason::TooLong { bytes_max: self.longest_frame() })
        } else if !frame.has_room_for_request() {
            Some(RejectedReason::NoRoomForRequest)
        } else {
            None
        }
    }

    /// [`Sender::send`] on such a port.
    #[cold]
    pub(super) fn send_on_sight(&mut self, frame: Frame) -> Result<(), Rejected> {
        if let Some(reason) = self.refusal_on_sight(&frame) {
            return Err(Rejected { frame, reason });
        }
        self.put(frame)
    }

    /// [`Sender::reap`] while times of leaving are awaited: they lie in the frames, which may be sent again once they are home.
    #[cold]
    pub(super) fn reap_departures(&mut self) -> u32 {
        let completed = self.completion.peek(u32::MAX);
        let mut count = 0;
        while let Some(address) = completed.look(count) {
            self.departures.completed(address, &self.pool);
            count += 1;
        }
        drop(completed);
        self.pool.reap_some(&mut self.completion, count, &mut self.faults, &mut self.kept)
    }
}
