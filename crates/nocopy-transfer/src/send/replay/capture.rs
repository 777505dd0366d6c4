//! Capture files, packet by packet: pcap and pcapng, of either byte order, with any time resolution.
//!
//! Blocks are extracted here, with every length checked, and passed whole to `pcap-parser`. So no length in a file decides how much memory
//! is allocated, and each error names its byte offset. (The crate `pcap-file` reads files itself, and has neither property.)

use std::io::{Read, Seek};
use std::ops::Range;

use pcap_parser::pcapng::{
    parse_enhancedpacketblock_be, parse_enhancedpacketblock_le, parse_interfacedescriptionblock_be,
    parse_interfacedescriptionblock_le, parse_sectionheaderblock, parse_simplepacketblock_be,
    parse_simplepacketblock_le,
};
use pcap_parser::traits::PcapNGPacketBlock;
use pcap_parser::{
    OptionCode, PcapNGOption, parse_pcap_frame, parse_pcap_frame_be, parse_pcap_frame_modified,
    parse_pcap_header,
};

use super::damage::Damage;
use super::window::Window;

const ETHERNET: i64 = 1;

/// The longest packet that libpcap writes (`MAXIMUM_SNAPLEN`).
const PACKET_BYTES_MAX: u32 = 262_144;

/// The longest pcapng block that Wireshark reads.
const BLOCK_BYTES_MAX: u32 = 16 << 20;

/// The longest block that is parsed: a packet, and options, each of which uses more memory than its minimum of 4 bytes.
const PARSED_BYTES_MAX: u32 = 1 << 20;

const INTERFACES_MAX: usize = 1 << 16;

const PCAP_HEADER_BYTES: usize = 24;

/// Type and length, and the length again at the end.
const BLOCK_HEADER_BYTES: usize = 8;
const BLOCK_BYTES_MIN: u32 = 12;

// Types of blocks: draft-ietf-opsawg-pcapng, section 11.1.
const SECTION_HEADER: u32 = 0x0a0d_0d0a;
const INTERFACE_DESCRIPTION: u32 = 1;
const OBSOLETE_PACKET: u32 = 2;
const SIMPLE_PACKET: u32 = 3;
const ENHANCED_PACKET: u32 = 6;

// Options with the length of the frame check sequence of packets: sections 4.2 and 4.3.
const INTERFACE_FCS: OptionCode = OptionCode(13);
const PACKET_FLAGS: OptionCode = OptionCode(2);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Recorded {
    /// Since 1970; `None` if not recorded.
    pub time_ns: Option<i128>,
    /// Whether the packet was longer on the wire than in the file, not counting its frame check sequence.
    pub cut: bool,
}

#[derive(Debug)]
enum Format {
    Pcap { big_endian: bool, modified: bool, ns_per_fraction: u32, link_type: i64, fcs_bytes: u32 },
    PcapNg { big_endian: bool, interfaces: Vec<Interface> },
}

#[derive(Debug, Clone, Copy)]
struct Interface {
    link_type: i64,
    snap_bytes: u32,
    resolution: u8,
    offset_s: i64,
    fcs_bytes: u32,
}

#[derive(Debug)]
pub(super) struct Capture<R> {
    window: Window<R>,
    format: Format,
    /// The range of the current packet in the window, and the bytes before the next one.
    packet: Range<usize>,
    block_bytes: usize,
    packets: u64,
}

impl<R: Read> Capture<R> {
    pub(super) fn open(input: R) -> Result<Self, Damage> {
        let mut window = Window::new(input);
        let (format, header_bytes) = recognize(&mut window)?;
        window.skip(header_bytes);
        Ok(Self { window, format, packet: 0..0, block_bytes: 0, packets: 0 })
    }

    /// Advances to the next packet; `None` at the end of the file.
    pub(super) fn next(&mut self) -> Result<Option<Recorded>, Damage> {
        self.window.skip(std::mem::take(&mut self.block_bytes));
        self.packet = 0..0;
        let next = match self.format {
            Format::Pcap { .. } => self.next_of_pcap(),
            Format::PcapNg { .. } => self.next_of_pcapng(),
        };
        self.packets += u64::from(matches!(next, Ok(Some(_))));
        next
    }

    pub(super) fn packet(&self) -> &[u8] {
        self.window.part(self.packet.start, self.packet.len())
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn input(&mut self) -> &mut R {
        self.window.input()
    }

    pub(super) fn format(&self) -> &'static str {
        match self.format {
            Format::Pcap { .. } => "pcap",
            Format::PcapNg { .. } => "pcapng",
        }
    }

