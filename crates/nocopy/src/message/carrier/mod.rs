//! What brings an endpoint's datagrams to the network and back.

mod port;
mod sockets;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use nocopy_proto::message::framing::{self, Placed};
use nocopy_proto::message::{Kind, Transmit};

use super::counters::CarrierCounters;
use super::endpoint::Buffers;
use super::memory::Shares;
use super::{HEADER_BYTES, OpenError};
use crate::facts::evidence::{Evidence, Tally};
use crate::memory::area::Frame;
use crate::memory::pool::Buffer;
use crate::port::Wait;
use crate::udp::over_port::Socket;
use port::OverPort;
pub(super) use port::Returned;
pub(super) use sockets::PASSING;
use sockets::Sockets;

/// A packet to send: where its carrier keeps it.
#[derive(Debug)]
pub(super) struct Packet(u32);

/// A received datagram, where it lies.
#[derive(Debug)]
pub(super) enum Received {
    /// Alone in a small buffer.
    Buffer(Buffer),
    /// Among others in the buffer that they were received into.
    Shared(sockets::Shared),
    /// In the frame that it came in, by that queue.
    Frame(Frame, u16),
    /// The same, as the program has it.
    Given(port::Given),
    /// In memory of its own, though it is counted as a frame of that queue: it came through the kernel, or in several frames.
    Bytes(Box<[u8]>, u16),
}

/// What came: a datagram, or several of one sender together.
#[derive(Debug)]
pub(super) enum Came {
    Alone(Received),
    Run(sockets::Parts),
}

impl Received {
    /// Makes a datagram the program's.
    pub(super) fn give(self, home: Option<&Arc<Returned>>) -> Self {
        match (self, home) {
            (Self::Frame(frame, queue), Some(home)) => Self::Given(port::Given::new(frame, queue, home)),
            (Self::Bytes(bytes, queue), Some(home)) => {
                home.count(queue); // the program's from here on
                Self::Bytes(bytes, queue)
            }
            (other, _) => other,
        }
    }
}

impl AsRef<[u8]> for Received {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Shared(part) => part.as_ref(),
            Self::Frame(frame, _) => frame,
            Self::Given(frame) => frame.as_ref(),
            Self::Bytes(bytes, _) => bytes,
        }
    }
}

/// How a message is laid into fresh packets.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    pub(super) kind: Kind,
    pub(super) bytes: usize,
    pub(super) payload_bytes_max: usize,
}

impl Layout {
    pub(super) fn chunks(self) -> impl Iterator<Item = Placed> {
        framing::chunks(self.kind, self.bytes, 0, self.payload_bytes_max)
    }
}

/// Packets that can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Whole ones.
    pub(super) packets: usize,
    /// Ones whose bytes lie in buffers, even if each of them had to be put together.
    pub(super) fragments: usize,
    /// Buffers that packets may refer to.
    pub(super) buffers: usize,
}

impl Room {
    /// Of what an owned message takes, the fewer.
    pub(super) fn either(self) -> usize {
        self.packets.min(self.fragments)
    }
}

/// The way to the network.
#[derive(Debug)]
pub(super) enum Carrier {
    Sockets(Box<Sockets>),
    Port(Box<OverPort>),
}

macro_rules! each {
    ($carrier:expr, $name:ident => $call:expr) => {
        match $carrier {
            Carrier::Sockets($name) => $call,
            Carrier::Port($name) => $call,
        }
    };
}

impl Carrier {
    pub(super) fn bind(address: SocketAddr, shares: &Shares) -> Result<Self, OpenError> {
        Ok(Self::Sockets(Box::new(Sockets::bind(address, shares)?)))
    }

    /// Over ports on all queues, of which so many frames may be held each; with the longest datagram they carry.
    pub(super) fn over(sockets: Vec<Socket>, frames_max: u32) -> io::Result<(Self, usize)> {
        let carrier = OverPort::new(sockets, frames_max)?;
        let datagram_bytes_max = carrier.datagram_bytes_max();
        Ok((Self::Port(Box::new(carrier)), datagram_bytes_max))
    }

    /// Who is told of frames that the program takes.
    #[inline]
    pub(super) fn home(&self) -> Option<&Arc<Returned>> {
        match self {
            Self::Sockets(_) => None,
            Self::Port(carrier) => Some(carrier.home()),
        }
    }

    pub(super) fn local_address(&self) -> SocketAddr {
        each!(self, carrier => carrier.local_address())
    }

    /// How many packets can be made now.
    #[inline]
    pub(super) fn room(&self) -> Room {
        each!(self, carrier => carrier.room())
    }

    /// A packet to write.
    #[inline]
    pub(super) fn packet(&mut self) -> Option<Packet> {
        each!(self, carrier => carrier.packet())
    }

