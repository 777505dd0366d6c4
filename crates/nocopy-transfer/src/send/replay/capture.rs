//! Capture files, packet by packet.
//!
//! Every length is checked before it is used. So no length in a file decides how much memory is allocated,
//! and each error names its byte offset. (The crate `pcap-file` reads files itself, and has neither property;
//! `pcap-parser` knows fewer formats.)

use std::io::{self, Read, Seek};
use std::ops::Range;

use super::byte_order::ByteOrder;
use super::content::DecompressedInput;
use super::damage::CaptureError;
use super::framing;
use super::pcap::{self, PcapHeader};
use super::pcapng::{
    BLOCK_BYTES_MAX, BLOCK_BYTES_MIN, BLOCK_HEADER_BYTES, INTERFACE_DESCRIPTION, PcapngSection,
    SECTION_HEADER,
};
use super::window::PeekReader;

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
enum CaptureFormat {
    Pcap(PcapHeader),
    PcapNg(PcapngSection),
}

#[derive(Debug)]
pub(super) struct CaptureReader<R> {
    window: PeekReader<DecompressedInput<R>>,
    /// `None` until the header of the file was read, in each round.
    format: Option<CaptureFormat>,
    format_name: &'static str,
    /// The range of the current packet in the window, and the bytes before the next one.
    packet: Range<usize>,
    block_bytes: usize,
    packets: u64,
}

impl<R: Read> CaptureReader<R> {
    pub(super) fn open(input: R) -> Result<Self, CaptureError> {
        let window = DecompressedInput::open(input)?;
        Ok(Self { window, format: None, format_name: "", packet: 0..0, block_bytes: 0, packets: 0 })
    }

    /// Advances to the next packet; `None` at the end of the file. [`CaptureError::Silence`]: there is none
    /// yet, or it was searched for long enough.
    pub(super) fn next_packet(&mut self) -> Result<Option<RecordedPacket>, CaptureError> {
        self.window.skip(std::mem::take(&mut self.block_bytes));
        self.packet = 0..0;
        let next = match self.format {
            Some(CaptureFormat::Pcap(pcap)) => self.next_pcap_packet(pcap),
            Some(CaptureFormat::PcapNg(_)) => self.next_pcapng_packet(),
            None => {
                self.read_file_header()?;
                return self.next_packet();
            }
        };
        self.packets += u64::from(matches!(next, Ok(Some(_))));
        next
    }

