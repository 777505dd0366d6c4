//! One stream: sends pieces over one connection, each when it is due.

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nocopy::tcp::Published;

use super::Error;
use super::connection::{Connection, ConnectionReport};
use crate::Failure;
use crate::send::input::Input;
use crate::send::pattern::PayloadPattern;
use crate::send::queue::{Schedule, SendStep};
use crate::send::{PATIENCE, pause};
use crate::transfer::stream::ByteCount;
use nocopy_report::input_file::shrunk_error;

#[derive(Debug)]
pub(super) enum WorkerSource {
    Pattern(Arc<PayloadPattern>),
    /// A pattern, by reference to published pages.
    Published(Arc<PayloadPattern>, Published),
    File(Arc<File>, FileSendMethod),
    Input(Input),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileSendMethod {
    Read,
    Refer,
}

/// Sends one stream, on a separate thread.
#[derive(Debug)]
pub(super) struct Worker {
    pub number: u32,
    pub content: WorkerSource,
    /// For error messages.
    pub path: PathBuf,
    /// The stream's range in the data, if it has an end.
    pub range: Option<Range<u64>>,
    pub piece_bytes: usize,
    /// Number of the next piece, and the distance to the one after it.
    pub piece: u64,
    pub pieces_apart: u64,
    pub schedule: Schedule,
    pub count: ByteCount,
    pub connection: Connection,
    /// Bytes of a file read only for the checksum.
    pub read: Vec<u8>,
}

enum FillResult {
    Piece(usize),
    NoRoom,
    Nothing,
    /// Everything was sent.
    End,
}

#[derive(Debug, Default)]
pub(super) struct SharedProgress {
    pub stop: AtomicBool,
    /// The other end reads no more, so waiting is useless.
    pub is_abandoned: AtomicBool,
    pub bytes: AtomicU64,
}

#[derive(Debug)]
pub(super) struct WorkerResult {
    pub number: u32,
    pub offset: Option<u64>,
    pub count: ByteCount,
    pub schedule: Schedule,
    /// Time until the last piece was handed over.
    pub duration: Duration,
    /// Once [it is closed](Self::close_connection).
    pub report: Option<ConnectionReport>,
    pub connection_error: Option<io::Error>,
    pub failure: Option<Failure>,
    /// The connection, which stays open until all is over.
    pub connection: Connection,
}

impl WorkerResult {
    /// Closes the connection, when nothing more has to be reported about it.
    pub(super) fn close_connection(&mut self, patience: Duration) {
        self.report = Some(self.connection.await_report(patience));
    }
}

enum StopReason {
    /// The other end does not accept it.
    Connection(io::Error),
    Failure(Failure),
}

impl Worker {
    /// Sends until all was sent, or it is asked to stop.
    pub(super) fn run(mut self, start: Instant, progress: &SharedProgress) -> WorkerResult {
        let mut duration = Duration::ZERO;
        let sent = self.send_all(start, progress, &mut duration);
        let (connection_error, failure) =
            match sent.and_then(|()| self.finish(start, progress, &mut duration)) {
                Ok(()) => (None, None),
                Err(StopReason::Connection(error)) => (Some(error), None),
                Err(StopReason::Failure(failure)) => {
                    // The receiver need not wait for a file that cannot be read. Where that is the next in
                    // the queue, nothing is handed over any more.
                    if self.finish(start, progress, &mut duration).is_err() {
                        self.connection.end_early();
                    }
                    (None, Some(failure))
                }
            };
        self.uncount_unsent();
        WorkerResult {
            number: self.number,
            offset: self.range.as_ref().map(|range| range.start),
            count: self.count,
            schedule: self.schedule,
            duration,
            report: None,
            connection_error,
            failure,
            connection: self.connection,
        }
    }

    /// Corrects the count if the kernel did not accept everything.
    fn uncount_unsent(&mut self) {
        let unsent = self.connection.unsent_bytes().min(self.count.bytes);
        if unsent > 0 {
            // The checksum includes more than was sent.
            self.count = ByteCount { bytes: self.count.bytes - unsent, crc32c: None };
            self.schedule.tally.bytes = self.count.bytes;
        }
    }

    fn send_all(
        &mut self,
        start: Instant,
        progress: &SharedProgress,
        duration: &mut Duration,
    ) -> Result<(), StopReason> {
        let mut now = start.elapsed();
        // Relaxed: no other memory depends on it.
        while !progress.stop.load(Ordering::Relaxed) {
            let before = self.count.bytes;
            let step = self.send_piece(now.as_nanos() as u64)?; // ns of 584 years
            now = start.elapsed();
            if self.count.bytes > before {
                *duration = now;
                progress.bytes.fetch_add(self.count.bytes - before, Ordering::Relaxed);
            }
            if step == SendStep::Sent {
                continue;
            }
            // Data is flushed before waiting for anything else.
            if !self.connection.flush_queued().map_err(|error| self.send_error(error))? {
                now = start.elapsed();
                continue;
            }
            match step {
                // The connection waits for room.
                SendStep::Sent | SendStep::NoRoom => {}
                SendStep::Early { due_ns } => {
                    pause::sleep_toward_deadline(start + Duration::from_nanos(due_ns))
                }
                SendStep::Batch => pause::sleep_for_batch(),
                SendStep::Silence => pause::sleep_for_input(),
                SendStep::Done => return Ok(()),
            }
            now = start.elapsed();
        }
        Ok(())
    }