    fn next_of_pcap(&mut self) -> Result<Option<Recorded>, Damage> {
        let Format::Pcap { big_endian, modified, ns_per_fraction, link_type, fcs_bytes } = self.format else {
            return Ok(None);
        };
        let header_bytes = if modified { 24 } else { 16 };
        let Some(header) = self.look(header_bytes)? else { return Ok(None) };
        let bytes_claimed = word(&header[8..], big_endian);
        self.check_claim(bytes_claimed, PACKET_BYTES_MAX)?;
        let block_bytes = header_bytes + bytes_claimed as usize;
        let Some(block) = self.look(block_bytes)? else { return Ok(None) };
        let parse = match (modified, big_endian) {
            (true, _) => parse_pcap_frame_modified,
            (false, true) => parse_pcap_frame_be,
            (false, false) => parse_pcap_frame,
        };
        let Ok((_, frame)) = parse(block) else { return Err(self.corrupt("its header makes no sense")) };
        let seconds_ns = i128::from(frame.ts_sec) * 1_000_000_000;
        let time_ns = seconds_ns + i128::from(frame.ts_usec) * i128::from(ns_per_fraction);
        let (bytes, cut) = without_fcs(bytes_claimed, frame.origlen, fcs_bytes);
        self.check_link_type(link_type)?;
        (self.packet, self.block_bytes) = (header_bytes..header_bytes + bytes, block_bytes);
        Ok(Some(Recorded { time_ns: Some(time_ns), cut }))
    }

    fn next_of_pcapng(&mut self) -> Result<Option<Recorded>, Damage> {
        loop {
            let Some((kind, block_bytes)) = self.next_block()? else { return Ok(None) };
            let recorded = match kind {
                SECTION_HEADER => self.begin_section(block_bytes).map(|()| None)?,
                INTERFACE_DESCRIPTION => self.note_interface(block_bytes).map(|()| None)?,
                ENHANCED_PACKET => Some(self.enhanced_packet(block_bytes)?),
                SIMPLE_PACKET => Some(self.simple_packet(block_bytes)?),
                OBSOLETE_PACKET => {
                    let (packet, byte) = self.place();
                    return Err(Damage::Obsolete { packet, byte });
                }
                _ => None,
            };
            if recorded.is_some() {
                self.block_bytes = block_bytes;
                return Ok(recorded);
            }
            self.window.skip(block_bytes);
        }
    }

    /// The type and length of the next block, which is completely in the window.
    fn next_block(&mut self) -> Result<Option<(u32, usize)>, Damage> {
        let Format::PcapNg { big_endian, .. } = self.format else { return Ok(None) };
        let Some(header) = self.look(BLOCK_HEADER_BYTES)? else { return Ok(None) };
        let kind = word(header, big_endian);
        // A section has its own byte order, which is stated after its length.
        let big_endian = match kind {
            SECTION_HEADER => match self.look(BLOCK_HEADER_BYTES + 4)? {
                Some(header) => header[8] == 0x1a,
                None => return Ok(None),
            },
            _ => big_endian,
        };
        let Some(header) = self.look(BLOCK_HEADER_BYTES)? else { return Ok(None) };
        let claimed = word(&header[4..], big_endian);
        if claimed < BLOCK_BYTES_MIN {
            return Err(self.corrupt("a block is shorter than its own header"));
        }
        if !claimed.is_multiple_of(4) {
            return Err(self.corrupt("a block has a length that is no multiple of 4"));
        }
        let bytes_max = match kind {
            SECTION_HEADER | INTERFACE_DESCRIPTION | SIMPLE_PACKET | ENHANCED_PACKET => PARSED_BYTES_MAX,
            _ => BLOCK_BYTES_MAX,
        };
        self.check_claim(claimed, bytes_max)?;
        let block_bytes = claimed as usize;
        let Some(block) = self.look(block_bytes)? else { return Ok(None) };
        if word(&block[block_bytes - 4..], big_endian) != claimed {
            return Err(self.corrupt("the two lengths of a block differ"));
        }
        Ok(Some((kind, block_bytes)))
    }

    fn begin_section(&mut self, block_bytes: usize) -> Result<(), Damage> {
        let Ok((_, section)) = parse_sectionheaderblock(self.window.part(0, block_bytes)) else {
            return Err(self.corrupt("the header of a section makes no sense"));
        };
        self.format = Format::PcapNg { big_endian: section.big_endian(), interfaces: Vec::new() };
        Ok(())
    }

