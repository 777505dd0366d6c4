//! The pcapng format: draft-ietf-opsawg-pcapng. The caller has checked that a block is complete.

use std::ops::Range;

use super::byte_order::ByteOrder;

/// Type and length, and the length again at the end.
pub(super) const BLOCK_HEADER_BYTES: usize = 8;
pub(super) const BLOCK_BYTES_MIN: u32 = 12;

/// The longest block that Wireshark reads.
pub(super) const BLOCK_BYTES_MAX: u32 = 16 << 20;

const INTERFACES_MAX: usize = 1 << 16;

// Types of blocks: section 11.1.
pub(super) const SECTION_HEADER: u32 = 0x0a0d_0d0a;
pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
const PACKET: u32 = 2; // obsolete
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

const BYTE_ORDER: u32 = 0x1a2b_3c4d;

// Options: sections 4.2 and 4.3.
const INTERFACE_RESOLUTION: u16 = 9;
const INTERFACE_FCS: u16 = 13;
const INTERFACE_OFFSET: u16 = 14;
const PACKET_FLAGS: u16 = 2;

#[derive(Debug)]
pub(super) struct PcapngSection {
    order: ByteOrder,
    interfaces: Vec<RecordedInterface>,
}

#[derive(Debug, Clone, Copy)]
struct RecordedInterface {
    link_type: u16,
    snap_bytes: u32,
    /// As in option if_tsresol.
    resolution: u8,
    offset_s: i64,
    fcs_bytes: u32,
}

/// A packet in a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PcapngPacket {
    pub(super) range: Range<usize>,
    pub(super) wire_bytes: u32,
    /// Since 1970; `None` if not recorded.
    pub(super) time_ns: Option<i128>,
    pub(super) link_type: u16,
    pub(super) fcs_bytes: u32,
}

impl PcapngSection {
    /// A section that no block was read of.
    pub(super) fn empty(order: ByteOrder) -> Self {
        Self { order, interfaces: Vec::new() }
    }

    pub(super) fn order(&self) -> ByteOrder {
        self.order
    }

    /// The byte order of a section, from the word after its header's type and length.
    pub(super) fn parse_byte_order(word: &[u8]) -> Option<ByteOrder> {
        [false, true]
            .map(|is_big_endian| ByteOrder { is_big_endian })
            .into_iter()
            .find(|order| order.u32(word) == BYTE_ORDER)
    }

