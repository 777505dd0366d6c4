//! One stream, from a connection to its range in the output.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nocopy::tcp::{Chunk, MappedBytes, Stream};

use super::reader;
use super::sink::SharedOutput;
use crate::Failure;
use crate::transfer::stream::ByteCount;

/// The longest wait for bytes: the user may interrupt after it.
const WAIT: Duration = Duration::from_millis(50);

/// Bytes copied at a time, if there is a copy.
const COPY_BYTES: usize = 64 << 10;

#[derive(Debug)]
pub(super) struct Worker<'a> {
    pub number: u32,
    pub stream: Stream,
    pub offset: u64,
    /// The expected length, if known.
    pub length: Option<u64>,
    pub count: ByteCount,
    pub sink: Option<&'a SharedOutput>,
}

/// State shared with the waiting thread, for all streams.
#[derive(Debug, Default)]
pub(super) struct SharedProgress {
    pub stop: AtomicBool,
    pub bytes: AtomicU64,
    /// The number of streams that are writing now; while there are any, the sender does not count as silent.
    pub writing: AtomicU64,
}

#[derive(Debug)]
pub(super) struct WorkerResult {
    pub number: u32,
    pub offset: u64,
    pub count: ByteCount,
    /// When its first and last bytes arrived, since the start.
    pub times: Option<(Duration, Duration)>,
    pub reason: StreamEndReason,
    pub ledger: nocopy::Ledger,
    pub explanation: Vec<String>,
    /// The connection, which stays open until the sender knows why it is no longer read.
    _stream: Option<Stream>,
}

impl WorkerResult {
    /// The result of a stream that could not be read at all.
    pub(super) fn failed_before_reading(
        number: u32,
        offset: u64,
        count: ByteCount,
        failure: Failure,
    ) -> Self {
        let (ledger, explanation) = (nocopy::Ledger::default(), Vec::new());
        Self {
            number,
            offset,
            count,
            times: None,
            reason: StreamEndReason::Failed(failure),
            ledger,
            explanation,
            _stream: None,
        }
    }
}

#[derive(Debug)]
pub(super) enum StreamEndReason {
    End,
    Stopped,
    Broken(io::Error),
    TooMuch,
    /// Reading or writing failed at this end.
    Failed(Failure),
}

impl Worker<'_> {
    pub(super) fn run(mut self, start: Instant, progress: &Arc<SharedProgress>) -> WorkerResult {
        let mut times = None;
        let reason = self.receive_all(start, progress, &mut times);
        let Self { number, mut stream, offset, count, .. } = self;
        let (ledger, explanation) = (stream.receiver().ledger(), reader::explanation_lines(&mut stream));
        WorkerResult { number, offset, count, times, reason, ledger, explanation, _stream: Some(stream) }
    }

    fn receive_all(
        &mut self,
        start: Instant,
        progress: &SharedProgress,
        times: &mut Option<(Duration, Duration)>,
    ) -> StreamEndReason {
        // Relaxed, here and below: no other memory depends on it.
        while !progress.stop.load(Ordering::Relaxed) {
            let chunk = match self.stream.receiver().receive_timeout(WAIT) {
                Ok(Some(chunk)) => chunk,
                Ok(None) if self.stream.receiver().is_finished() => return StreamEndReason::End,
                Ok(None) => continue,
                Err(error) => return StreamEndReason::Broken(error),
            };
            let now = start.elapsed();
            *times = Some((times.map_or(now, |(first, _)| first), now));
            if self.length.is_some_and(|length| chunk.len() as u64 > length - self.count.bytes) {
                return StreamEndReason::TooMuch;
            }
            if let Err(failure) = self.store(&chunk, progress) {
                return StreamEndReason::Failed(failure);
            }
            progress.bytes.fetch_add(chunk.len() as u64, Ordering::Relaxed);
            self.stream.receiver().recycle(chunk);
        }
        StreamEndReason::Stopped
    }

    /// Writes and counts received bytes: all, unless it is asked to stop.
    fn store(&mut self, chunk: &Chunk, progress: &SharedProgress) -> Result<(), Failure> {
        let mut mapped = chunk.mapped();
        if self.count.crc32c.is_some() && !mapped.is_empty() {
            // A sender on this host may change the pages. The checksum is made of a copy, so it is that of
            // the written bytes.
            let mut copy = [0; COPY_BYTES];
            while !mapped.is_empty() {
                let copied = mapped.copy_to(&mut copy);
                mapped = mapped.slice(copied..mapped.len());
                if !self.store_copied(&copy[..copied], progress)? {
                    return Ok(());
                }
            }
        }
        let written = self.write(mapped, progress)?;
        self.count.bytes += written as u64;
        if written == mapped.len() {
            self.store_copied(chunk.copied(), progress)?;
        }
        Ok(())
    }

    /// Writes and counts bytes that cannot change during this; returns whether all were written.
    fn store_copied(&mut self, bytes: &[u8], progress: &SharedProgress) -> Result<bool, Failure> {
        let written = self.write(bytes.into(), progress)?;
        self.count.add(&bytes[..written]);
        Ok(written == bytes.len())
    }

    /// Returns how many bytes were written: fewer only if it is asked to stop.
    fn write(&self, bytes: MappedBytes<'_>, progress: &SharedProgress) -> Result<usize, Failure> {
        let Some(sink) = self.sink else { return Ok(bytes.len()) };
        progress.writing.fetch_add(1, Ordering::Relaxed);
        let written = sink.write(self.offset + self.count.bytes, bytes, &progress.stop);
        progress.writing.fetch_sub(1, Ordering::Relaxed);
        written
    }
}