    fn note_interface(&mut self, block_bytes: usize) -> Result<(), Damage> {
        let block = self.window.part(0, block_bytes);
        let Format::PcapNg { big_endian, interfaces } = &mut self.format else { return Ok(()) };
        let parse = match *big_endian {
            true => parse_interfacedescriptionblock_be,
            false => parse_interfacedescriptionblock_le,
        };
        let interface = parse(block).map(|(_, interface)| Interface {
            link_type: interface.linktype.0.into(),
            snap_bytes: interface.snaplen,
            resolution: interface.if_tsresol,
            // The parser assumes little-endian.
            offset_s: if *big_endian { interface.if_tsoffset.swap_bytes() } else { interface.if_tsoffset },
            fcs_bytes: fcs_of_interface(&interface.options),
        });
        match interface {
            Ok(_) if interfaces.len() == INTERFACES_MAX => {
                Err(self.corrupt("its section describes more than 65536 interfaces"))
            }
            Ok(interface) => {
                interfaces.push(interface);
                Ok(())
            }
            Err(_) => Err(self.corrupt("the description of an interface makes no sense")),
        }
    }

    fn enhanced_packet(&mut self, block_bytes: usize) -> Result<Recorded, Damage> {
        const DATA_AT: usize = 28;
        let Format::PcapNg { big_endian, interfaces } = &self.format else { unreachable!("looked at") };
        let block = self.window.part(0, block_bytes);
        let parse = if *big_endian { parse_enhancedpacketblock_be } else { parse_enhancedpacketblock_le };
        let Ok((_, packet)) = parse(block) else { return Err(self.corrupt("its block makes no sense")) };
        let Some(interface) = interfaces.get(packet.if_id as usize).copied() else {
            return Err(self.corrupt("it is from an interface that was not described"));
        };
        let bytes = packet.caplen as usize;
        if bytes > packet.packet_data().len() || bytes > PACKET_BYTES_MAX as usize {
            return Err(self.corrupt("it is longer than its block, or than packets are"));
        }
        let ticks = u64::from(packet.ts_high) << 32 | u64::from(packet.ts_low);
        let fcs_bytes = fcs_of_packet(&packet.options, *big_endian).unwrap_or(interface.fcs_bytes);
        let (bytes, cut) = without_fcs(packet.caplen, packet.origlen, fcs_bytes);
        let recorded = Recorded { time_ns: Some(interface.time_ns(ticks)), cut };
        self.check_link_type(interface.link_type)?;
        self.packet = DATA_AT..DATA_AT + bytes;
        Ok(recorded)
    }

    fn simple_packet(&mut self, block_bytes: usize) -> Result<Recorded, Damage> {
        const DATA_AT: usize = 12;
        let Format::PcapNg { big_endian, interfaces } = &self.format else { unreachable!("looked at") };
        let block = self.window.part(0, block_bytes);
        let parse = if *big_endian { parse_simplepacketblock_be } else { parse_simplepacketblock_le };
        let Ok((_, packet)) = parse(block) else { return Err(self.corrupt("its block makes no sense")) };
        let Some(interface) = interfaces.first().copied() else {
            return Err(self.corrupt("it is from an interface that was not described"));
        };
        let snap_bytes = if interface.snap_bytes == 0 { u32::MAX } else { interface.snap_bytes };
        let bytes = packet.origlen.min(snap_bytes);
        if bytes as usize > packet.data.len() || bytes > PACKET_BYTES_MAX {
            return Err(self.corrupt("it is longer than its block, or than packets are"));
        }
        let (bytes, cut) = without_fcs(bytes, packet.origlen, interface.fcs_bytes);
        self.check_link_type(interface.link_type)?;
        self.packet = DATA_AT..DATA_AT + bytes;
        Ok(Recorded { time_ns: None, cut })
    }

    /// The next `bytes` bytes; `None` if the file ends exactly here.
    fn look(&mut self, bytes: usize) -> Result<Option<&[u8]>, Damage> {
        let (packet, byte) = self.place();
        match self.window.look(bytes)? {
            [] => Ok(None),
            found if found.len() < bytes => {
                let bytes_missing = (bytes - found.len()) as u64;
                Err(Damage::Truncated { packet, byte, bytes_missing })
            }
            found => Ok(Some(found)),
        }
    }

    /// The number of the next packet, from 1, and the offset in the file where it, or the block before it, begins.
    fn place(&self) -> (u64, u64) {
        (self.packets + 1, self.window.offset())
    }

    fn corrupt(&self, what: &'static str) -> Damage {
        let (packet, byte) = self.place();
        Damage::Corrupt { packet, byte, what }
    }

