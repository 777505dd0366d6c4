//! The content of a file, unpacked if it is compressed by gzip or zstd.

use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom};

use flate2::bufread::GzDecoder;

use super::compressed::CompressedInput;
use super::window::PeekReader;
use super::zstd::ZstdReader;

const GZIP: [u8; 2] = [0x1f, 0x8b];

#[derive(Debug)]
pub(super) enum DecompressedInput<R> {
    Plain(R),
    Gzip(Box<GzipReader<R>>),
    Zstd(Box<ZstdReader<R>>),
}

impl<R: Read> DecompressedInput<R> {
    /// Recognizes the compression by the first bytes.
    pub(super) fn open(input: R) -> io::Result<PeekReader<Self>> {
        let mut file = PeekReader::new(input);
        let begin = file.peek(4)?;
        Ok(if begin.starts_with(&GZIP) {
            let member = Some(GzDecoder::new(file.map_input(CompressedInput::new)));
            PeekReader::new(Self::Gzip(Box::new(GzipReader { member })))
        } else if ZstdReader::<R>::has_magic(begin) {
            PeekReader::new(Self::Zstd(Box::new(ZstdReader::new(file.map_input(CompressedInput::new)))))
        } else {
            file.map_input(Self::Plain)
        })
    }

    pub(super) fn compression(&self) -> Option<&'static str> {
        match self {
            Self::Plain(_) => None,
            Self::Gzip(_) => Some("gzip"),
            Self::Zstd(_) => Some("zstd"),
        }
    }

    pub(super) fn input(&mut self) -> &mut R {
        match self {
            Self::Plain(input) => input,
            Self::Gzip(gzip) => gzip.compressed_reader().input_mut().input(),
            Self::Zstd(zstd) => zstd.compressed_reader().input_mut().input(),
        }
    }
}

impl<R: Read + Seek> DecompressedInput<R> {
    pub(super) fn rewind(&mut self, begin: u64) -> io::Result<()> {
        self.input().seek(SeekFrom::Start(begin))?;
        match self {
            Self::Plain(_) => {}
            Self::Gzip(gzip) => {
                gzip.compressed_reader().restart();
                gzip.begin_member();
            }
            Self::Zstd(zstd) => zstd.restart(),
        }
        Ok(())
    }
}

impl<R: Read> Read for DecompressedInput<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(input) => input.read(target),
            Self::Gzip(gzip) => gzip.read(target),
            Self::Zstd(zstd) => zstd.read(target),
        }
    }
}

/// A file of one or several members (RFC 1952, section 2.2), possibly filled up with zeros, as on tapes. Its
/// memory is a window of 32 KiB.
#[derive(Debug)]
pub(super) struct GzipReader<R> {
    /// The current member; `None` only while the next one is begun.
    member: Option<GzDecoder<PeekReader<CompressedInput<R>>>>,
}

impl<R: Read> GzipReader<R> {
    fn member(&mut self) -> &mut GzDecoder<PeekReader<CompressedInput<R>>> {
        self.member.as_mut().expect("no member is begun")
    }

    fn compressed_reader(&mut self) -> &mut PeekReader<CompressedInput<R>> {
        self.member().get_mut()
    }

    fn begin_member(&mut self) {
        self.member = self.member.take().map(|member| GzDecoder::new(member.into_inner()));
    }

    /// Whether another member follows.
    fn has_next_member(&mut self) -> io::Result<bool> {
        loop {
            match self.compressed_reader().fill_buf()? {
                [] => return Ok(false),
                [first, ..] if *first == GZIP[0] => return Ok(true),
                [0, ..] => self.compressed_reader().skip(1),
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
    }
}

impl<R: Read> Read for GzipReader<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.compressed_reader().input_mut().reset_read_budget();
        loop {
            let count = self.member().read(target)?;
            if count > 0 || target.is_empty() || !self.has_next_member()? {
                return Ok(count);
            }
            self.begin_member();
        }
    }
}