    pub(super) fn parse_section_header(block: &[u8]) -> Result<Self, &'static str> {
        match block.get(8..24).and_then(|header| Some((header, Self::parse_byte_order(header)?))) {
            Some((header, order)) if order.u16(&header[4..]) == 1 => Ok(Self::empty(order)),
            Some(_) => Err("its section is of another version than 1"),
            None => Err("the header of a section makes no sense"),
        }
    }

    pub(super) fn add_interface(&mut self, block: &[u8]) -> Result<(), &'static str> {
        const OPTIONS_AT: usize = 16;
        let order = self.order;
        if block.len() < OPTIONS_AT + 4 {
            return Err("the description of an interface makes no sense");
        }
        if self.interfaces.len() == INTERFACES_MAX {
            return Err("its section describes more than 65536 interfaces");
        }
        let mut interface = RecordedInterface {
            link_type: order.u16(&block[8..]),
            snap_bytes: order.u32(&block[12..]),
            resolution: 6,
            offset_s: 0,
            fcs_bytes: 0,
        };
        for (code, value) in parse_options(order, &block[OPTIONS_AT..block.len() - 4]) {
            match (code, value) {
                (INTERFACE_RESOLUTION, [resolution, ..]) => interface.resolution = *resolution,
                (INTERFACE_OFFSET, [_, _, _, _, _, _, _, _, ..]) => interface.offset_s = order.i64(value),
                // In bits; the example of early drafts, 4, can only be bytes.
                (INTERFACE_FCS, &[bytes @ ..8, ..]) => interface.fcs_bytes = bytes.into(),
                (INTERFACE_FCS, &[bits, ..]) => interface.fcs_bytes = u32::from(bits) / 8,
                _ => {}
            }
        }
        self.interfaces.push(interface);
        Ok(())
    }

    /// The packet in a block; `None` if its type is another one.
    pub(super) fn parse_packet(&self, kind: u32, block: &[u8]) -> Result<Option<PcapngPacket>, &'static str> {
        match kind {
            ENHANCED_PACKET | PACKET => self.parse_timed_packet(kind, block).map(Some),
            SIMPLE_PACKET => self.parse_simple_packet(block).map(Some),
            _ => Ok(None),
        }
    }

    fn parse_timed_packet(&self, kind: u32, block: &[u8]) -> Result<PcapngPacket, &'static str> {
        const DATA_AT: usize = 28;
        let order = self.order;
        if block.len() < DATA_AT + 4 {
            return Err("its block makes no sense");
        }
        let word = |number: usize| order.u32(&block[BLOCK_HEADER_BYTES + 4 * number..]);
        // The obsolete block has a count of drops in the other half of the word.
        let interface = if kind == PACKET { order.u16(&block[8..]).into() } else { word(0) };
        let interface = self.interface(interface)?;
        let ticks = u64::from(word(1)) << 32 | u64::from(word(2));
        let (bytes, wire_bytes) = (word(3), word(4));
        let range = packet_range(block, DATA_AT, bytes)?;
        let options_at = range.end.next_multiple_of(4).min(block.len() - 4);
        let flags = parse_options(order, &block[options_at..block.len() - 4])
            .find_map(|(code, value)| (code == PACKET_FLAGS && value.len() >= 4).then(|| order.u32(value)));
        Ok(PcapngPacket {
            range,
            wire_bytes,
            time_ns: Some(interface.time_ns(ticks)),
            link_type: interface.link_type,
            fcs_bytes: flags.and_then(fcs_bytes_of_packet).unwrap_or(interface.fcs_bytes),
        })
    }

    fn parse_simple_packet(&self, block: &[u8]) -> Result<PcapngPacket, &'static str> {
        const DATA_AT: usize = 12;
        if block.len() < DATA_AT + 4 {
            return Err("its block makes no sense");
        }
        let interface = self.interface(0)?;
        let wire_bytes = self.order.u32(&block[8..]);
        let snap_bytes = if interface.snap_bytes == 0 { u32::MAX } else { interface.snap_bytes };
        Ok(PcapngPacket {
            range: packet_range(block, DATA_AT, wire_bytes.min(snap_bytes))?,
            wire_bytes,
            time_ns: None,
            link_type: interface.link_type,
            fcs_bytes: interface.fcs_bytes,
        })
    }

    fn interface(&self, number: u32) -> Result<RecordedInterface, &'static str> {
        self.interfaces.get(number as usize).copied().ok_or("it is from an interface that was not described")
    }
}

impl RecordedInterface {
    /// Section 4.2 of the draft, option if_tsresol: a power of 10, or of 2 if the highest bit is set.
    fn time_ns(&self, ticks: u64) -> i128 {
        let (ticks, exponent) = (i128::from(ticks), u32::from(self.resolution & 0x7f));
        let since_ns = match self.resolution & 0x80 {
            0 if exponent <= 9 => ticks * 10_i128.pow(9 - exponent),
            0 => ticks / 10_i128.checked_pow(exponent - 9).unwrap_or(i128::MAX),
            _ => (ticks * 1_000_000_000).checked_shr(exponent).unwrap_or(0),
        };
        since_ns + i128::from(self.offset_s) * 1_000_000_000
    }
}

/// Where a packet of that many bytes is in its block.
fn packet_range(block: &[u8], at: usize, bytes: u32) -> Result<Range<usize>, &'static str> {
    let bytes = bytes as usize;
    if bytes > block.len() - 4 - at { Err("it is longer than its block") } else { Ok(at..at + bytes) }
}

/// The options of a block, up to the end or the first one that is longer than the rest.
fn parse_options(order: ByteOrder, mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, rest) = bytes.split_first_chunk::<4>()?;
        let (code, value_bytes) = (order.u16(header), usize::from(order.u16(&header[2..])));
        let value = rest.get(..value_bytes)?;
        bytes = rest.get(value_bytes.next_multiple_of(4)..).unwrap_or_default();
        (code != 0).then_some((code, value))
    })
}

/// Option epb_flags, bits 5 to 8: the length in bytes, for packets that differ from others of the interface.
fn fcs_bytes_of_packet(flags: u32) -> Option<u32> {
    let fcs_bytes = flags >> 5 & 0xf;
    (fcs_bytes > 0).then_some(fcs_bytes)
}
