//! What brings an endpoint's datagrams to the network and back.

mod any;
mod port;
mod sockets;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use nocopy_proto::message::framing;
use nocopy_proto::message::{Kind, Piece};

use super::HEADER_BYTES;
use super::counters::CarrierCounters;
use super::placing::{Placed, Straight};
use super::streams::Part;
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::explanation::Explanation;
use crate::memory::area::Frame;
use crate::memory::pieces::Buffers;
use crate::memory::pool::Buffer;
use crate::port::Wait;
pub(super) use any::AnyCarrier;
pub(super) use port::{OverPort, Returned};
pub(super) use sockets::{PASSING, Parts, Sockets};

/// A packet to send: where its carrier keeps it.
#[derive(Debug)]
pub(super) struct Packet(u32);

/// What tells units from packets of the carrier.
const UNIT: u32 = 1 << 31;

impl Packet {
    /// A unit, which streams keep by this number.
    pub(super) fn unit(number: u32) -> Self {
        Self(number | UNIT)
    }

    /// Its number, if it is a unit.
    #[inline]
    pub(super) fn as_unit(&self) -> Option<u32> {
        (self.0 & UNIT != 0).then_some(self.0 & !UNIT)
    }

    /// The number of a unit.
    ///
    /// # Panics
    /// It is none.
    pub(super) fn number(&self) -> u32 {
        self.as_unit().expect("a unit")
    }
}

/// What a packet's memory is still needed for: until it was handed to the kernel, and until the peer has it.
#[derive(Debug, Clone, Copy, Default)]
struct Hold {
    waits: bool,
    acknowledged: bool,
}

impl Hold {
    /// It waits to be handed to the kernel. False if it does already.
    #[inline]
    fn begin_to_wait(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    /// It was handed to the kernel, or given up. True if it was acknowledged meanwhile, and is free now.
    #[inline]
    fn end_wait(&mut self) -> bool {
        self.waits = false;
        self.acknowledged
    }

    /// The peer has it. True if it does not wait, and is free now.
    #[inline]
    fn acknowledge(&mut self) -> bool {
        self.acknowledged = true;
        !self.waits
    }
}

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
    /// A unit that came over a stream.
    Unit(Part),
    /// A message in a buffer that was posted for it.
    Placed(Box<Placed>),
    /// A put that was read to where it belongs.
    Put(Box<Straight>),
    /// In memory of its own, though it is counted as a frame of that queue: it came through the kernel, or in several frames.
    Bytes(Box<[u8]>, u16),
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
            (Self::Placed(mut placed), _) => {
                placed.keep();
                Self::Placed(placed)
            }
            (other, _) => other,
        }
    }
}

impl AsRef<[u8]> for Received {
    #[inline(always)] // several times for each packet, and nearly always the first kind
    fn as_ref(&self) -> &[u8] {
        if let Self::Buffer(buffer) = self { buffer } else { self.elsewhere() }
    }
}

impl Received {
    /// The bytes of one that is not in a buffer of its own.
    fn elsewhere(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Shared(part) => part.as_ref(),
            Self::Unit(part) => part.as_ref(),
            Self::Placed(placed) => (**placed).as_ref(),
            Self::Put(put) => (**put).as_ref(),
            Self::Frame(frame, _) => frame,
            Self::Given(frame) => frame.as_ref(),
            Self::Bytes(bytes, _) => bytes,
        }
    }
}

/// Event data of the carrier's descriptors, in an epoll instance that watches other things, too.
pub(super) const CARRIER: u64 = u64::MAX - 1;

/// A part of a datagram, where it was received: it is overwritten by the next call that receives, unless it is kept.
#[derive(Debug)]
pub(super) enum Lone<'a> {
    /// In a buffer that is received into.
    Shown(&'a [u8], &'a mut sockets::Intake),
    /// In memory of its own, which is there.
    Held(&'a mut Option<Received>, Range<usize>),
}

