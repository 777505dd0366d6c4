//! Capture files, packet by packet.
//!
//! Every length is checked before it is used. So no length in a file decides how much memory is allocated,
//! and each error names its byte offset. (The crate `pcap-file` reads files itself, and has neither property;
//! `pcap-parser` knows fewer formats.)

use std::io::{self, Read, Seek};
use std::ops::Range;

use super::byte_order::ByteOrder;
use super::content::Content;
use super::damage::Damage;
use super::framing;
use super::pcap::{self, Pcap};
use super::pcapng::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCK_HEADER_BYTES, INTERFACE_DESCRIPTION, SECTION_HEADER, Section,
};
use super::window::Window;

/// How much of a file is read in search of a packet before the caller may do other work: a few packed bytes
/// may be blocks of gigabytes.
pub(super) const SEARCHED_BYTES_MAX: u64 = 64 << 20;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordedPacket {
    /// Since 1970; `None` if not recorded.
    pub(super) time_ns: Option<i128>,
    /// Whether the packet was longer on the wire than in the file, not counting its frame check sequence.
    pub(super) truncated: bool,
    pub(super) link_type: u16,
}

#[derive(Debug)]
enum Format {
    Pcap(Pcap),
    PcapNg(Section),
}

#[derive(Debug)]
pub(super) struct Capture<R> {
    window: Window<Content<R>>,
    /// `None` until the header of the file was read, in each round.
    format: Option<Format>,
    format_name: &'static str,
    /// The range of the current packet in the window, and the bytes before the next one.
    packet: Range<usize>,
    block_bytes: usize,
    packets: u64,
}

impl<R: Read> Capture<R> {
    pub(super) fn open(input: R) -> Result<Self, Damage> {
        let window = Content::open(input)?;
        Ok(Self { window, format: None, format_name: "", packet: 0..0, block_bytes: 0, packets: 0 })
    }

    /// Advances to the next packet; `None` at the end of the file. [`Damage::Silence`]: there is none yet, or
    /// it was searched for long enough.
    pub(super) fn next(&mut self) -> Result<Option<RecordedPacket>, Damage> {
        self.window.skip(std::mem::take(&mut self.block_bytes));
        self.packet = 0..0;
        let next = match self.format {
            Some(Format::Pcap(pcap)) => self.next_of_pcap(pcap),
            Some(Format::PcapNg(_)) => self.next_of_pcapng(),
            None => {
                self.begin()?;
                return self.next();
            }
        };
        self.packets += u64::from(matches!(next, Ok(Some(_))));
        next
    }

    pub(super) fn packet(&self) -> &[u8] {
        self.window.part(self.packet.start, self.packet.len())
    }

    pub(super) fn input(&mut self) -> &mut R {
        self.window.input_mut().input()
    }

    /// Where the current packet, or the block that it is in, begins.
    pub(super) fn offset(&self) -> u64 {
        self.window.offset()
    }

