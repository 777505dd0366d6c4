//! Bytes in front of a packet in its frame: the XDP program's notes about its arrival, and requests to the kernel when sending it.

use std::cell::Cell;
use std::collections::{HashMap, VecDeque};
use std::mem::offset_of;
use std::ptr::NonNull;
use std::sync::atomic::Ordering::Relaxed;

use super::note::{ANSWER_OLD_KERNEL, Hints, TimeNote, VLAN_KERNEL_MIN};
use super::view::prefetch;
use super::{Frame, Packet, Pool, lent_to};
use crate::facts::metadata::{Arrival, Clock, Departure, Offers, Request, Timestamp, Unsupported, VlanTag};
use crate::facts::mode::Mode;
use crate::sys::packet;
use crate::sys::xsk::{Descriptor, REQUESTED, SEND_METADATA_BYTES, SendMetadata};

/// Where a pool's packets have the metadata of their arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arrivals {
    /// They have none, for this reason.
    Unknown(Unsupported),
    /// In front of the packet, if this mark is present.
    Marked(u64),
    /// Only the time, in front of the packet, if this mark is present; and the reason why the other metadata are missing.
    Timed(u64, Unsupported),
}

/// A pool's state for metadata; not used for packets without metadata.
#[derive(Debug, Clone, Copy)]
pub(super) struct Metadata {
    arrivals: Arrivals,
    offers: Offers,
    origin: Origin,
}

/// What a host left to a card in the packets of a pool, and where they are, as bits. Up to [`WIRE`](Self::WIRE), only the checksum may be
/// missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd)]
pub(crate) struct Origin(u8);

impl Origin {
    /// They come from a wire. Otherwise their checksums may be unfinished.
    pub(crate) const WIRE: Self = Self(1);
    /// Their VLAN tags may be beside them.
    const TAG_BESIDE: Self = Self(2);
    /// They are not in frames, but in the blocks of a packet ring.
    const BLOCKS: Self = Self(4);

    pub(crate) const fn is_wireless(self) -> bool {
        self.0 & Self::WIRE.0 == 0
    }

    const fn set(&mut self, bit: Self, on: bool) {
        self.0 = if on { self.0 | bit.0 } else { self.0 & !bit.0 };
    }
}

impl Metadata {
    pub(super) const NONE: Self = Self {
        arrivals: Arrivals::Unknown(Unsupported::NotRequested),
        offers: Offers::none(Unsupported::NotRequested),
        origin: Origin::WIRE,
    };

    pub(super) const fn is_marked(&self) -> bool {
        matches!(self.arrivals, Arrivals::Marked(_) | Arrivals::Timed(..))
    }
}

/// The addresses in front of an Ethernet header's type, and a VLAN tag.
const ADDRESSES_BYTES: usize = 12;
const TAG_BYTES: usize = 4;

/// By how much a packet may start later than usual: some drivers (igc) leave the card's data in front of it in the frame.
const SHIFT_BYTES_MAX: u16 = 64;

impl Pool {
    pub(crate) fn set_arrivals(&mut self, arrivals: Arrivals) {
        self.metadata.arrivals = arrivals;
        self.metadata.origin.set(Origin::TAG_BESIDE, matches!(arrivals, Arrivals::Marked(_)));
    }

    /// Says that packets come from an interface without a wire.
    pub(crate) fn set_wireless(&mut self, on: bool) {
        self.metadata.origin.set(Origin::WIRE, !on);
    }

    /// Says that packets lie in blocks.
    pub(super) fn set_in_blocks(&mut self) {
        self.metadata.origin.set(Origin::BLOCKS, true);
    }

    pub(crate) fn set_offers(&mut self, offers: Offers) {
        self.metadata.offers = offers;
    }

    pub(crate) fn offers(&self) -> Offers {
        self.metadata.offers
    }

    /// Erases old notes in a free frame, so that a note found later belongs to the packet it precedes.
    pub(super) fn erase_hints(&self, frame: &Cell<u32>) {
        const MARK_BYTES: u16 = size_of::<u64>() as u16;
        let first = self.shared.data_offset - MARK_BYTES;
        let bytes = u32::from(MARK_BYTES + SHIFT_BYTES_MAX).min(self.frame_bytes() - u32::from(first));
        // SAFETY: inside the frame, which is free: it has no owner.
        unsafe { self.shared.pointer(frame.get(), first).write_bytes(0, bytes as usize) };
    }