    pub(super) fn packet(&self) -> &[u8] {
        self.window.peeked_part(self.packet.start, self.packet.len())
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
    fn read_file_header(&mut self) -> Result<(), CaptureError> {
        let format = recognize_format(&mut self.window)?;
        self.format_name = match format {
            CaptureFormat::Pcap(_) => "pcap",
            CaptureFormat::PcapNg(_) => "pcapng",
        };
        self.format = Some(format);
        Ok(())
    }

    fn next_pcap_packet(&mut self, pcap: PcapHeader) -> Result<Option<RecordedPacket>, CaptureError> {
        let Some(header) = self.peek(pcap.record_bytes)? else { return Ok(None) };
        let record = pcap.parse_record(header);
        self.check_claimed_length(record.bytes, pcap::PACKET_BYTES_MAX)?;
        let block_bytes = pcap.record_bytes + record.bytes as usize;
        if self.peek(block_bytes)?.is_none() {
            return Ok(None);
        }
        let (bytes, truncated) = bytes_without_fcs(record.bytes, record.wire_bytes, pcap.fcs_bytes);
        (self.packet, self.block_bytes) = (pcap.record_bytes..pcap.record_bytes + bytes, block_bytes);
        Ok(Some(RecordedPacket { time_ns: Some(record.time_ns), truncated, link_type: pcap.link_type }))
    }

    fn next_pcapng_packet(&mut self) -> Result<Option<RecordedPacket>, CaptureError> {
        let begin = self.offset();
        while self.offset() - begin < SEARCHED_BYTES_MAX {
            let Some((kind, block_bytes)) = self.next_block()? else { return Ok(None) };
            let Some(CaptureFormat::PcapNg(section)) = &mut self.format else { return Ok(None) };
            let block = self.window.peeked_part(0, block_bytes);
            let found = match kind {
                SECTION_HEADER => PcapngSection::parse_section_header(block).map(|begun| {
                    *section = begun;
                    None
                }),
                INTERFACE_DESCRIPTION => section.add_interface(block).map(|()| None),
                _ => section.parse_packet(kind, block),
            };
            if let Some(found) = found.map_err(|what| self.corrupt_error(what))? {
                let recorded_bytes = found.range.len() as u32;
                let (bytes, truncated) = bytes_without_fcs(recorded_bytes, found.wire_bytes, found.fcs_bytes);
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
        Err(CaptureError::Silence)
    }

    /// The type and length of the next block, which is completely in the window.
    fn next_block(&mut self) -> Result<Option<(u32, usize)>, CaptureError> {
        let Some(CaptureFormat::PcapNg(section)) = &self.format else { return Ok(None) };
        let mut order = section.order();
        let Some(header) = self.peek(BLOCK_HEADER_BYTES)? else { return Ok(None) };
        let kind = order.u32(header);
        // A section has its own byte order, which is stated after its length.
        if kind == SECTION_HEADER {
            let Some(header) = self.peek(BLOCK_HEADER_BYTES + 4)? else { return Ok(None) };
            order = PcapngSection::parse_byte_order(&header[BLOCK_HEADER_BYTES..])
                .ok_or_else(|| self.corrupt_error("the header of a section makes no sense"))?;
        }
        let Some(header) = self.peek(BLOCK_HEADER_BYTES)? else { return Ok(None) };
        let claimed = order.u32(&header[4..]);
        if claimed < BLOCK_BYTES_MIN {
            return Err(self.corrupt_error("a block is shorter than its own header"));
        }
        if !claimed.is_multiple_of(4) {
            return Err(self.corrupt_error("a block has a length that is no multiple of 4"));
        }
        self.check_claimed_length(claimed, BLOCK_BYTES_MAX)?;
        let block_bytes = claimed as usize;
        let Some(block) = self.peek(block_bytes)? else { return Ok(None) };
        if order.u32(&block[block_bytes - 4..]) != claimed {
            return Err(self.corrupt_error("the two lengths of a block differ"));
        }
        Ok(Some((kind, block_bytes)))
    }

    /// The next `bytes` bytes; `None` if the file ends exactly here.
    fn peek(&mut self, bytes: usize) -> Result<Option<&[u8]>, CaptureError> {
        match self.window.peek(bytes).map(<[u8]>::len) {
            Ok(present) if present == bytes => Ok(Some(self.window.peeked_part(0, bytes))),
            other => self.missing_bytes_error(bytes, other).map(|()| None),
        }
    }

    /// Why there are not as many bytes; none at all is the end.
    #[cold]
    fn missing_bytes_error(&self, bytes: usize, present: io::Result<usize>) -> Result<(), CaptureError> {
        let (packet, byte) = self.location();
        match present {
            Ok(0) => Ok(()),
            Ok(present) => {
                Err(CaptureError::Truncated { packet, byte, bytes_missing: (bytes - present) as u64 })
            }
            Err(error) => Err(CaptureError::from_read_error(error, self.compression(), (packet, byte))),
        }
    }

    /// The number of the next packet, from 1, and the offset in the file where it, or the block before it,
    /// begins.
    fn location(&self) -> (u64, u64) {
        (self.packets + 1, self.offset())
    }

    fn corrupt_error(&self, what: &'static str) -> CaptureError {
        let (packet, byte) = self.location();
        CaptureError::Corrupt { packet, byte, what }
    }

    fn check_claimed_length(&self, bytes: u32, bytes_max: u32) -> Result<(), CaptureError> {
        if bytes <= bytes_max {
            return Ok(());
        }
        let (packet, byte) = self.location();
        Err(CaptureError::Claim { packet, byte, bytes_claimed: bytes.into(), bytes_max: bytes_max.into() })
    }
}

impl<R: Read + Seek> CaptureReader<R> {
    /// To be read again from where the input was at `begin`.
    pub(super) fn rewind(&mut self, begin: u64) -> Result<(), CaptureError> {
        self.window.input_mut().rewind(begin).map_err(CaptureError::Rewind)?;
        self.window.restart();
        (self.format, self.packet, self.block_bytes, self.packets) = (None, 0..0, 0, 0);
        Ok(())
    }
}

/// The format of a file, whose header is skipped.
fn recognize_format<R: Read>(
    window: &mut PeekReader<DecompressedInput<R>>,
) -> Result<CaptureFormat, CaptureError> {
    let compression = window.input().compression();
    let of_reading = |error: io::Error| CaptureError::from_read_error(error, compression, (1, 0));
    let header = window.peek(pcap::HEADER_BYTES).map_err(of_reading)?;
    if header.is_empty() {
        return Err(CaptureError::Empty);
    }
    let little_endian = ByteOrder { is_big_endian: false };
    if header.len() >= 4 && little_endian.u32(header) == SECTION_HEADER {
        // The following is read like any block.
        return Ok(CaptureFormat::PcapNg(PcapngSection::empty(little_endian)));
    }
    let (bytes, mut whole) = (header.len(), [0; pcap::HEADER_BYTES]);
    whole[..bytes].copy_from_slice(header);
    let parsed = PcapHeader::parse(&whole);
    let bytes_missing = (pcap::HEADER_BYTES - bytes) as u64;
    let pcap = match parsed {
        Ok(None) => {
            return Err(CaptureError::NotACapture(whole[..bytes.min(CaptureError::BEGIN_BYTES)].to_vec()));
        }
        _ if bytes_missing > 0 => return Err(CaptureError::Truncated { packet: 1, byte: 0, bytes_missing }),
        Ok(Some(pcap)) => pcap,
        Err(damage) => return Err(damage),
    };
    if !framing::is_supported_link_type(pcap.link_type) {
        return Err(CaptureError::LinkType(pcap.link_type));
    }
    let header = window.peek(pcap.header_bytes).map_err(of_reading)?;
    if header.len() < pcap.header_bytes {
        let bytes_missing = (pcap.header_bytes - header.len()) as u64;
        return Err(CaptureError::Truncated { packet: 1, byte: 0, bytes_missing });
    }
    window.skip(pcap.header_bytes);
    Ok(CaptureFormat::Pcap(pcap.with_detected_record_header(window.buffered())))
}

/// How many of the recorded bytes remain without the final frame check sequence, which an interface adds
/// itself; and whether some are missing.
fn bytes_without_fcs(recorded_bytes: u32, wire_bytes: u32, fcs_bytes: u32) -> (usize, bool) {
    let frame_bytes = wire_bytes.max(recorded_bytes).saturating_sub(fcs_bytes);
    (recorded_bytes.min(frame_bytes) as usize, recorded_bytes < frame_bytes)
}
