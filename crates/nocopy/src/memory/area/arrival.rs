//! The metadata of a packet's arrival: what the XDP program noted in front of it, or a packet ring's header
//! says.

use std::mem::offset_of;

use super::metadata::{ArrivalMetadataSource, PacketOrigin, SHIFT_BYTES_MAX};
use super::note::{ANSWER_OLD_KERNEL, ArrivalTimeNote, XdpHints};
use super::view::prefetch;
use super::{Frame, Packet};
use crate::facts::features;
use crate::facts::metadata::{Arrival, Clock, Timestamp, Unsupported, VlanTag};
use crate::sys::packet;

/// The addresses in front of an Ethernet header's type, and a VLAN tag.
const ADDRESSES_BYTES: usize = 12;
const TAG_BYTES: usize = 4;

impl Packet<'_> {
    /// When the packet arrived, its hash, and its VLAN tag, as far as driver and kernel report them (see
    /// [`metadata`](crate::metadata)). Read it before [`Packet::take`]; for a packet in several frames, read
    /// it from the first.
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
        let pool = self.pool;
        if pool.has_blocks() {
            let header = match usize::from(self.start) {
                0 => return Arrival::unknown(Unsupported::Absent), // not the first piece of its packet
                header => header,
            };
            // SAFETY: at this distance in front of the packet is its header, in a block that is ours as long
            // as the packet is borrowed.
            let arrival = unsafe { packet::read_arrival(self.data.sub(header), header) };
            return match pool.metadata.arrivals {
                ArrivalMetadataSource::Unknown(reason) => {
                    Arrival { hash: arrival.hash.map_err(|_| reason), ..arrival }
                }
                ArrivalMetadataSource::Marked(_) | ArrivalMetadataSource::Timed(..) => arrival,
            };
        }
        let absent = Arrival::unknown_but_incoming(Unsupported::Absent);
        match pool.metadata.arrivals {
            ArrivalMetadataSource::Unknown(reason) => Arrival::unknown_but_incoming(reason),
            ArrivalMetadataSource::Marked(mark) => {
                self.read_hints(mark).map_or(absent, |hints| arrival_from_hints(&hints))
            }
            ArrivalMetadataSource::Timed(mark, reason) => {
                // SAFETY: any bytes are a valid note.
                let Some(note) = (unsafe { self.read_note::<ArrivalTimeNote>() }) else { return absent };
                let timestamp = match note.mark == mark {
                    true => Ok(Timestamp { ns: note.ns, clock: Clock::Monotonic }),
                    false => Err(Unsupported::Absent),
                };
                Arrival { timestamp, ..Arrival::unknown_but_incoming(reason) }
            }
        }
    }

    /// The program's note about it, if the program wrote one.
    fn read_hints(&self, mark: u64) -> Option<XdpHints> {
        // SAFETY: any bytes are valid hints.
        unsafe { self.read_note::<XdpHints>() }.filter(|hints| hints.mark == mark)
    }

    /// The bytes in front of it, where the program writes its notes; `None` if it starts where no packet with
    /// a note does.
    ///
    /// # Safety
    /// Any bytes are a valid `T`, which is no longer than
    /// [`PACKET_HEADROOM_BYTES`](super::PACKET_HEADROOM_BYTES).
    unsafe fn read_note<T>(&self) -> Option<T> {
        let usual = self.pool.shared.data_offset;
        let is_in_place = (usual..=usual + SHIFT_BYTES_MAX).contains(&self.start);
        // SAFETY: the packet starts at least `PACKET_HEADROOM_BYTES` into its frame, which is ours; any bytes
        // are valid, by contract.
        is_in_place.then(|| unsafe { self.data.sub(size_of::<T>()).cast::<T>().read_unaligned() })
    }

    #[inline]
    pub(crate) fn origin(&self) -> PacketOrigin {
        self.pool.metadata.origin
    }

    /// Takes its frame, with a tag that was removed from it.
    pub(crate) fn take_tagged(self) -> Frame {
        let hints = match self.pool.metadata.arrivals {
            // A packet ring has put it back.
            ArrivalMetadataSource::Marked(mark) if !self.pool.has_blocks() => self.read_hints(mark),
            _ => None,
        };
        let tag = hints.filter(|hints| hints.refusals[2] == 0).map(|hints| hinted_vlan_tag(&hints));
        let mut frame = self.take();
        if let Some(tag) = tag {
            insert_tag(&mut frame, tag);
        }
        frame
    }

    /// Prefetches the cache lines that [`Packet::arrival`] reads, and the packet's first: for a loop that
    /// claims several packets before it reads any.
    #[doc(hidden)]
    #[inline]
    pub fn prefetch_arrival(&self) {
        let first = self.data.as_ptr();
        prefetch(first.wrapping_sub(size_of::<ArrivalTimeNote>()));
        prefetch(first);
    }
}