    /// The room for its payload.
    #[inline]
    pub(super) fn payload_mut(&mut self, packet: &Packet) -> &mut [u8] {
        each!(self, carrier => carrier.payload_mut(packet))
    }

    #[inline]
    pub(super) fn set_payload_bytes(&mut self, packet: &Packet, bytes: usize) {
        each!(self, carrier => carrier.set_payload_bytes(packet, bytes));
    }

    /// A buffer for a message that is given away, empty.
    pub(super) fn buffer(&mut self) -> Option<Buffer> {
        each!(self, carrier => carrier.buffer())
    }

    /// Buffers for a message that is laid out like this, full length; `None` if there are too few.
    pub(super) fn buffers_for(&mut self, layout: Layout) -> Option<Buffers> {
        each!(self, carrier => carrier.buffers_for(layout))
    }

    /// A packet for each piece of a message that lies in `buffers`; there has to be [room](Self::room) for as many of either kind.
    ///
    /// # Errors
    /// Gives the buffers back if there was none after all. What was made until then is among `made`.
    pub(super) fn fragments(
        &mut self,
        buffers: Buffers,
        layout: Layout,
        made: &mut Vec<Packet>,
    ) -> Result<(), Buffers> {
        each!(self, carrier => carrier.fragments(buffers, layout, made))
    }

    /// Sends something with the next flush.
    #[inline]
    pub(super) fn transmit(&mut self, transmit: &Transmit<'_, Packet>) {
        match transmit {
            Transmit::Packet { to, packet, header, crc, .. } => {
                self.transmit_packet(*to, packet, header, *crc);
            }
            Transmit::Control { to, datagram } => {
                each!(self, carrier => carrier.transmit_control(*to, datagram));
            }
        }
    }

    /// Sends a packet with the next flush, with this header and a CRC if it is to have one.
    #[inline]
    pub(super) fn transmit_packet(
        &mut self,
        to: SocketAddr,
        packet: &Packet,
        header: &[u8; HEADER_BYTES],
        crc: bool,
    ) {
        each!(self, carrier => carrier.transmit_packet(to, packet, header, crc));
    }

    #[inline]
    pub(super) fn flush(&mut self) {
        each!(self, carrier => carrier.flush());
    }

    /// A packet is free again.
    #[inline]
    pub(super) fn release(&mut self, packet: Packet) {
        each!(self, carrier => carrier.release(packet));
    }

    /// Takes packets back that the kernel is done with.
    pub(super) fn take_back(&mut self) {
        match self {
            Self::Sockets(_) => {} // it copies
            Self::Port(carrier) => carrier.take_back(),
        }
    }

    /// Whether packets became free since this was last asked: a released one is not yet while the kernel has it.
    pub(super) fn freed(&mut self) -> bool {
        each!(self, carrier => carrier.freed())
    }

    /// Hands over what has come, without waiting: from where, whether marked, the datagram. Returns how many that was.
    #[inline]
    pub(super) fn receive(&mut self, deliver: &mut impl FnMut(SocketAddr, bool, Came)) -> io::Result<usize> {
        each!(self, carrier => carrier.receive(deliver))
    }

    /// The same, but waits until something comes, the time is up, or a signal came.
    pub(super) fn wait(
        &mut self,
        how: Wait,
        until: Option<Instant>,
        deliver: &mut impl FnMut(SocketAddr, bool, Came),
    ) -> io::Result<usize> {
        each!(self, carrier => carrier.wait(how, until, deliver))
    }

    /// A received datagram is free again.
    #[inline]
    pub(super) fn recycle(&mut self, received: Received) {
        each!(self, carrier => carrier.recycle(received));
    }

    /// Datagrams that there is memory for.
    #[inline]
    pub(super) fn free_to_receive(&self) -> usize {
        each!(self, carrier => carrier.free_to_receive())
    }

    /// Prepares for a wait by other means than ours; true if there is nothing to wait for.
    pub(super) fn arm(&mut self) -> io::Result<bool> {
        each!(self, carrier => carrier.arm())
    }

    pub(super) fn counters(&self) -> CarrierCounters {
        each!(self, carrier => carrier.counters())
    }

    /// What became of the bytes of datagrams that came.
    pub(super) fn received(&self) -> Tally {
        each!(self, carrier => carrier.received())
    }

    /// What is known of copies of what is sent from where it lies.
    pub(super) fn evidence(&self) -> Evidence {
        each!(self, carrier => carrier.evidence())
    }

    /// Bytes of messages that were to go from where they lay, and were put together first.
    pub(super) fn gathered_bytes(&self) -> u64 {
        each!(self, carrier => carrier.gathered_bytes())
    }
}

impl AsFd for Carrier {
    fn as_fd(&self) -> BorrowedFd<'_> {
        each!(self, carrier => carrier.as_fd())
    }
}
