//! The pcap format (draft-ietf-opsawg-pcap) and its relatives, as libpcap and Wireshark read them.

use super::byte_order::ByteOrder;
use super::damage::CaptureError;

pub(super) const HEADER_BYTES: usize = 24;

/// The longest packet that libpcap writes (`MAXIMUM_SNAPLEN`).
pub(super) const PACKET_BYTES_MAX: u32 = 262_144;

/// Headers of records. Longer ones than usual are those of patches of libpcap by A. Kuznetsov, whose files
/// have a magic number of their own or not, and of Nokia's libpcap (20). Which one a file has is told by what
/// makes sense.
const RECORD_BYTES: [usize; 3] = [16, 24, 20];
const PATCHED_RECORD_BYTES: [usize; 2] = [24, 28];

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;
const NAVTEL_NANOSECONDS: u32 = 0xa12b_3c4d;
const PATCHED: u32 = 0xa1b2_cd34;
/// Of Ixia's hardware and software: 4 more bytes in the file's header.
const IXIA: [u32; 2] = [0x1c00_01ac, 0x1c00_01ab];
const IXIA_BYTES: usize = 4;

/// Files of DG/UX's tcpdump say that they are of this version.
const VERSION_OF_DG_UX: u16 = 543;

#[derive(Debug, Clone, Copy)]
pub(super) struct PcapHeader {
    order: ByteOrder,
    pub(super) header_bytes: usize,
    pub(super) record_bytes: usize,
    magic: u32,
    lengths: RecordLengthOrder,
    ns_per_fraction: u32,
    pub(super) link_type: u16,
    pub(super) fcs_bytes: u32,
}

/// The order of a record's two lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RecordLengthOrder {
    RecordedFirst,
    /// Before version 2.3.
    WireFirst,
    /// In version 2.3: the recorded one is the shorter.
    Either,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PcapRecord {
    pub(super) time_ns: i128,
    pub(super) bytes: u32,
    pub(super) wire_bytes: u32,
}

impl PcapHeader {
    /// The header of a file; `None` if the magic number is another one.
    pub(super) fn parse(header: &[u8; HEADER_BYTES]) -> Result<Option<Self>, CaptureError> {
        let Some((order, magic)) = [false, true].into_iter().find_map(|is_big_endian| {
            let order = ByteOrder { is_big_endian };
            let magic = order.u32(header);
            let is_known = [MICROSECONDS, NANOSECONDS, NAVTEL_NANOSECONDS, PATCHED].contains(&magic);
            (is_known || IXIA.contains(&magic)).then_some((order, magic))
        }) else {
            return Ok(None);
        };
        let (major, minor) = (order.u16(&header[4..]), order.u16(&header[6..]));
        let lengths = match (major, minor) {
            (2, ..3) | (VERSION_OF_DG_UX, 0) => RecordLengthOrder::WireFirst,
            (2, 3) => RecordLengthOrder::Either,
            (2, _) => RecordLengthOrder::RecordedFirst,
            _ => return Err(CaptureError::Version { major }),
        };
        let network = order.u32(&header[20..]);
        let of_aix = if (major, minor) == (2, 2) { link_type_from_aix(network) } else { None };
        let is_in_nanoseconds = [NANOSECONDS, NAVTEL_NANOSECONDS].contains(&magic) || of_aix.is_some();
        Ok(Some(Self {
            order,
            header_bytes: HEADER_BYTES + if IXIA.contains(&magic) { IXIA_BYTES } else { 0 },
            record_bytes: if magic == PATCHED { PATCHED_RECORD_BYTES[0] } else { RECORD_BYTES[0] },
            magic,
            lengths,
            ns_per_fraction: if is_in_nanoseconds { 1 } else { 1000 },
            link_type: of_aix.unwrap_or(network as u16),
            fcs_bytes: fcs_bytes_of_file(network),
        }))
    }

    /// The format with the header of records that makes sense of the bytes after the file's header: the usual
    /// one, if it may.
    pub(super) fn with_detected_record_header(self, begin: &[u8]) -> Self {
        let candidates: &[usize] = match self.magic {
            MICROSECONDS => &RECORD_BYTES,
            PATCHED => &PATCHED_RECORD_BYTES,
            _ => &[],
        };
        let formats = candidates.iter().map(|&record_bytes| Self { record_bytes, ..self });
        let fitting = formats.clone().find(|format| format.matches_record(begin) == Some(true));
        match self.matches_record(begin) {
            Some(false) => fitting.unwrap_or(self),
            _ => self,
        }
    }

    /// The lengths and the time in a record's header.
    pub(super) fn parse_record(&self, header: &[u8]) -> PcapRecord {
        let word = |number: usize| self.order.u32(&header[4 * number..]);
        let [first, second] = [word(2), word(3)];
        let is_swapped = match self.lengths {
            RecordLengthOrder::RecordedFirst => false,
            RecordLengthOrder::WireFirst => true,
            RecordLengthOrder::Either => first > second,
        };
        let (bytes, wire_bytes) = if is_swapped { (second, first) } else { (first, second) };
        let fraction_ns = i128::from(word(1)) * i128::from(self.ns_per_fraction);
        PcapRecord { time_ns: i128::from(word(0)) * 1_000_000_000 + fraction_ns, bytes, wire_bytes }
    }

    /// Whether the headers of two records make sense; `None` if there are not so many bytes.
    fn matches_record(&self, begin: &[u8]) -> Option<bool> {
        let makes_sense = |header: &[u8]| {
            let PcapRecord { bytes, wire_bytes, .. } = self.parse_record(header);
            bytes <= PACKET_BYTES_MAX && bytes <= wire_bytes && self.order.u32(&header[4..]) < 1_000_000
        };
        let first = begin.get(..self.record_bytes)?;
        if !makes_sense(first) {
            return Some(false);
        }
        let second = begin.get(self.record_bytes + self.parse_record(first).bytes as usize..)?;
        second.get(..self.record_bytes).map(makes_sense)
    }
}

/// AIX uses numbers of `net/if_types.h`, and nanoseconds.
fn link_type_from_aix(interface_type: u32) -> Option<u16> {
    match interface_type {
        6 => Some(1),
        9 => Some(6),
        15 => Some(10),
        24 => Some(0),
        _ => None,
    }
}

/// The upper half of a file's link type: the length of the check sequence in units of 16 bits, if a bit marks
/// it as known.
fn fcs_bytes_of_file(link_type: u32) -> u32 {
    const IS_KNOWN: u32 = 1 << 26;
    if link_type & IS_KNOWN == 0 { 0 } else { 2 * (link_type >> 28) }
}