    /// Like [`Pool::lend`], with a request to the kernel.
    /// Panics if there is no room for it in front of the packet; see [`Frame::has_room_for_request`].
    pub(crate) fn lend_with(&self, frame: Frame, request: &Request) -> Result<Descriptor, Frame> {
        assert!(frame.has_room_for_request(), "no room for a request");
        if !self.owns(&frame) {
            return Err(frame);
        }
        // SAFETY: there is room in front of the packet, in a frame that is ours.
        unsafe { put_request(frame.first_byte(), request) };
        let descriptor = self.lend(frame)?;
        Ok(Descriptor { options: REQUESTED, ..descriptor })
    }

    /// The device's answer to a request, if the frame is lent by this half.
    fn reply(&self, address: u64) -> Option<u64> {
        // SAFETY: the pool keeps the area alive.
        let (_, word) = unsafe { self.view.frame_at(address) }?;
        (lent_to(word.load(Relaxed)) == self.id()).then(|| {
            let request = self.view.data(address - u64::from(SEND_METADATA_BYTES)).cast::<SendMetadata>();
            // SAFETY: a request was written there (`lend_with`), the frame lies in the area (`frame_at`), and the kernel no longer writes
            // it: it is on the completion ring, read with acquire.
            unsafe { request.read_unaligned() }.answer
        })
    }
}

/// Writes a request in front of a packet.
///
/// # Safety
/// The [`SEND_METADATA_BYTES`] in front of the packet lie in its frame, which is the caller's alone.
pub(super) unsafe fn put_request(packet: NonNull<u8>, request: &Request) {
    let metadata = SendMetadata::of(request);
    // SAFETY: by contract.
    unsafe { packet.sub(SEND_METADATA_BYTES as usize).cast::<SendMetadata>().write_unaligned(metadata) };
}

impl Frame {
    pub(crate) fn has_room_for_request(&self) -> bool {
        self.headroom_bytes() >= SEND_METADATA_BYTES as usize
    }
}

