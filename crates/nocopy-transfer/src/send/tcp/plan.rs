//! The content of each stream, decided and opened before any connection is made.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use nocopy::tcp::{Method, Published};
use rustix::thread::CapabilitySet;

use super::Error;
use super::worker::{FileSendMethod, WorkerSource};
use crate::Failure;
use crate::arguments::{HostArguments, SendArguments, SendMethodArgument};
use crate::send::input::Input;
use crate::send::pacer::Pace;
use crate::send::pattern::PayloadPattern;
use crate::send::queue::{Schedule, SendLimits};
use crate::transfer::stream::split_into_ranges;
use nocopy_report::capability;
use nocopy_report::input_file::{self, shrunk_error};
use nocopy_report::quantity::Rate;

/// Default length of pieces, small enough to stay in the processor's cache.
const PIECE_BYTES: u64 = 64 << 10;

/// Pieces of a file sent by reference.
const REFERRED_BYTES: u64 = 1 << 20;

const PIECE_BYTES_MAX: u64 = 64 << 20;

/// With a rate, the number of pieces per second; but a piece is not shorter than a packet's data.
const PIECES_A_SECOND: f64 = 100.0;
const PIECE_BYTES_MIN: u64 = 1400;

#[derive(Debug)]
pub(super) struct SendPlan {
    source: SendSource,
    path: PathBuf,
    pub piece_bytes: u64,
    /// One for each stream, if its end is known.
    pub ranges: Vec<Option<Range<u64>>>,
    pub total: Option<u64>,
    pub pace: Pace,
    pub goal: SendLimits,
    /// Whether the run ends without a count: by a time, or at the end of the input.
    pub has_end: bool,
    /// The method for buffers; `None`: measured.
    pub method: Option<Method>,
}

#[derive(Debug)]
enum SendSource {
    Pattern(Arc<PayloadPattern>),
    Published(Arc<PayloadPattern>, Published),
    /// A file, and its length.
    File(Arc<File>, u64, FileSendMethod),
    /// The input, until its stream takes it.
    Input(Option<Input>),
}

impl SendPlan {
    pub(super) fn new(arguments: &SendArguments) -> Result<Self, Failure> {
        let pace = arguments.rate.map_or(Pace::FlatOut, Pace::Rate);
        let method = library_method(arguments.host.method);
        let piece_bytes = piece_bytes(arguments)?;
        let (source, path) = open_source(&arguments.host, piece_bytes)?;
        let streams = arguments.stream.streams;
        if streams > 1 && matches!(source, SendSource::Input(_)) {
            return Err(Error::OneStream.into());
        }
        let counted = arguments.count.map(|count| count.saturating_mul(piece_bytes).min(BYTES_MAX));
        let total = match &source {
            SendSource::Pattern(_) | SendSource::Published(..) => counted,
            SendSource::File(_, length, _) => Some(counted.map_or(*length, |counted| counted.min(*length))),
            SendSource::Input(_) => None,
        };
        let ranges = match total {
            Some(total) => split_into_ranges(total, piece_bytes, streams).into_iter().map(Some).collect(),
            None => vec![None; streams as usize],
        };
        let has_end = arguments.duration.is_some()
            || !matches!(source, SendSource::Pattern(_) | SendSource::Published(..));
        Ok(Self {
            source,
            path,
            piece_bytes,
            ranges,
            total,
            pace,
            goal: SendLimits::from_arguments(arguments),
            has_end,
            method,
        })
    }

    /// Capabilities for opening: only with `CAP_IPC_LOCK` may a ring register memory beyond the limit.
    pub(super) fn needed_capabilities(&self) -> CapabilitySet {
        if self.method.is_some() { CapabilitySet::IPC_LOCK } else { capability::NONE }
    }

    pub(super) fn stream_count(&self) -> u32 {
        self.ranges.len() as u32 // from 1 to 64
    }

    pub(super) fn path(&self) -> PathBuf {
        self.path.clone()
    }

    /// Errors: the file became shorter than what was to be sent. Bytes that were sent by reference may have
    /// become zeros.
    pub(super) fn check_length(&self) -> Result<(), Error> {
        let SendSource::File(file, ..) = &self.source else { return Ok(()) };
        let length = file.metadata().map(|about| about.len());
        match length {
            Ok(length) if self.total.is_some_and(|total| length < total) => {
                Err(self.input_error(shrunk_error()))
            }
            Ok(_) => Ok(()),
            Err(source) => Err(self.input_error(source)),
        }
    }

    fn input_error(&self, source: io::Error) -> Error {
        Error::Input { path: self.path(), source }
    }

    pub(super) fn worker_source(&mut self) -> WorkerSource {
        match &mut self.source {
            SendSource::Pattern(pattern) => WorkerSource::Pattern(Arc::clone(pattern)),
            SendSource::Published(pattern, published) => {
                WorkerSource::Published(Arc::clone(pattern), published.clone())
            }
            SendSource::File(file, _, method) => WorkerSource::File(Arc::clone(file), *method),
            SendSource::Input(input) => match input.take() {
                Some(input) => WorkerSource::Input(input),
                None => unreachable!("an input has one stream"),
            },
        }
    }

