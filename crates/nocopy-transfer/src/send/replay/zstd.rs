//! The content of a zstd file (RFC 8878), block by block, so that a pipe may be silent between any two bytes.
//!
//! A block is handed to the decoder only when it is completely in memory. The decoder keeps the window of its
//! frame, and its memory grows with what was unpacked, not with what a frame claims.

use std::fmt;
use std::io::{self, BufRead, ErrorKind, Read};

use ruzstd::decoding::errors::FrameDecoderError;
use ruzstd::decoding::{BlockDecodingStrategy, FrameDecoder};

use super::compressed::CompressedInput;
use super::window::PeekReader;

/// The longest window that 'zstd -d' accepts without being asked to.
const WINDOW_BYTES_MAX: u64 = 128 << 20;

/// Section 3.1.1.2.4.
const BLOCK_BYTES_MAX: usize = 128 << 10;

const BLOCK_HEADER_BYTES: usize = 3;
const FRAME_HEADER_BYTES_MAX: usize = 18;
const SKIPPABLE_HEADER_BYTES: usize = 8;

const FRAME: u32 = 0xfd2f_b528;
/// The last digit is free.
const SKIPPABLE: u32 = 0x184d_2a50;

/// An empty last block, and room for a checksum: makes the decoder return what it holds of a frame that was
/// cut off.
const END: [u8; BLOCK_HEADER_BYTES + 4] = [1, 0, 0, 0, 0, 0, 0];

pub(super) struct ZstdReader<R> {
    packed: PeekReader<CompressedInput<R>>,
    frame: Option<FrameDecoder>,
    /// The length of the checksum at the end of the frame.
    sum_bytes: usize,
    /// Bytes of a skippable frame that are still to be skipped.
    skipped_bytes: u32,
    /// Why nothing follows what is in the decoder.
    failed: Option<ErrorKind>,
}

impl<R: Read> ZstdReader<R> {
    pub(super) fn new(packed: PeekReader<CompressedInput<R>>) -> Self {
        Self { packed, frame: None, sum_bytes: 0, skipped_bytes: 0, failed: None }
    }

    pub(super) fn has_magic(bytes: &[u8]) -> bool {
        bytes.first_chunk().is_some_and(|&magic| {
            let magic = u32::from_le_bytes(magic);
            magic == FRAME || magic & !0xf == SKIPPABLE
        })
    }

    pub(super) fn compressed_reader(&mut self) -> &mut PeekReader<CompressedInput<R>> {
        &mut self.packed
    }

    /// To be read from the start, which its input is at.
    pub(super) fn restart(&mut self) {
        self.packed.restart();
        (self.frame, self.skipped_bytes, self.failed) = (None, 0, None);
    }

    /// Whether there is another frame.
    fn begin_frame(&mut self) -> io::Result<bool> {
        while self.skipped_bytes > 0 {
            let present = self.packed.fill_buf()?.len();
            if present == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            let skipped = present.min(self.skipped_bytes as usize);
            self.packed.skip(skipped);
            self.skipped_bytes -= skipped as u32;
        }
        let header = self.packed.peek(FRAME_HEADER_BYTES_MAX)?;
        let Some((magic, mut rest)) = header.split_first_chunk() else {
            return if header.is_empty() { Ok(false) } else { Err(ErrorKind::UnexpectedEof.into()) };
        };
        let magic = u32::from_le_bytes(*magic);
        if magic & !0xf == SKIPPABLE {
            let Some(bytes) = rest.first_chunk() else { return Err(ErrorKind::UnexpectedEof.into()) };
            self.skipped_bytes = u32::from_le_bytes(*bytes);
            self.packed.skip(SKIPPABLE_HEADER_BYTES);
            return Ok(true);
        }
        // The third bit of the byte after the magic.
        self.sum_bytes = if rest.first().is_some_and(|descriptor| descriptor & 4 != 0) { 4 } else { 0 };
        let mut frame = FrameDecoder::new();
        frame.set_max_window_size(WINDOW_BYTES_MAX);
        rest = header;
        let is_cut = header.len() < FRAME_HEADER_BYTES_MAX && magic == FRAME;
        frame.reset(&mut rest).map_err(|error| match decoder_io_error(error) {
            error if is_cut && error.kind() == ErrorKind::InvalidData => ErrorKind::UnexpectedEof.into(),
            error => error,
        })?;
        let used = header.len() - rest.len();
        self.packed.skip(used);
        self.frame = Some(frame);
        Ok(true)
    }

    fn unpack_block(&mut self) -> io::Result<()> {
        let Some(frame) = &mut self.frame else { return Ok(()) };
        let header = self.packed.peek(BLOCK_HEADER_BYTES)?;
        let bytes = match header {
            &[a, b, c] => {
                let header = u32::from_le_bytes([a, b, c, 0]);
                let is_repeated_byte = header >> 1 & 3 == 1;
                let content = if is_repeated_byte { 1 } else { header as usize >> 3 };
                let sum_bytes = if header & 1 == 1 { self.sum_bytes } else { 0 };
                BLOCK_HEADER_BYTES + content + sum_bytes
            }
            _ => BLOCK_HEADER_BYTES,
        };
        if bytes > BLOCK_HEADER_BYTES + BLOCK_BYTES_MAX + self.sum_bytes {
            return Err(ErrorKind::InvalidData.into());
        }
        let mut block = self.packed.peek(bytes)?;
        if block.len() < bytes {
            self.failed = Some(ErrorKind::UnexpectedEof);
            block = &END;
        }
        frame.decode_blocks(block, BlockDecodingStrategy::UptoBlocks(1)).map_err(decoder_io_error)?;
        if self.failed.is_none() {
            self.packed.skip(bytes);
        }
        Ok(())
    }

    fn end_frame(&mut self) -> io::Result<()> {
        let Some(frame) = self.frame.take() else { return Ok(()) };
        let sums = (frame.get_checksum_from_data(), frame.get_calculated_checksum());
        match (self.failed, sums) {
            (Some(kind), _) => Err(kind.into()),
            (None, (Some(stated), computed)) if Some(stated) != computed => {
                Err(ErrorKind::InvalidData.into())
            }
            _ => Ok(()),
        }
    }

    fn unpack(&mut self, target: &mut [u8]) -> io::Result<usize> {
        loop {
            let Some(frame) = &mut self.frame else {
                if self.begin_frame()? {
                    continue;
                }
                return Ok(0);
            };
            let count = frame.read(target)?;
            if count > 0 || target.is_empty() {
                return Ok(count);
            }
            if frame.is_finished() { self.end_frame()? } else { self.unpack_block()? }
        }
    }
}

impl<R: Read> Read for ZstdReader<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        if let (Some(kind), None) = (self.failed, &self.frame) {
            return Err(kind.into());
        }
        self.packed.input_mut().reset_read_budget();
        let read = self.unpack(target);
        if let Err(error) = &read
            && error.kind() != ErrorKind::WouldBlock
        {
            (self.failed, self.frame) = (Some(error.kind()), None);
        }
        read
    }
}

fn decoder_io_error(error: FrameDecoderError) -> io::Error {
    let kind = match error {
        FrameDecoderError::WindowSizeTooBig { .. } => ErrorKind::FileTooLarge,
        FrameDecoderError::DictNotProvided { .. } => ErrorKind::NotFound,
        _ => ErrorKind::InvalidData,
    };
    io::Error::new(kind, error)
}

impl<R: fmt::Debug> fmt::Debug for ZstdReader<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZstdReader").field("packed", &self.packed).finish_non_exhaustive()
    }
}