/// Puts a tag back behind the addresses, which move into the headroom. A packet that has no addresses had no
/// tag.
#[cold]
fn insert_tag(frame: &mut Frame, VlanTag { protocol, control }: VlanTag) {
    if frame.len() < ADDRESSES_BYTES || frame.prepend(TAG_BYTES).is_none() {
        return;
    }
    frame.copy_within(TAG_BYTES..TAG_BYTES + ADDRESSES_BYTES, 0);
    frame[ADDRESSES_BYTES..][..2].copy_from_slice(&protocol.to_be_bytes());
    frame[ADDRESSES_BYTES + 2..][..2].copy_from_slice(&control.to_be_bytes());
}

// The mark lies next to the packet.
const _: () = assert!(offset_of!(ArrivalTimeNote, mark) + size_of::<u64>() == size_of::<ArrivalTimeNote>());
const _: () = assert!(offset_of!(XdpHints, mark) + size_of::<u64>() == size_of::<XdpHints>());

fn hinted_vlan_tag(hints: &XdpHints) -> VlanTag {
    VlanTag { protocol: u16::from_be(hints.vlan_protocol), control: hints.vlan_control }
}

/// Converts the XDP program's notes to an arrival.
fn arrival_from_hints(hints: &XdpHints) -> Arrival {
    let [timestamp, hash, vlan] = hints.refusals.map(|answer| match i32::from(answer) {
        0 => Ok(()),
        libc::EOPNOTSUPP => Err(Unsupported::Driver),
        _ if answer == ANSWER_OLD_KERNEL => Err(Unsupported::Kernel(features::RECEIVE_VLAN.kernel)),
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
        vlan: vlan.map(|()| hinted_vlan_tag(hints)),
        outgoing: Ok(false),
        checksum_unfinished: Err(Unsupported::Driver), // XDP has no word for it
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::area::{Area, AreaConfig, Faults, FramePool, PACKET_HEADROOM_BYTES, PoolDirection};
    use crate::ring;
    use crate::sys::xsk::Descriptor;

    const MARK: u64 = 0x1234_5678_9abc_def1;

    fn hints_with_hash(hash: u32) -> XdpHints {
        let (timestamp, hash_kind, vlan_protocol, vlan_control) = (5, 0, 0x8100_u16.to_be(), 7);
        let (refusals, kernel_time) = ([0; 3], 0);
        XdpHints {
            timestamp,
            hash,
            hash_kind,
            vlan_protocol,
            vlan_control,
            refusals,
            kernel_time,
            mark: MARK,
        }
    }

    fn write_hints(packet: &Packet<'_>, note: XdpHints) {
        // SAFETY: there is headroom in front of the packet, which only this test uses.
        unsafe { packet.data.sub(size_of::<XdpHints>()).cast::<XdpHints>().write_unaligned(note) };
    }

    /// Receives a packet `shift` bytes behind its usual place, as if the program had noted nothing.
    fn receive_shifted<'a>(pool: &'a FramePool, rings: &mut Rings, shift: u32) -> Packet<'a> {
        pool.refill(&mut rings.0);
        rings.0.publish();
        let frame = rings.1.ready_entries(1).next().expect("a frame is lent");
        let address = frame + u64::from(PACKET_HEADROOM_BYTES + shift);
        let packet =
            pool.claimer().claim(Descriptor { address, len: 60, options: 0 }, &mut Faults::default());
        pool.count_claimed(1);
        packet.expect("a packet")
    }

    type Rings = (ring::Producer<u64>, ring::Consumer<u64>);

    fn pool_of_one_frame() -> (FramePool, Rings) {
        let area = Area::new(AreaConfig { frame_count: 1, ..AreaConfig::default() }).unwrap();
        let mut pool = area.pool(PoolDirection::Receive, 1).unwrap();
        pool.set_arrivals(ArrivalMetadataSource::Marked(MARK));
        (pool, ring::pair(2))
    }

    #[test]
    fn metadata_of_an_earlier_packet_is_not_reported() {
        let (pool, mut rings) = pool_of_one_frame();
        for shift in [0, 8, 16, 40, 64, 65, 100] {
            let packet = receive_shifted(&pool, &mut rings, shift);
            assert_eq!(
                packet.arrival(),
                Arrival::unknown_but_incoming(Unsupported::Absent),
                "left by the packet before"
            );
            write_hints(&packet, hints_with_hash(shift + 1));
            if shift <= SHIFT_BYTES_MAX.into() {
                let arrival = packet.arrival();
                assert_eq!(arrival.timestamp, Ok(Timestamp { ns: 5, clock: Clock::Device }));
                assert_eq!(arrival.hash, Ok(shift + 1));
                assert_eq!(arrival.vlan, Ok(VlanTag { protocol: 0x8100, control: 7 }));
                write_hints(&packet, XdpHints { mark: MARK ^ 2, ..hints_with_hash(shift) });
            }
            assert_eq!(
                packet.arrival(),
                Arrival::unknown_but_incoming(Unsupported::Absent),
                "another mark, or too far behind"
            );
            write_hints(&packet, hints_with_hash(shift));
            drop(packet);
            let again = receive_shifted(&pool, &mut rings, shift);
            assert_eq!(
                again.arrival(),
                Arrival::unknown_but_incoming(Unsupported::Absent),
                "left in the frame"
            );
        }
    }

    #[test]
    fn take_tagged_reinserts_a_noted_vlan_tag() {
        let (pool, mut rings) = pool_of_one_frame();
        for is_noted in [false, true] {
            let mut packet = receive_shifted(&pool, &mut rings, 0);
            (0..).zip(packet.iter_mut()).for_each(|(at, byte)| *byte = at);
            let bytes = packet.to_vec();
            if is_noted {
                write_hints(&packet, hints_with_hash(1));
            }
            let frame = packet.take_tagged();
            let tag: &[u8] = if is_noted { &[0x81, 0, 0, 7] } else { &[] };
            assert_eq!(*frame, [&bytes[..12], tag, &bytes[12..]].concat());
            assert!(frame.has_room_for_request());
        }
    }

    #[test]
    fn each_driver_refusal_is_reported_as_its_own_error() {
        let refused = libc::EOPNOTSUPP as u8;
        let arrival = arrival_from_hints(&XdpHints {
            refusals: [refused, libc::ENODATA as u8, ANSWER_OLD_KERNEL],
            ..hints_with_hash(1)
        });
        assert_eq!(arrival.timestamp, Err(Unsupported::Driver));
        assert_eq!(arrival.hash, Err(Unsupported::Absent));
        assert_eq!(arrival.vlan, Err(Unsupported::Kernel(features::RECEIVE_VLAN.kernel)));
        let arrival = arrival_from_hints(&XdpHints { timestamp: 0, hash: 0, ..hints_with_hash(0) });
        assert_eq!((arrival.timestamp, arrival.hash), (Err(Unsupported::Absent), Err(Unsupported::Absent)));
    }
}