impl Lone<'_> {
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Shown(bytes, _) => bytes,
            Self::Held(datagram, range) => {
                datagram.as_ref().map_or(&[], |datagram| &datagram.as_ref()[range.clone()])
            }
        }
    }

    /// Keeps it.
    pub(super) fn keep(self) -> Piece<Received> {
        match self {
            Self::Shown(bytes, intake) => match intake.copied(bytes) {
                Some(datagram) => Piece::Datagram(datagram, 0..bytes.len()),
                None => Piece::Copy(bytes.into()),
            },
            Self::Held(datagram, range) => match datagram.take() {
                Some(datagram) => Piece::Datagram(datagram, range),
                None => Piece::Copy([].into()),
            },
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
    pub(super) fn chunks(self) -> impl Iterator<Item = framing::Placed> {
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
    /// The same without so many packets.
    #[inline]
    pub(super) fn without(self, packets: usize) -> Self {
        let less = |room: usize| room.saturating_sub(packets);
        Self { packets: less(self.packets), fragments: less(self.fragments), ..self }
    }

    /// Of what an owned message takes, the fewer.
    pub(super) fn either(self) -> usize {
        self.packets.min(self.fragments)
    }
}

/// Takes datagrams as they come, with their sender and whether they were marked.
pub(super) trait Deliver {
    /// Takes the last datagram that came, where it lies, if that is one message, for which the program waits, and returns whether it is.
    fn lone(&mut self, from: SocketAddr, congested: bool, datagram: &[u8]) -> bool;

    /// Takes a datagram where it lies, if it is a common one, and returns whether it is; if it is to be kept, `keep` makes what is, unless
    /// there is no memory for that.
    fn in_place(
        &mut self,
        from: SocketAddr,
        congested: bool,
        datagram: &[u8],
        keep: impl FnOnce() -> Option<Received>,
    ) -> bool;

    /// A datagram to be kept.
    fn one(&mut self, from: SocketAddr, congested: bool, datagram: Received);

    /// Several of one sender that came together.
    fn run(&mut self, from: SocketAddr, congested: bool, run: Parts);
}

/// The way to the network.
pub(super) trait Carrier: Debug + Send {
    /// Its name and what it goes over, and what it was compared with.
    fn explain(&self) -> Explanation;

    /// What counts the frames that the program takes, if it takes frames.
    fn home(&self) -> Option<&Arc<Returned>> {
        None
    }

    fn local_address(&self) -> SocketAddr;

    /// A socket of the kernel with this address, by which a thread may send while the program is not here; `None` if there is none.
    fn socket(&self) -> Option<BorrowedFd<'_>>;

    /// How many packets can be made now.
    fn room(&self) -> Room;

    /// A packet to write.
    fn packet(&mut self) -> Option<Packet>;

    /// The room for its payload.
    fn payload_mut(&mut self, packet: &Packet) -> &mut [u8];

    fn set_payload_bytes(&mut self, packet: &Packet, bytes: usize);

    /// A buffer for a message that is given away, empty.
    fn buffer(&mut self) -> Option<Buffer>;

    /// Takes a buffer back that was not sent.
    fn put_buffer(&mut self, buffer: Buffer) {
        drop(buffer);
    }

    /// Buffers for a message that is laid out like this, full length; `None` if there are too few.
    fn buffers_for(&mut self, layout: Layout) -> Option<Buffers>;

    /// A packet for each piece of a message that lies in `buffers`; there has to be [room](Self::room) for as many of either kind.
    ///
    /// # Errors
    /// Gives the buffers back if there was none after all. What was made until then is among `made`.
    fn fragments(&mut self, buffers: Buffers, layout: Layout, made: &mut Vec<Packet>) -> Result<(), Buffers>;

    /// Sends a packet with the next flush, with this header and a CRC if it is to have one.
    fn transmit_packet(&mut self, to: SocketAddr, packet: &Packet, header: &[u8; HEADER_BYTES], crc: bool);

    /// Sends a packet at once, behind what waits to be sent.
    #[inline]
    fn send_packet(&mut self, to: SocketAddr, packet: &Packet, header: &[u8; HEADER_BYTES]) {
        self.transmit_packet(to, packet, header, false);
        self.flush();
    }

    /// Sends a datagram of the protocol's own with the next flush.
    fn transmit_control(&mut self, to: SocketAddr, datagram: &[u8]);

    /// Sends a datagram of the protocol's own at once, behind what waits to be sent.
    #[inline]
    fn send_control(&mut self, to: SocketAddr, datagram: &[u8]) {
        self.transmit_control(to, datagram);
        self.flush();
    }

    /// Shows the kernel what is queued. An interface that is down or removed is reported when something is received.
    fn flush(&mut self);

    /// Whether there was no room for everything that was to be handed over.
    fn is_stuck(&mut self) -> bool;

    /// Whether the kernel has to be asked again soon to go on.
    fn wants_look(&mut self) -> bool {
        self.is_stuck()
    }

    /// Packets that were made and whose memory is not free yet: they are not acknowledged, or the kernel has them.
    fn in_use(&self) -> usize;

    /// A packet is free again.
    fn release(&mut self, packet: Packet);

    /// Takes packets back that the kernel is done with; there are none where it copies them.
    fn take_back(&mut self) {}

    /// Whether packets became free since this was last asked: a released one is not yet while the kernel has it.
    fn freed(&mut self) -> bool;

    /// Hands over what has come, without waiting, and returns how many datagrams that was.
    fn receive(&mut self, deliver: &mut impl Deliver) -> io::Result<usize>;

    /// The same, but waits until something comes, the time is up, or a signal came.
    fn wait(&mut self, how: Wait, until: Option<Instant>, deliver: &mut impl Deliver) -> io::Result<usize>;

    /// Part of the datagram that was taken [alone](Deliver::lone) with the last call.
    fn lone(&mut self, range: Range<usize>) -> Lone<'_>;

    /// A received datagram is free again.
    fn recycle(&mut self, received: Received);

    /// Datagrams that there is memory for.
    fn free_to_receive(&self) -> usize;

    /// Prepares for a wait on the endpoint's descriptor; true if there is nothing to wait for.
    fn arm(&mut self) -> io::Result<bool>;

    /// Makes an epoll instance readable when something comes.
    fn watch(&self, poll: BorrowedFd<'_>) -> io::Result<()>;

    fn counters(&self) -> CarrierCounters;

    /// What became of the bytes of datagrams that came.
    fn received(&self) -> Ledger;

    /// What is known of copies of what is sent from where it lies.
    fn evidence(&self) -> Evidence;

    /// Bytes of messages that were to go from where they lay, and were put together first.
    fn gathered_bytes(&self) -> u64;
}