impl Packet<'_> {
    /// When the packet arrived, its hash, and its VLAN tag, as far as driver and kernel report them (see [`metadata`](crate::metadata)).
    /// Read it before [`Packet::take`]; for a packet in several frames, read it from the first.
    ///
    /// ```
    /// # let (mut left, mut right) = nocopy::Port::memory_pair()?;
    /// # left.sender().send_copy(b"hello")?;
    /// # left.sender().flush()?;
    /// use nocopy::{Mode, metadata::Unsupported};
    /// let packet = right.receiver().receive()?.next().expect("a packet");
    /// match packet.arrival().timestamp {
    ///     Ok(timestamp) => println!("{} ns", timestamp.ns),
    ///     Err(why) => assert_eq!(why, Unsupported::Mode(Mode::Memory)), // a memory port has none
    /// }
    /// # assert!(packet.arrival().timestamp.is_err());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn arrival(&self) -> Arrival {
        let pool = self.pool();
        if pool.has_blocks() {
            let header = match usize::from(self.start()) {
                0 => return Arrival::unknown(Unsupported::Absent), // not the first piece of its packet
                header => header,
            };
            // SAFETY: at this distance in front of the packet is its header, in a block that is ours as long as the packet is borrowed.
            let arrival = unsafe { packet::arrival(self.first_byte().sub(header), header) };
            return match pool.metadata.arrivals {
                Arrivals::Unknown(reason) => Arrival { hash: arrival.hash.map_err(|_| reason), ..arrival },
                Arrivals::Marked(_) | Arrivals::Timed(..) => arrival,
            };
        }
        let absent = Arrival::incoming(Unsupported::Absent);
        match pool.metadata.arrivals {
            Arrivals::Unknown(reason) => Arrival::incoming(reason),
            Arrivals::Marked(mark) => self.hints(mark).map_or(absent, |hints| read(&hints)),
            _ if !self.is_in_place() => absent,
            Arrivals::Timed(mark, reason) => {
                let note = self.first_byte().as_ptr().wrapping_sub(size_of::<TimeNote>());
                // SAFETY: the packet starts at least `PACKET_HEADROOM_BYTES` into its frame, which is ours; any bytes are valid.
                let note = unsafe { note.cast::<TimeNote>().read_unaligned() };
                let timestamp = match note.mark == mark {
                    true => Ok(Timestamp { ns: note.ns, clock: Clock::Monotonic }),
                    false => Err(Unsupported::Absent),
                };
                Arrival { timestamp, ..Arrival::incoming(reason) }
            }
        }
    }

    fn is_in_place(&self) -> bool {
        let usual = self.pool().shared.data_offset;
        (usual..=usual + SHIFT_BYTES_MAX).contains(&self.start())
    }

    /// The program's note about it, if the program wrote one.
    fn hints(&self, mark: u64) -> Option<Hints> {
        if !self.is_in_place() {
            return None;
        }
        // SAFETY: the packet starts at least `PACKET_HEADROOM_BYTES` into its frame, which is ours; any bytes are valid.
        let hints = unsafe { self.first_byte().sub(size_of::<Hints>()).cast::<Hints>().read_unaligned() };
        (hints.mark == mark).then_some(hints)
    }

    #[inline]
    pub(crate) fn origin(&self) -> Origin {
        self.pool().metadata.origin
    }

    /// Takes its frame, with a tag that was removed from it.
    pub(crate) fn take_tagged(self) -> Frame {
        let hints = match self.pool().metadata.arrivals {
            // A packet ring has put it back.
            Arrivals::Marked(mark) if !self.pool().has_blocks() => self.hints(mark),
            _ => None,
        };
        let tag = hints.filter(|hints| hints.refusals[2] == 0).map(|hints| tag(&hints));
        let mut frame = self.take();
        if let Some(tag) = tag {
            put_back(&mut frame, tag);
        }
        frame
    }

    /// Prefetches the cache lines that [`Packet::arrival`] reads, and the packet's first: for a loop that claims several packets
    /// before it reads any.
    #[doc(hidden)]
    #[inline]
    pub fn prefetch_arrival(&self) {
        let first = self.first_byte().as_ptr();
        prefetch(first.wrapping_sub(size_of::<TimeNote>()));
        prefetch(first);
    }
}

/// Puts a tag back behind the addresses, which move into the headroom. A packet that has no addresses had no tag.
#[cold]
fn put_back(frame: &mut Frame, VlanTag { protocol, control }: VlanTag) {
    if frame.len() < ADDRESSES_BYTES || frame.prepend(TAG_BYTES).is_none() {
        return;
    }
    frame.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES_BYTES, 0);
    frame[ADDRESSES_BYTES..][..2].copy_from_slice(&protocol.to_be_bytes());
    frame[ADDRESSES_BYTES + 2..][..2].copy_from_slice(&control.to_be_bytes());
}

const _: () = assert!(
    offset_of!(TimeNote, mark) + size_of::<u64>() == size_of::<TimeNote>(),
    "the mark lies next to the packet"
);
const _: () = assert!(
    offset_of!(Hints, mark) + size_of::<u64>() == size_of::<Hints>(),
    "the mark lies next to the packet"
);

fn tag(hints: &Hints) -> VlanTag {
    VlanTag { protocol: u16::from_be(hints.vlan_protocol), control: hints.vlan_control }
}

/// Converts the XDP program's notes to an arrival.
fn read(hints: &Hints) -> Arrival {
    let [timestamp, hash, vlan] = hints.refusals.map(|answer| match i32::from(answer) {
        0 => Ok(()),
        libc::EOPNOTSUPP => Err(Unsupported::Driver),
        _ if answer == ANSWER_OLD_KERNEL => Err(Unsupported::Kernel(VLAN_KERNEL_MIN)),
        _ => Err(Unsupported::Absent), // ENODATA
    });
    // veth returns success, and 0, for packets that no card has stamped or hashed.
    let present = |there: bool| if there { Ok(()) } else { Err(Unsupported::Absent) };
    let clock = if hints.kernel_time == 1 { Clock::Monotonic } else { Clock::Device };
    Arrival {
        timestamp: timestamp
            .and_then(|()| present(hints.timestamp != 0))
            .map(|()| Timestamp { ns: hints.timestamp, clock }),
        hash: hash.and_then(|()| present(hints.hash != 0)).map(|()| hints.hash),
        vlan: vlan.map(|()| tag(hints)),
        outgoing: Ok(false),
        checksum_unfinished: Err(Unsupported::Driver), // XDP has no word for it
    }
}