    /// Hands over the rest, unless the other end does not accept it, and ends the stream.
    fn finish(
        &mut self,
        start: Instant,
        progress: &SharedProgress,
        duration: &mut Duration,
    ) -> Result<(), StopReason> {
        let asked = Instant::now();
        while !self.connection.flush_queued().map_err(|error| self.send_error(error))? {
            // Relaxed: as above.
            if asked.elapsed() > PATIENCE || progress.is_abandoned.load(Ordering::Relaxed) {
                return Err(StopReason::Connection(io::ErrorKind::TimedOut.into()));
            }
            *duration = start.elapsed();
        }
        self.connection.finish().map_err(StopReason::Connection)
    }

    fn send_piece(&mut self, now_ns: u64) -> Result<SendStep, StopReason> {
        let bytes = match &self.range {
            Some(range) => (range.end - range.start - self.count.bytes).min(self.piece_bytes as u64) as usize,
            None => self.piece_bytes,
        };
        if bytes == 0 {
            return Ok(SendStep::Done);
        }
        if let Some(step) = self.schedule.reason_to_stop(0, now_ns) {
            return Ok(step);
        }
        let filled = self.queue_next_piece(bytes)?;
        match filled {
            FillResult::Piece(bytes) => self.schedule.record_sent(bytes, 1),
            FillResult::End => return Ok(SendStep::Done),
            FillResult::NoRoom | FillResult::Nothing if self.schedule.is_past_duration(now_ns) => {
                return Ok(SendStep::Done);
            }
            FillResult::NoRoom => return Ok(SendStep::NoRoom),
            FillResult::Nothing => return Ok(SendStep::Silence),
        }
        self.piece += self.pieces_apart;
        Ok(SendStep::Sent)
    }

    /// Takes the next piece, of at most that many bytes, counts it, and queues it.
    fn queue_next_piece(&mut self, bytes: usize) -> Result<FillResult, StopReason> {
        let offset = self.range.as_ref().map_or(0, |range| range.start) + self.count.bytes;
        match &self.content {
            WorkerSource::File(file, FileSendMethod::Refer) => {
                let file = Arc::clone(file);
                return self.refer_file(&file, offset, bytes);
            }
            WorkerSource::Published(pattern, published) => {
                let (range, published) = (pattern.payload_range(bytes, self.piece), published.clone());
                return self.refer_published(&published, range);
            }
            _ => {}
        }
        let Some(mut buffer) = self.connection.buffer().map_err(|error| self.send_error(error))? else {
            return Ok(FillResult::NoRoom);
        };
        buffer.resize(bytes);
        let room = &mut buffer[..];
        let read = match &mut self.content {
            WorkerSource::Pattern(pattern) | WorkerSource::Published(pattern, _) => {
                pattern.write(room, self.piece);
                Ok(bytes)
            }
            WorkerSource::File(file, _) => match file.read_at(room, offset) {
                Ok(0) => Err(shrunk_error()),
                read => read,
            },
            WorkerSource::Input(input) => input.read(room),
        };
        match read {
            Ok(bytes @ 1..) => {
                self.count.add(&room[..bytes]);
                buffer.resize(bytes);
                self.connection.send(buffer).map_err(|error| self.send_error(error))?;
                return Ok(FillResult::Piece(bytes));
            }
            Ok(0) => self.connection.recycle(buffer),
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                self.connection.recycle(buffer);
                return Ok(FillResult::Nothing);
            }
            Err(error) => return Err(self.input_error(error)),
        }
        Ok(FillResult::End)
    }

    /// Sends a range of a file by reference, and reads it for the checksum if one is requested.
    fn refer_file(&mut self, file: &Arc<File>, offset: u64, bytes: usize) -> Result<FillResult, StopReason> {
        if !self.connection.flush_queued().map_err(|error| self.send_error(error))? {
            return Ok(FillResult::NoRoom);
        }
        if self.count.crc32c.is_some() {
            self.read.resize(bytes, 0);
            file.read_exact_at(&mut self.read, offset).map_err(|error| self.read_error(error))?;
        }
        let referred = self.connection.send_file_range(file, offset..offset + bytes as u64);
        referred.map_err(|error| self.send_error(error))?;
        match self.count.crc32c {
            Some(_) => self.count.add(&self.read),
            None => self.count.bytes += bytes as u64,
        }
        self.connection.flush_queued().map_err(|error| self.send_error(error))?;
        Ok(FillResult::Piece(bytes))
    }

    fn refer_published(
        &mut self,
        published: &Published,
        range: Range<usize>,
    ) -> Result<FillResult, StopReason> {
        if !self.connection.flush_queued().map_err(|error| self.send_error(error))? {
            return Ok(FillResult::NoRoom);
        }
        let referred = self.connection.send_published_range(published, range.start as u64..range.end as u64);
        referred.map_err(|error| self.send_error(error))?;
        self.count.add(&published[range.clone()]);
        self.connection.flush_queued().map_err(|error| self.send_error(error))?;
        Ok(FillResult::Piece(range.len()))
    }

    /// The reason if the kernel did not accept a piece.
    fn send_error(&self, error: io::Error) -> StopReason {
        match error.kind() {
            // The error is of the file, not of the connection.
            io::ErrorKind::UnexpectedEof => self.input_error(shrunk_error()),
            _ => StopReason::Connection(error),
        }
    }

    fn read_error(&self, error: io::Error) -> StopReason {
        let is_short = error.kind() == io::ErrorKind::UnexpectedEof;
        self.input_error(if is_short { shrunk_error() } else { error })
    }

    fn input_error(&self, source: io::Error) -> StopReason {
        StopReason::Failure(Error::Input { path: self.path.clone(), source }.into())
    }
}