    /// Empty until the first packet was read.
    pub(super) fn format(&self) -> &'static str {
        self.format_name
    }

    pub(super) fn compression(&self) -> Option<&'static str> {
        self.window.input().compression()
    }

    /// Reads the header of the file.
    fn begin(&mut self) -> Result<(), Damage> {
        let format = recognize(&mut self.window)?;
        self.format_name = match format {
            Format::Pcap(_) => "pcap",
            Format::PcapNg(_) => "pcapng",
        };
        self.format = Some(format);
        Ok(())
    }

    fn next_of_pcap(&mut self, pcap: Pcap) -> Result<Option<RecordedPacket>, Damage> {
        let Some(header) = self.peek(pcap.record_bytes)? else { return Ok(None) };
        let record = pcap.record(header);
        self.check_claim(record.bytes, pcap::PACKET_BYTES_MAX)?;
        let block_bytes = pcap.record_bytes + record.bytes as usize;
        if self.peek(block_bytes)?.is_none() {
            return Ok(None);
        }
        let (bytes, truncated) = without_fcs(record.bytes, record.wire_bytes, pcap.fcs_bytes);
        (self.packet, self.block_bytes) = (pcap.record_bytes..pcap.record_bytes + bytes, block_bytes);
        Ok(Some(RecordedPacket { time_ns: Some(record.time_ns), truncated, link_type: pcap.link_type }))
    }

    fn next_of_pcapng(&mut self) -> Result<Option<RecordedPacket>, Damage> {
        let begin = self.offset();
        while self.offset() - begin < SEARCHED_BYTES_MAX {
            let Some((kind, block_bytes)) = self.next_block()? else { return Ok(None) };
            let Some(Format::PcapNg(section)) = &mut self.format else { return Ok(None) };
            let block = self.window.part(0, block_bytes);
            let found = match kind {
                SECTION_HEADER => Section::begin(block).map(|begun| {
                    *section = begun;
                    None
                }),
                INTERFACE_DESCRIPTION => section.add_interface(block).map(|()| None),
                _ => section.packet(kind, block),
            };
            if let Some(found) = found.map_err(|what| self.corrupt(what))? {
                let recorded_bytes = found.range.len() as u32;
                let (bytes, truncated) = without_fcs(recorded_bytes, found.wire_bytes, found.fcs_bytes);
                self.packet = found.range.start..found.range.start + bytes;
                self.block_bytes = block_bytes;
                return Ok(Some(RecordedPacket {
                    time_ns: found.time_ns,
                    truncated,
                    link_type: found.link_type,
                }));
            }
            self.window.skip(block_bytes);
        }
        Err(Damage::Silence)
    }

    /// The type and length of the next block, which is completely in the window.
    fn next_block(&mut self) -> Result<Option<(u32, usize)>, Damage> {
        let Some(Format::PcapNg(section)) = &self.format else { return Ok(None) };
        let mut order = section.order();
        let Some(header) = self.peek(BLOCK_HEADER_BYTES)? else { return Ok(None) };
        let kind = order.u32(header);
        // A section has its own byte order, which is stated after its length.
        if kind == SECTION_HEADER {
            let Some(header) = self.peek(BLOCK_HEADER_BYTES + 4)? else { return Ok(None) };
            order = Section::order_of(&header[BLOCK_HEADER_BYTES..])
                .ok_or_else(|| self.corrupt("the header of a section makes no sense"))?;
        }
        let Some(header) = self.peek(BLOCK_HEADER_BYTES)? else { return Ok(None) };
        let claimed = order.u32(&header[4..]);
        if claimed < BLOCK_BYTES_MIN {
            return Err(self.corrupt("a block is shorter than its own header"));
        }
        if !claimed.is_multiple_of(4) {
            return Err(self.corrupt("a block has a length that is no multiple of 4"));
        }
        self.check_claim(claimed, BLOCK_BYTES_MAX)?;
        let block_bytes = claimed as usize;
        let Some(block) = self.peek(block_bytes)? else { return Ok(None) };
        if order.u32(&block[block_bytes - 4..]) != claimed {
            return Err(self.corrupt("the two lengths of a block differ"));
        }
        Ok(Some((kind, block_bytes)))
    }

    /// The next `bytes` bytes; `None` if the file ends exactly here.
    fn peek(&mut self, bytes: usize) -> Result<Option<&[u8]>, Damage> {
        match self.window.peek(bytes).map(<[u8]>::len) {
            Ok(present) if present == bytes => Ok(Some(self.window.part(0, bytes))),
            other => self.too_few(bytes, other).map(|()| None),
        }
    }

    /// Why there are not as many bytes; none at all is the end.
    #[cold]
    fn too_few(&self, bytes: usize, present: io::Result<usize>) -> Result<(), Damage> {
        let (packet, byte) = self.location();
        match present {
            Ok(0) => Ok(()),
            Ok(present) => Err(Damage::Truncated { packet, byte, bytes_missing: (bytes - present) as u64 }),
            Err(error) => Err(Damage::of_reading(error, self.compression(), (packet, byte))),
        }
    }

    /// The number of the next packet, from 1, and the offset in the file where it, or the block before it,
    /// begins.
    fn location(&self) -> (u64, u64) {
        (self.packets + 1, self.offset())
    }

    fn corrupt(&self, what: &'static str) -> Damage {
        let (packet, byte) = self.location();
        Damage::Corrupt { packet, byte, what }
    }

    fn check_claim(&self, bytes: u32, bytes_max: u32) -> Result<(), Damage> {
        if bytes <= bytes_max {
            return Ok(());
        }
        let (packet, byte) = self.location();
        Err(Damage::Claim { packet, byte, bytes_claimed: bytes.into(), bytes_max: bytes_max.into() })
    }
}

impl<R: Read + Seek> Capture<R> {
    /// To be read again from where the input was at `begin`.
    pub(super) fn rewind(&mut self, begin: u64) -> Result<(), Damage> {
        self.window.input_mut().rewind(begin).map_err(Damage::Rewind)?;
        self.window.restart();
        (self.format, self.packet, self.block_bytes, self.packets) = (None, 0..0, 0, 0);
        Ok(())
    }
}

/// The format of a file, whose header is skipped.
fn recognize<R: Read>(window: &mut Window<Content<R>>) -> Result<Format, Damage> {
    let compression = window.input().compression();
    let of_reading = |error: io::Error| Damage::of_reading(error, compression, (1, 0));
    let header = window.peek(pcap::HEADER_BYTES).map_err(of_reading)?;
    if header.is_empty() {
        return Err(Damage::Empty);
    }
    let little_endian = ByteOrder { is_big_endian: false };
    if header.len() >= 4 && little_endian.u32(header) == SECTION_HEADER {
        // The following is read like any block.
        return Ok(Format::PcapNg(Section::empty(little_endian)));
    }
    let (bytes, mut whole) = (header.len(), [0; pcap::HEADER_BYTES]);
    whole[..bytes].copy_from_slice(header);
    let parsed = Pcap::parse(&whole);
    let bytes_missing = (pcap::HEADER_BYTES - bytes) as u64;
    let pcap = match parsed {
        Ok(None) => return Err(Damage::NotACapture(whole[..bytes.min(Damage::BEGIN_BYTES)].to_vec())),
        _ if bytes_missing > 0 => return Err(Damage::Truncated { packet: 1, byte: 0, bytes_missing }),
        Ok(Some(pcap)) => pcap,
        Err(damage) => return Err(damage),
    };
    if !framing::is_possible(pcap.link_type) {
        return Err(Damage::LinkType(pcap.link_type));
    }
    let header = window.peek(pcap.header_bytes).map_err(of_reading)?;
    if header.len() < pcap.header_bytes {
        let bytes_missing = (pcap.header_bytes - header.len()) as u64;
        return Err(Damage::Truncated { packet: 1, byte: 0, bytes_missing });
    }
    window.skip(pcap.header_bytes);
    Ok(Format::Pcap(pcap.with_records(window.present())))
}

/// How many of the recorded bytes remain without the final frame check sequence, which an interface adds
/// itself; and whether some are missing.
fn without_fcs(recorded_bytes: u32, wire_bytes: u32, fcs_bytes: u32) -> (usize, bool) {
    let frame_bytes = wire_bytes.max(recorded_bytes).saturating_sub(fcs_bytes);
    (recorded_bytes.min(frame_bytes) as usize, recorded_bytes < frame_bytes)
}