    /// The number of a stream's first piece, and the distance to the next.
    pub(super) fn first_piece_and_step(&self, number: u32) -> (u64, u64) {
        match &self.ranges[number as usize] {
            Some(range) => (range.start / self.piece_bytes, 1),
            None => (u64::from(number), u64::from(self.stream_count())),
        }
    }

    /// A stream's part of rate and count.
    pub(super) fn stream_schedule(&self) -> Schedule {
        let part = |rate: f64| rate / f64::from(self.stream_count());
        let pace = match self.pace {
            Pace::Rate(Rate::Packets(rate)) => Pace::Rate(Rate::Packets(part(rate))),
            Pace::Rate(Rate::Bits(rate)) => Pace::Rate(Rate::Bits(part(rate))),
            other => other,
        };
        // If the bytes are known, they are counted.
        let packets = if self.total.is_some() { None } else { self.goal.packets };
        Schedule::new(pace, SendLimits { packets, ..self.goal })
    }
}

/// The protocol's limit (no file is longer).
const BYTES_MAX: u64 = (1 << 62) - 1;

fn library_method(name: SendMethodArgument) -> Option<Method> {
    match name {
        SendMethodArgument::Auto | SendMethodArgument::Sendfile | SendMethodArgument::Published => None,
        SendMethodArgument::Plain => Some(Method::Plain),
        SendMethodArgument::Zerocopy => Some(Method::ZeroCopy),
        SendMethodArgument::UringZerocopy => Some(Method::UringZeroCopy),
        _ => unreachable!("clap requires a UDP target"),
    }
}

fn piece_bytes(arguments: &SendArguments) -> Result<u64, Error> {
    let bytes = match (arguments.size, arguments.rate) {
        (Some(bytes), _) => bytes,
        (None, Some(Rate::Bits(bits))) => {
            ((bits / 8.0 / PIECES_A_SECOND) as u64).clamp(PIECE_BYTES_MIN, PIECE_BYTES)
        }
        (None, _) if is_file_sent_by_reference(&arguments.host) => REFERRED_BYTES,
        (None, _) => PIECE_BYTES,
    };
    match bytes {
        ..=PIECE_BYTES_MAX => Ok(bytes),
        _ => Err(Error::Size { bytes, bytes_max: PIECE_BYTES_MAX }),
    }
}

/// Whether a file is sent by reference.
fn is_file_sent_by_reference(arguments: &HostArguments) -> bool {
    arguments.file.is_some()
        && matches!(arguments.method, SendMethodArgument::Auto | SendMethodArgument::Sendfile)
}

fn open_source(arguments: &HostArguments, piece_bytes: u64) -> Result<(SendSource, PathBuf), Failure> {
    let (source, path) = match &arguments.file {
        Some(path) if !input_file::is_standard_stream(path) => {
            let failed = |source| Error::Input { path: path.clone(), source };
            (open_file(path, arguments.method).map_err(failed)?, path.clone())
        }
        None if !arguments.stdin => {
            let pattern = Arc::new(PayloadPattern::new(piece_bytes as usize));
            let source = match arguments.method {
                SendMethodArgument::Published => {
                    let bytes = pattern.bytes();
                    let published = Published::written(bytes.len(), |memory| memory.copy_from_slice(bytes))
                        .map_err(Error::Publish)?;
                    SendSource::Published(pattern, published)
                }
                _ => SendSource::Pattern(pattern),
            };
            (source, PathBuf::new())
        }
        _ => {
            let path = input_file::display_name(Path::new("-"));
            let input = Input::open_without_waiting(Path::new("-"));
            let input = input.map_err(|source| Error::Input { path: path.clone(), source })?;
            (SendSource::Input(Some(input)), path)
        }
    };
    match (arguments.method, &source) {
        (SendMethodArgument::Sendfile, SendSource::File(..))
        | (SendMethodArgument::Published, SendSource::Published(..)) => {}
        (SendMethodArgument::Sendfile, _) => return Err(Error::NotAFile.into()),
        (SendMethodArgument::Published, _) => return Err(Error::NotAPattern.into()),
        _ => {}
    }
    Ok((source, path))
}

fn open_file(path: &Path, method: SendMethodArgument) -> io::Result<SendSource> {
    let input = Input::open_without_waiting(path)?;
    Ok(match input.into_file() {
        Ok((file, bytes)) => {
            let method = match method {
                SendMethodArgument::Auto | SendMethodArgument::Sendfile => FileSendMethod::Refer,
                _ => FileSendMethod::Read,
            };
            SendSource::File(Arc::new(file), bytes, method)
        }
        Err(pipe) => SendSource::Input(Some(pipe)),
    })
}
