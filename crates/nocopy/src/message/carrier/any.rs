//! An enum of all carriers. A trait object would make each packet cost virtual calls, which are not inlined.

use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use nocopy_proto::message::wire::Headers;
use nocopy_proto::message::{Path, Time};

#[cfg(feature = "port")]
use super::OverPort;
use super::{Alone, Carrier, Deliver, Layout, Lone, Packet, Received, Returned, Room, Sockets};
use crate::events::Causes;
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::memory::pieces::Buffers;
use crate::memory::pool::{Buffer, BufferMut};
use crate::message::HEADER_BYTES;
use crate::message::counters::CarrierCounters;
use crate::port::Wait;

#[derive(Debug)]
pub(in crate::message) enum AnyCarrier {
    Sockets(Box<Sockets>),
    #[cfg(feature = "port")]
    Port(Box<OverPort>),
}

impl AnyCarrier {
    /// Whether the carrier's descriptor stays readable while something is to be received.
    pub(in crate::message) fn is_socket(&self) -> bool {
        self.sockets().is_some()
    }

    /// How many packets of one message a call sends, and a call receives.
    #[inline]
    pub(in crate::message) fn packets_a_call(&self) -> usize {
        self.sockets().map_or(1, Sockets::packets_a_call)
    }

    pub(in crate::message) fn sockets(&self) -> Option<&Sockets> {
        match self {
            Self::Sockets(sockets) => Some(sockets),
            #[cfg(feature = "port")]
            Self::Port(_) => None,
        }
    }
}

impl From<Sockets> for AnyCarrier {
    fn from(sockets: Sockets) -> Self {
        Self::Sockets(Box::new(sockets))
    }
}

#[cfg(feature = "port")]
impl From<OverPort> for AnyCarrier {
    fn from(port: OverPort) -> Self {
        Self::Port(Box::new(port))
    }
}

/// Calls a method of the carrier, whichever it is.
macro_rules! carry {
    ($self:ident.$method:ident($($argument:expr),*)) => {
        match $self {
            Self::Sockets(carrier) => carrier.$method($($argument),*),
            #[cfg(feature = "port")]
            Self::Port(carrier) => carrier.$method($($argument),*),
        }
    };
}

impl Carrier for AnyCarrier {
    #[inline]
    fn explain(&self) -> Explanation {
        carry!(self.explain())
    }

    #[inline]
    fn home(&self) -> Option<&Arc<Returned>> {
        carry!(self.home())
    }

    #[inline]
    fn local_addr(&self) -> SocketAddr {
        carry!(self.local_addr())
    }

    #[inline]
    fn room(&self) -> Room {
        carry!(self.room())
    }

    #[inline(always)] // for each packet
    fn packet(&mut self) -> Option<Packet> {
        carry!(self.packet())
    }

    #[inline(always)] // for each message
    fn payload_mut(&mut self, packet: &Packet) -> &mut [u8] {
        carry!(self.payload_mut(packet))
    }

    #[inline]
    fn set_payload_bytes(&mut self, packet: &Packet, bytes: usize) {
        carry!(self.set_payload_bytes(packet, bytes))
    }

    #[inline]
    fn copy_to_packets(&mut self, message: &[u8], layout: Layout, made: &mut Vec<Packet>) -> Option<usize> {
        carry!(self.copy_to_packets(message, layout, made))
    }

    #[inline]
    fn buffer(&mut self) -> Option<BufferMut> {
        carry!(self.buffer())
    }

    #[inline]
    fn put_buffer(&mut self, buffer: Buffer) {
        carry!(self.put_buffer(buffer))
    }

    #[inline]
    fn buffers_for(&mut self, layout: Layout) -> Option<Buffers> {
        carry!(self.buffers_for(layout))
    }

    #[inline]
    fn fragments(&mut self, buffers: Buffers, layout: Layout, made: &mut Vec<Packet>) -> Result<(), Buffers> {
        carry!(self.fragments(buffers, layout, made))
    }

    #[inline]
    fn transmit_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], crc: bool) {
        carry!(self.transmit_packet(to, packet, header, crc))
    }

    #[inline]
    fn send_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], now: Time) {
        carry!(self.send_packet(to, packet, header, now))
    }

    #[inline]
    fn send_run(&mut self, to: &Path, packets: &[Packet], headers: Headers) {
        carry!(self.send_run(to, packets, headers))
    }

    #[inline]
    fn transmit_control(&mut self, to: &Path, datagram: &[u8]) {
        carry!(self.transmit_control(to, datagram))
    }

    #[inline]
    fn send_control(&mut self, to: &Path, datagram: &[u8]) {
        carry!(self.send_control(to, datagram))
    }

    #[inline]
    fn has_room_for(&mut self, to: &Path, bytes: usize, is_proven: bool) -> bool {
        carry!(self.has_room_for(to, bytes, is_proven))
    }

    #[inline]
    fn flush(&mut self) {
        carry!(self.flush())
    }

    #[inline]
    fn is_stuck(&mut self) -> bool {
        carry!(self.is_stuck())
    }

    #[inline]
    fn wants_look(&mut self) -> bool {
        carry!(self.wants_look())
    }

    #[inline]
    fn in_use(&self) -> usize {
        carry!(self.in_use())
    }

    fn unacknowledged(&self) -> usize {
        carry!(self.unacknowledged())
    }

    #[inline]
    fn release(&mut self, packet: Packet) {
        carry!(self.release(packet))
    }

    #[inline]
    fn take_back(&mut self) {
        carry!(self.take_back())
    }

    #[inline]
    fn freed(&mut self) -> bool {
        carry!(self.freed())
    }

    #[inline]
    fn receive(&mut self, deliver: &mut impl Deliver) -> io::Result<usize> {
        carry!(self.receive(deliver))
    }

    #[inline]
    fn leave_none_out(&mut self) -> bool {
        carry!(self.leave_none_out())
    }

    #[inline]
    fn wait(&mut self, how: Wait, until: Option<Instant>, deliver: &mut impl Deliver) -> io::Result<usize> {
        carry!(self.wait(how, until, deliver))
    }

    #[inline]
    fn lone(&mut self, place: Alone) -> Lone<'_> {
        carry!(self.lone(place))
    }

    #[inline]
    fn recycle(&mut self, received: Received) {
        carry!(self.recycle(received))
    }

    #[inline]
    fn free_to_receive(&self) -> usize {
        carry!(self.free_to_receive())
    }

    #[inline]
    fn arm(&mut self) -> io::Result<bool> {
        carry!(self.arm())
    }

    #[inline]
    fn watch(&mut self, poll: BorrowedFd<'_>) -> io::Result<()> {
        carry!(self.watch(poll))
    }

    #[inline]
    fn counters(&self) -> CarrierCounters {
        carry!(self.counters())
    }

    #[inline]
    fn received(&self) -> Ledger {
        carry!(self.received())
    }

    #[inline]
    fn received_causes(&self) -> Causes {
        carry!(self.received_causes())
    }

    #[inline]
    fn evidence(&self) -> Evidence {
        carry!(self.evidence())
    }

    #[inline]
    fn gathered_bytes(&self) -> u64 {
        carry!(self.gathered_bytes())
    }
}
