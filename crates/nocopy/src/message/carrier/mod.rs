//! A *carrier* sends and receives an endpoint's datagrams, over sockets or a port.

mod any;
#[cfg_attr(not(feature = "port"), path = "port/absent.rs")]
mod port;
mod sockets;

use std::fmt::Debug;
use std::io;
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Instant;

use either::Either::{Left, Right};
use nocopy_proto::message::framing::{self, Spread};
use nocopy_proto::message::wire::Headers;
use nocopy_proto::message::{Kind, Local, Path, Piece, Time};
use rustix::event::epoll;

use super::HEADER_BYTES;
use super::counters::CarrierCounters;
use super::placing::{Placed, Straight};
use super::streams::Part;
use crate::events::Causes;
use crate::facts::evidence::{Evidence, Ledger};
use crate::facts::method_explanation::Explanation;
use crate::memory::area::Frame;
use crate::memory::pieces::Buffers;
use crate::memory::pool::{Buffer, BufferMut};
use crate::port::Wait;
pub(super) use any::AnyCarrier;
#[cfg(feature = "port")]
pub(super) use port::OverPort;
pub(super) use port::Returned;
pub(super) use sockets::{PASSING, Parts, Polled, Sockets};

/// A packet to send: its index in the memory of its carrier.
#[derive(Debug)]
pub(super) struct Packet(u32);

/// Distinguishes units from packets of the carrier.
const UNIT: u32 = 1 << 31;

impl Packet {
    /// A unit, which the streams keep under this number.
    pub(super) fn unit(number: u32) -> Self {
        Self(number | UNIT)
    }

    /// The unit's number, if it is a unit.
    #[inline]
    pub(super) fn as_unit(&self) -> Option<u32> {
        (self.0 & UNIT != 0).then_some(self.0 & !UNIT)
    }

    /// The number of a unit.
    /// Panics if it is not a unit.
    pub(super) fn number(&self) -> u32 {
        self.as_unit().expect("a unit")
    }
}

/// What still needs a packet's memory: the call that hands it to the kernel, and the peer that has not
/// acknowledged it.
#[derive(Debug, Clone, Copy, Default)]
struct Hold {
    waits: bool,
    acknowledged: bool,
}

impl Hold {
    /// Notes that it waits to be handed to the kernel; false if it already does.
    #[inline]
    fn begin_to_wait(&mut self) -> bool {
        !std::mem::replace(&mut self.waits, true)
    }

    /// Notes that it was handed to the kernel, or given up; true if it was acknowledged meanwhile, and so is
    /// free now.
    #[inline]
    fn end_wait(&mut self) -> bool {
        self.waits = false;
        self.acknowledged
    }

    /// Notes that the peer has it; true if it is not waiting to be sent, and so is free now.
    #[inline]
    fn acknowledge(&mut self) -> bool {
        self.acknowledged = true;
        !self.waits
    }
}

/// A received datagram, in the memory where it lies.
#[derive(Debug)]
#[cfg_attr(not(feature = "port"), expect(dead_code, reason = "frames are those of ports"))]
pub(super) enum Received {
    /// In a small buffer of its own.
    Buffer(Buffer),
    /// In a receive buffer that it shares with other datagrams.
    Shared(sockets::Shared),
    /// In the frame in which it arrived, on that queue.
    Frame(Frame, u16),
    /// In a frame that the program has taken.
    Given(port::Given),
    /// A unit that arrived over a stream.
    Unit(Part),
    /// A message in a buffer that was posted for it.
    Placed(Box<Placed>),
    /// A put that was read to where it belongs.
    Put(Box<Straight>),
    /// In memory of its own, though it is counted as a frame of that queue: it came through the kernel, or in
    /// several frames.
    Bytes(Box<[u8]>, u16),
}