/// Packets whose departure time is wanted.
#[derive(Debug, Default)]
pub(crate) struct Departures {
    /// By the address of the packet: its token, and the value written into the field of the time.
    awaited: HashMap<u64, (u64, u64)>,
    known: VecDeque<Departure>,
}

impl Departures {
    pub(crate) fn is_awaiting(&self) -> bool {
        !self.awaited.is_empty()
    }

    pub(crate) fn expect(&mut self, address: u64, request: &Request) {
        if let Some(token) = request.timestamp {
            self.awaited.insert(address, (token, SendMetadata::of(request).answer));
        }
    }

    /// Reads the answer for a packet that the kernel has sent, before its frame returns to its pool.
    pub(crate) fn completed(&mut self, address: u64, pool: &Pool) {
        let Some((token, written)) = self.awaited.get(&address).copied() else { return };
        let Some(ns) = pool.reply(address) else { return };
        self.awaited.remove(&address);
        let timestamp = match pool.offers().timestamp {
            Ok(clock) if ns != written => Ok(Timestamp { ns, clock }),
            _ => Err(Unsupported::Absent),
        };
        self.known.push_back((token, timestamp));
    }

    pub(crate) fn take(&mut self) -> std::collections::vec_deque::Drain<'_, Departure> {
        self.known.drain(..)
    }
}

