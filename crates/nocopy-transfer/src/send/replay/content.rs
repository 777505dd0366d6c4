//! The content of a file, unpacked if it is compressed by gzip or zstd.

use std::io::{self, BufRead, ErrorKind, Read, Seek, SeekFrom};

use flate2::bufread::GzDecoder;

use super::compressed::CompressedInput;
use super::window::Window;
use super::zstd::Zstd;

const GZIP: [u8; 2] = [0x1f, 0x8b];

#[derive(Debug)]
pub(super) enum Content<R> {
    Plain(R),
    Gzip(Box<Gzip<R>>),
    Zstd(Box<Zstd<R>>),
}

impl<R: Read> Content<R> {
    /// Recognizes the compression by the first bytes.
    pub(super) fn open(input: R) -> io::Result<Window<Self>> {
        let mut file = Window::new(input);
        let begin = file.peek(4)?;
        Ok(if begin.starts_with(&GZIP) {
            let member = Some(GzDecoder::new(file.map(CompressedInput::new)));
            Window::new(Self::Gzip(Box::new(Gzip { member })))
        } else if Zstd::<R>::has_magic(begin) {
            Window::new(Self::Zstd(Box::new(Zstd::new(file.map(CompressedInput::new)))))
        } else {
            file.map(Self::Plain)
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
            Self::Gzip(gzip) => gzip.packed().input_mut().input(),
            Self::Zstd(zstd) => zstd.packed().input_mut().input(),
        }
    }
}

impl<R: Read + Seek> Content<R> {
    pub(super) fn rewind(&mut self, begin: u64) -> io::Result<()> {
        self.input().seek(SeekFrom::Start(begin))?;
        match self {
            Self::Plain(_) => {}
            Self::Gzip(gzip) => {
                gzip.packed().restart();
                gzip.begin_member();
            }
            Self::Zstd(zstd) => zstd.restart(),
        }
        Ok(())
    }
}

impl<R: Read> Read for Content<R> {
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
pub(super) struct Gzip<R> {
    /// The current member; `None` only while the next one is begun.
    member: Option<GzDecoder<Window<CompressedInput<R>>>>,
}

impl<R: Read> Gzip<R> {
    fn member(&mut self) -> &mut GzDecoder<Window<CompressedInput<R>>> {
        self.member.as_mut().expect("no member is begun")
    }

    fn packed(&mut self) -> &mut Window<CompressedInput<R>> {
        self.member().get_mut()
    }

    fn begin_member(&mut self) {
        self.member = self.member.take().map(|member| GzDecoder::new(member.into_inner()));
    }

    /// Whether another member follows.
    fn is_continued(&mut self) -> io::Result<bool> {
        loop {
            match self.packed().fill_buf()? {
                [] => return Ok(false),
                [first, ..] if *first == GZIP[0] => return Ok(true),
                [0, ..] => self.packed().skip(1),
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
    }
}

impl<R: Read> Read for Gzip<R> {
    fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        self.packed().input_mut().begin_search();
        loop {
            let count = self.member().read(target)?;
            if count > 0 || target.is_empty() || !self.is_continued()? {
                return Ok(count);
            }
            self.begin_member();
        }
    }
}
