//! Forwarding packets of hosts that leave tags and checksums to a device.

use std::ops::Deref;

use nocopy_proto::wire::unfinished::UnfinishedChecksum;

use super::NonblockingSender;
use crate::facts::metadata::Request;
use crate::facts::rejected::Rejected;
use crate::memory::area::{Chain, Frame, Packet, PacketOrigin};

impl NonblockingSender {
    /// Takes a received packet and queues it as it would be on a wire, to be sent with the next
    /// [`Sender::flush`](crate::Sender::flush).
    ///
    /// Hosts leave some work to the card, and on veth, on a tap, or in a virtual machine a packet may never
    /// have passed one:
    /// * A checksum that is not finished is finished, in packets from interfaces that are known to deliver
    ///   such ones. [`UnfinishedChecksum`] says how they are recognised, and which are not: those inside of
    ///   other packets, such as VXLAN's. On a port opened with
    ///   [`send_metadata`](crate::port::PortBuilder::send_metadata) the card or the kernel finishes them, if
    ///   they can ([`Explanation::checksum`](crate::Explanation::checksum)); otherwise they are finished
    ///   here.
    /// * A VLAN tag that is beside the packet is put back; otherwise the packet would get into another
    ///   network. In AF_XDP modes only a port opened with
    ///   [`receive_metadata`](crate::port::PortBuilder::receive_metadata) can know it.
    ///
    /// All other packets are sent as they are, also those with a wrong checksum. (For packets that went
    /// through other hands first, take the frame, look with [`UnfinishedChecksum`], and use
    /// [`send_with`](Self::send_with).)
    ///
    /// ```
    /// # let (mut host, mut port) = nocopy::Port::memory_pair()?;
    /// # host.sender().send_copy(b"hello")?;
    /// # host.sender().flush()?;
    /// let (receiver, sender) = port.halves(); // or those of two ports with one area
    /// for packet in receiver.receive()? {
    ///     if let Err(rejected) = sender.forward(packet) {
    ///         sender.flush()?; // makes room
    ///         sender.send(rejected.item)?;
    ///     }
    /// }
    /// sender.flush()?;
    /// assert_eq!(&*host.receiver().receive()?.next().expect("a packet"), b"hello");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send`](Self::send). The frame is returned, with its tag and its checksum, ready to be sent.
    #[inline]
    pub fn forward(&mut self, packet: Packet<'_>) -> Result<(), Rejected<Frame>> {
        let origin = packet.origin();
        // One comparison for three cases.
        let is_complete = origin <= PacketOrigin::WIRE
            && (origin == PacketOrigin::WIRE || UnfinishedChecksum::is_ruled_out(&packet));
        if is_complete { self.send(packet.take_frame()) } else { self.complete_and_send(packet) }
    }

    /// [`forward`](Self::forward) for a packet in one or several frames, whose headers are all in the first.
    /// Its checksum is finished here: no device does it for packets in several frames.
    ///
    /// # Errors
    /// As [`send_chain`](Self::send_chain). The chain is returned, with its tag and its checksum, ready to be
    /// sent.
    #[expect(clippy::result_large_err, reason = "gives back what it was given")]
    pub fn forward_chain(&mut self, packet: Chain<Packet<'_>>) -> Result<(), Rejected<Chain<Frame>>> {
        let mut packets = packet.into_iter();
        let first = packets.next();
        let is_wireless = first.as_ref().is_some_and(|first| first.origin().is_without_wire());
        let first = first.map(Packet::take_tagged);
        let mut chain: Chain<Frame> = first.into_iter().chain(packets.map(Packet::take)).collect();
        let first = chain.buffers().first().filter(|_| is_wireless);
        if let Some(unfinished) =
            first.and_then(|first| UnfinishedChecksum::find_in_first_piece(first, chain.len()))
        {
            let finished = unfinished.compute(chain.buffers().iter().map(Deref::deref));
            chain.write_at(finished.offset(), finished.bytes());
        }
        self.send_chain(chain)
    }

    /// Sends a packet that may lack its checksum or its tag, or lies in a block.
    #[inline(never)]
    fn complete_and_send(&mut self, packet: Packet<'_>) -> Result<(), Rejected<Frame>> {
        let is_wireless = packet.origin().is_without_wire();
        let mut frame = packet.take_tagged();
        let Some(unfinished) = is_wireless.then(|| UnfinishedChecksum::find_in_frame(&frame)).flatten()
        else {
            return self.send(frame);
        };
        frame.truncate(unfinished.end_bytes()); // devices sum up to the end of the packet
        let place = unfinished.field_for_device().filter(|_| self.pool.offers().checksum.is_ok());
        if let Some(place) = place.filter(|_| frame.has_room_for_request()) {
            return self.send_with(frame, Request::default().checksum(place)).map_err(|mut rejected| {
                unfinished.finish(&mut rejected.item);
                rejected
            });
        }
        unfinished.finish(&mut frame);
        self.send(frame)
    }
}