/// For ports whose mode has no metadata.
pub(crate) const fn none_in(mode: Mode) -> (Arrivals, Offers) {
    (Arrivals::Unknown(Unsupported::Mode(mode)), Offers::none(Unsupported::Mode(mode)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::area::{Area, AreaConfig, Faults, Half, PACKET_HEADROOM_BYTES};
    use crate::ring;

    const MARK: u64 = 0x1234_5678_9abc_def1;

    fn note(hash: u32) -> Hints {
        let (timestamp, hash_kind, vlan_protocol, vlan_control) = (5, 0, 0x8100_u16.to_be(), 7);
        let (refusals, kernel_time) = ([0; 3], 0);
        Hints { timestamp, hash, hash_kind, vlan_protocol, vlan_control, refusals, kernel_time, mark: MARK }
    }

    fn put(packet: &Packet<'_>, note: Hints) {
        // SAFETY: there is headroom in front of the packet, which only this test uses.
        unsafe { packet.first_byte().sub(size_of::<Hints>()).cast::<Hints>().write_unaligned(note) };
    }

    /// Receives a packet `shift` bytes behind its usual place, as if the program had noted nothing.
    fn receive<'a>(pool: &'a Pool, rings: &mut Rings, shift: u32) -> Packet<'a> {
        pool.refill(&mut rings.0);
        rings.0.publish();
        let frame = rings.1.peek(1).next().expect("a frame is lent");
        let address = frame + u64::from(PACKET_HEADROOM_BYTES + shift);
        let packet = pool.claims().claim(Descriptor { address, len: 60, options: 0 }, &mut Faults::default());
        pool.claimed(1);
        packet.expect("a packet")
    }

    type Rings = (ring::Producer<u64>, ring::Consumer<u64>);

    fn one_frame() -> (Pool, Rings) {
        let area = Area::new(AreaConfig { frame_count: 1, ..AreaConfig::default() }).unwrap();
        let mut pool = area.pool(Half::Receive, 1).unwrap();
        pool.set_arrivals(Arrivals::Marked(MARK));
        (pool, ring::pair(2))
    }

    #[test]
    fn a_note_is_used_only_for_the_packet_it_describes() {
        let (pool, mut rings) = one_frame();
        for shift in [0, 8, 16, 40, 64, 65, 100] {
            let packet = receive(&pool, &mut rings, shift);
            assert_eq!(packet.arrival(), Arrival::incoming(Unsupported::Absent), "left by the packet before");
            put(&packet, note(shift + 1));
            if shift <= SHIFT_BYTES_MAX.into() {
                let arrival = packet.arrival();
                assert_eq!(arrival.timestamp, Ok(Timestamp { ns: 5, clock: Clock::Device }));
                assert_eq!(arrival.hash, Ok(shift + 1));
                assert_eq!(arrival.vlan, Ok(VlanTag { protocol: 0x8100, control: 7 }));
                put(&packet, Hints { mark: MARK ^ 2, ..note(shift) });
            }
            assert_eq!(
                packet.arrival(),
                Arrival::incoming(Unsupported::Absent),
                "another mark, or too far behind"
            );
            put(&packet, note(shift));
            drop(packet);
            let again = receive(&pool, &mut rings, shift);
            assert_eq!(again.arrival(), Arrival::incoming(Unsupported::Absent), "left in the frame");
        }
    }

    #[test]
    fn a_tag_beside_the_packet_is_put_back_when_it_is_taken() {
        let (pool, mut rings) = one_frame();
        for is_noted in [false, true] {
            let mut packet = receive(&pool, &mut rings, 0);
            (0..).zip(packet.iter_mut()).for_each(|(at, byte)| *byte = at);
            let bytes = packet.to_vec();
            if is_noted {
                put(&packet, note(1));
            }
            let frame = packet.take_tagged();
            let tag: &[u8] = if is_noted { &[0x81, 0, 0, 7] } else { &[] };
            assert_eq!(*frame, [&bytes[..12], tag, &bytes[12..]].concat());
            assert!(frame.has_room_for_request());
        }
    }

    #[test]
    fn every_answer_of_a_driver_has_its_reason() {
        let refused = libc::EOPNOTSUPP as u8;
        let arrival = read(&Hints { refusals: [refused, libc::ENODATA as u8, ANSWER_OLD_KERNEL], ..note(1) });
        assert_eq!(arrival.timestamp, Err(Unsupported::Driver));
        assert_eq!(arrival.hash, Err(Unsupported::Absent));
        assert_eq!(arrival.vlan, Err(Unsupported::Kernel(VLAN_KERNEL_MIN)));
        let arrival = read(&Hints { timestamp: 0, hash: 0, ..note(0) });
        assert_eq!((arrival.timestamp, arrival.hash), (Err(Unsupported::Absent), Err(Unsupported::Absent)));
    }

    #[test]
    fn a_card_that_does_not_say_when_a_packet_left_is_no_time() {
        let area = Area::new(AreaConfig { frame_count: 2, ..AreaConfig::default() }).unwrap();
        let mut pool = area.pool(Half::Send, 2).unwrap();
        pool.set_offers(Offers { checksum: Ok(()), timestamp: Ok(Clock::Device) });
        let mut departures = Departures::default();
        let mut send = |token| {
            let request = Request::default().timestamp(token);
            let place = crate::facts::metadata::Place { start: 34, offset: 6 };
            let request = if token == 1 { request.checksum(place) } else { request };
            let address = pool.lend_with(pool.frame().unwrap(), &request).unwrap().address;
            departures.expect(address, &request);
            address
        };
        let (silent, telling) = (send(1), send(2));
        let request = pool.view.data(telling - u64::from(SEND_METADATA_BYTES)).cast::<SendMetadata>();
        // SAFETY: in front of a packet in a frame with no other user; written as the card would.
        unsafe { (*request.as_ptr()).answer = 99 };
        departures.completed(u64::MAX, &pool);
        departures.completed(telling, &pool);
        departures.completed(telling, &pool); // said twice
        departures.completed(silent, &pool);
        let known: Vec<_> = departures.take().collect();
        let told = Timestamp { ns: 99, clock: Clock::Device };
        assert_eq!(known, [(2, Ok(told)), (1, Err(Unsupported::Absent))]);
        assert!(!departures.is_awaiting());
    }
}