    fn check_claim(&self, bytes: u32, bytes_max: u32) -> Result<(), Damage> {
        let (packet, byte) = self.place();
        let damage = Damage::Claim { packet, byte, bytes_claimed: bytes.into(), bytes_max: bytes_max.into() };
        if bytes > bytes_max { Err(damage) } else { Ok(()) }
    }

    fn check_link_type(&self, link_type: i64) -> Result<(), Damage> {
        let (packet, byte) = self.place();
        if link_type == ETHERNET { Ok(()) } else { Err(Damage::LinkType { packet, byte, link_type }) }
    }
}

impl<R: Read + Seek> Capture<R> {
    pub(super) fn rewind(&mut self) -> Result<(), Damage> {
        self.input().rewind().map_err(Damage::Rewind)?;
        self.window.restart();
        let (format, header_bytes) = recognize(&mut self.window)?;
        self.window.skip(header_bytes);
        (self.format, self.packet, self.block_bytes, self.packets) = (format, 0..0, 0, 0);
        Ok(())
    }
}

impl Interface {
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

/// The format of a file, and the length of its header.
fn recognize<R: Read>(window: &mut Window<R>) -> Result<(Format, usize), Damage> {
    let header = window.look(PCAP_HEADER_BYTES)?;
    if header.is_empty() {
        return Err(Damage::Empty);
    }
    if header.len() >= 4 && word(header, false) == SECTION_HEADER {
        // The following is read like any block.
        return Ok((Format::PcapNg { big_endian: false, interfaces: Vec::new() }, 0));
    }
    let magic: Vec<u8> = header.iter().copied().take(4).collect();
    let (bytes, modified) = (header.len(), magic == [0x34, 0xcd, 0xb2, 0xa1]);
    match parse_pcap_header(header) {
        Ok((_, found)) if found.version_major != 2 => Err(Damage::Version { major: found.version_major }),
        Ok((_, found)) => {
            let ns_per_fraction = if found.is_nanosecond_precision() { 1 } else { 1000 };
            let link_type = i64::from(found.network.0 & 0xffff);
            let fcs_bytes = fcs_of_file(found.network.0 as u32);
            let big_endian = found.is_bigendian();
            let format = Format::Pcap { big_endian, modified, ns_per_fraction, link_type, fcs_bytes };
            Ok((format, PCAP_HEADER_BYTES))
        }
        Err(error) if error.is_incomplete() && bytes >= 4 => {
            let bytes_missing = (PCAP_HEADER_BYTES - bytes) as u64;
            Err(Damage::Truncated { packet: 1, byte: 0, bytes_missing })
        }
        Err(_) => Err(Damage::NotACapture(magic)),
    }
}

/// The upper half of a file's link type: the length of the check sequence in units of 16 bits, if a bit marks it as known.
fn fcs_of_file(link_type: u32) -> u32 {
    const IS_KNOWN: u32 = 1 << 26;
    if link_type & IS_KNOWN == 0 { 0 } else { 2 * (link_type >> 28) }
}

/// Option if_fcslen, in bits; the example of early drafts, 4, can only be bytes.
fn fcs_of_interface(options: &[PcapNGOption<'_>]) -> u32 {
    let option = options.iter().find(|option| option.code == INTERFACE_FCS);
    match option.and_then(|option| option.value.first()) {
        Some(&bytes @ ..8) => bytes.into(),
        Some(&bits) => u32::from(bits) / 8,
        None => 0,
    }
}

/// Option epb_flags, bits 5 to 8: the length in bytes, for packets that differ from others of the interface.
fn fcs_of_packet(options: &[PcapNGOption<'_>], big_endian: bool) -> Option<u32> {
    let option = options.iter().find(|option| option.code == PACKET_FLAGS && option.value.len() >= 4)?;
    let fcs_bytes = word(&option.value, big_endian) >> 5 & 0xf;
    (fcs_bytes > 0).then_some(fcs_bytes)
}

/// How many of the recorded bytes remain without the final frame check sequence, which an interface adds itself; and whether some are
/// missing.
fn without_fcs(recorded_bytes: u32, wire_bytes: u32, fcs_bytes: u32) -> (usize, bool) {
    let frame_bytes = wire_bytes.max(recorded_bytes).saturating_sub(fcs_bytes);
    (recorded_bytes.min(frame_bytes) as usize, recorded_bytes < frame_bytes)
}

fn word(bytes: &[u8], big_endian: bool) -> u32 {
    let bytes = bytes[..4].try_into().expect("four bytes");
    if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
}