impl Received {
    /// Hands a datagram over to the program.
    pub(super) fn give(self, home: Option<&Arc<Returned>>) -> Self {
        match (self, home) {
            (Self::Frame(frame, queue), Some(home)) => port::Given::received(frame, queue, home),
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
    /// The bytes of a datagram that is not in a buffer of its own.
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

/// Has an epoll instance watch a descriptor of the carrier.
fn add(poll: BorrowedFd<'_>, descriptor: impl AsFd) -> io::Result<()> {
    Ok(epoll::add(poll, descriptor, epoll::EventData::new_u64(CARRIER), epoll::EventFlags::IN)?)
}

/// Where a message lies that is alone in what was received.
#[derive(Debug, Clone)]
pub(super) enum Alone {
    /// In one datagram or unit, at these bytes.
    In(Range<u32>),
    /// In several packets, which have so many bytes.
    Across(Spread, u32),
}

impl Alone {
    #[inline]
    pub(super) fn at(range: Range<usize>) -> Self {
        Self::In(range.start as u32..range.end as u32)
    }

    /// Where in the only datagram it lies.
    /// Panics if there are several, which only sockets deliver so.
    #[inline]
    pub(super) fn only(self) -> Range<usize> {
        match self {
            Self::In(Range { start, end }) => start as usize..end as usize,
            Self::Across(..) => unreachable!("only one datagram was received"),
        }
    }

    /// Bytes of the message.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::In(range) => range.len(),
            Self::Across(spread, run_bytes) => spread.bytes(*run_bytes as usize),
        }
    }
}

/// A message, where it was received: it is overwritten by the next call that receives, unless it is kept.
#[derive(Debug)]
pub(super) enum Lone<'a> {
    /// In a buffer that is received into.
    Shown(&'a [u8], &'a mut sockets::Intake),
    /// In such a buffer, in several packets.
    Spread(&'a [u8], Spread, &'a mut sockets::Intake),
    /// In memory of its own, which is there.
    Held(&'a mut Option<Received>, Range<usize>),
}

impl Lone<'_> {
    /// The bytes, if they lie in one piece.
    #[inline]
    pub(super) fn as_slice(&self) -> Option<&[u8]> {
        match self {
            Self::Shown(bytes, _) => Some(bytes),
            Self::Spread(..) => None,
            Self::Held(datagram, range) => {
                Some(datagram.as_ref().map_or(&[], |datagram| &datagram.as_ref()[range.clone()]))
            }
        }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Spread(run, spread, _) => spread.bytes(run.len()),
            one => one.as_slice().map_or(0, <[u8]>::len),
        }
    }

    #[inline]
    pub(super) fn pieces(&self) -> impl Iterator<Item = &[u8]> {
        match self {
            Self::Spread(run, spread, _) => Left(spread.pieces(run)),
            one => Right(one.as_slice().into_iter()),
        }
    }

    pub(super) fn keep(self, mut each: impl FnMut(Piece<Received>)) {
        let copied = |bytes: &[u8], intake: &mut sockets::Intake| match intake.copied(bytes) {
            Some(datagram) => Piece::Datagram(datagram, 0..bytes.len()),
            None => Piece::Copy(bytes.into()),
        };
        match self {
            Self::Shown(bytes, intake) => each(copied(bytes, intake)),
            Self::Spread(run, spread, intake) => {
                spread.pieces(run).for_each(|piece| each(copied(piece, intake)));
            }
            Self::Held(datagram, range) => each(match datagram.take() {
                Some(datagram) => Piece::Datagram(datagram, range),
                None => Piece::Copy([].into()),
            }),
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

/// How many packets can be made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Whole packets.
    pub(super) packets: usize,
    /// Packets whose bytes lie in buffers, even if each must be joined from pieces.
    pub(super) fragments: usize,
    /// How many more buffers packets may refer to.
    pub(super) buffers: usize,
}

impl Room {
    /// Whole packets or fragments, whichever is fewer.
    pub(super) fn either(self) -> usize {
        self.packets.min(self.fragments)
    }
}

/// Takes received datagrams, with their sender and congestion mark.
pub(super) trait Deliver {
    /// Reads the clock, because datagrams have come. The call waits for everything that is being loaded, so
    /// it comes before their bytes are read.
    #[cfg(feature = "port")]
    fn begin(&mut self) {}

    /// The address of this host to which the datagrams went that follow, if it was bound to all of them.
    fn asked(&mut self, local: Option<Local>);

    /// Takes the last received datagram in place, if it is one message for which the program waits; returns
    /// whether it is.
    fn lone(&mut self, from: SocketAddr, congested: bool, datagram: &[u8]) -> bool;

    /// The same for several datagrams that lie one after another, each of `packet_bytes` bytes, except that
    /// the last may be shorter.
    fn lone_run(&mut self, from: SocketAddr, congested: bool, run: &[u8], packet_bytes: usize) -> bool;

    /// Takes a datagram in place if it is a common one; returns whether it is. If it must be kept, `keep`
    /// copies or moves it, unless there is no memory for that.
    fn in_place(
        &mut self,
        from: SocketAddr,
        congested: bool,
        datagram: &[u8],
        keep: impl FnOnce() -> Option<Received>,
    ) -> bool;

    /// A datagram to be kept.
    fn one(&mut self, from: SocketAddr, congested: bool, datagram: Received);

    /// Takes several datagrams of one sender that arrived together.
    fn run(&mut self, from: SocketAddr, congested: bool, run: Parts);
}

/// Moves packets to and from the network.
pub(super) trait Carrier: Debug + Send {
    /// The carrier's name and path, and what it was compared with.
    fn explain(&self) -> Explanation;

    /// Counts the frames that the program has taken, if the carrier has frames.
    fn home(&self) -> Option<&Arc<Returned>> {
        None
    }

    fn local_addr(&self) -> SocketAddr;

    /// How many packets can be made now.
    fn room(&self) -> Room;

    /// An empty packet to write.
    fn packet(&mut self) -> Option<Packet>;

    /// The packet's memory for its payload.
    fn payload_mut(&mut self, packet: &Packet) -> &mut [u8];

    fn set_payload_bytes(&mut self, packet: &Packet, bytes: usize);

    /// Copies a message into packets, which are added to `made`; returns the payload bytes of the last one.
    /// `None`: there are too few, and some were made.
    fn copy_to_packets(&mut self, message: &[u8], layout: Layout, made: &mut Vec<Packet>) -> Option<usize> {
        let mut last_bytes = 0;
        for chunk in layout.chunks() {
            let packet = self.packet()?;
            let ((header, header_bytes), bytes) = (chunk.padded_header(), &message[chunk.range.clone()]);
            let room = self.payload_mut(&packet);
            room[..header.len()].copy_from_slice(header); // any packet has room for the longest
            room[header_bytes..][..bytes.len()].copy_from_slice(bytes);
            last_bytes = header_bytes + bytes.len();
            self.set_payload_bytes(&packet, last_bytes);
            made.push(packet);
        }
        Some(last_bytes)
    }

    /// An empty buffer for an owned message.
    fn buffer(&mut self) -> Option<BufferMut>;

    /// Returns a buffer that was not sent.
    fn put_buffer(&mut self, buffer: Buffer) {
        drop(buffer);
    }

    /// Buffers of full length for a message with this layout; `None` if there are too few.
    fn buffers_for(&mut self, layout: Layout) -> Option<Buffers>;

    /// Makes a packet for each piece of a message that lies in `buffers`; there must be [room](Self::room)
    /// for as many of either kind. Gives the buffers back if there was none after all. What was made until
    /// then is among `made`.
    fn fragments(&mut self, buffers: Buffers, layout: Layout, made: &mut Vec<Packet>) -> Result<(), Buffers>;

    /// Sends a packet with the next flush, with this header and, if `crc`, a CRC.
    fn transmit_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], crc: bool);

    /// Sends a packet at once, after everything that waits to be sent.
    fn send_packet(&mut self, to: &Path, packet: &Packet, header: &[u8; HEADER_BYTES], now: Time);

    /// Sends packets, which were never sent before, at once, after everything that waits to be sent.
    #[inline]
    fn send_run(&mut self, to: &Path, packets: &[Packet], headers: Headers) {
        for (packet, header) in packets.iter().zip(headers) {
            self.transmit_packet(to, packet, &header, false);
        }
        self.flush();
    }

    /// Sends a control datagram of the protocol with the next flush.
    fn transmit_control(&mut self, to: &Path, datagram: &[u8]);

    /// Sends a control datagram of the protocol at once, after everything that waits to be sent.
    #[inline]
    fn send_control(&mut self, to: &Path, datagram: &[u8]) {
        self.transmit_control(to, datagram);
        self.flush();
    }

    /// Whether a datagram of so many bytes may be sent to a host that may not be there: to an address that
    /// may be forged, or if it `is_proven` to a peer that may be gone. What is sent to such hosts must not
    /// take the room of others. It is counted if it may not.
    fn has_room_for(&mut self, _to: &Path, _bytes: usize, _is_proven: bool) -> bool {
        true
    }

    /// Hands the queue to the kernel. An interface that is down or removed is reported by the next receive.
    fn flush(&mut self);

    /// Whether the kernel had no room for everything in the queue.
    fn is_stuck(&mut self) -> bool;

    /// Whether the kernel must be called again soon to continue sending.
    fn wants_look(&mut self) -> bool {
        self.is_stuck()
    }

    /// Packets whose memory is not free: they are not acknowledged, or the kernel has them.
    fn in_use(&self) -> usize;

    /// Packets that the peers have not acknowledged; it may include others that the kernel has.
    fn unacknowledged(&self) -> usize {
        self.in_use()
    }

    /// Frees a packet.
    fn release(&mut self, packet: Packet);

    /// Takes packets back that the kernel has finished; there are none if the kernel copies them.
    fn take_back(&mut self) {}

    /// Whether packets became free since the last call. A released packet is not free while the kernel has
    /// it.
    fn freed(&mut self) -> bool;

    /// Delivers everything that has arrived, without waiting; returns how many datagrams.
    fn receive(&mut self, deliver: &mut impl Deliver) -> io::Result<usize>;

    /// The next looks are not part of a wait that looks all the time: each is to find whatever has arrived.
    /// Returns whether the last one may have missed something.
    fn leave_none_out(&mut self) -> bool {
        false
    }

    /// As [`receive`](Self::receive), but waits until something arrives, the time is over, or a signal
    /// arrives.
    fn wait(&mut self, how: Wait, until: Option<Instant>, deliver: &mut impl Deliver) -> io::Result<usize>;

    /// The message that was taken [alone](Deliver::lone) by the last call.
    fn lone(&mut self, place: Alone) -> Lone<'_>;

    /// Frees a received datagram.
    fn recycle(&mut self, received: Received);

    /// How many more datagrams can be received.
    fn free_to_receive(&self) -> usize;

    /// Prepares for a wait on the endpoint's descriptor; true if no wait is needed.
    fn arm(&mut self) -> io::Result<bool>;

    /// Makes an epoll instance readable when something arrives.
    fn watch(&mut self, poll: BorrowedFd<'_>) -> io::Result<()>;

    fn counters(&self) -> CarrierCounters;

    /// The evidence for the bytes of received datagrams.
    fn received(&self) -> Ledger;

    /// Why received bytes were copied, except by a port and its sockets, which report it themselves.
    #[inline]
    fn received_causes(&self) -> Causes {
        Causes::default()
    }

    /// The evidence for messages that are sent from the program's memory.
    fn evidence(&self) -> Evidence;

    /// Bytes of owned messages that had to be joined by a copy before sending.
    fn gathered_bytes(&self) -> u64;
}
