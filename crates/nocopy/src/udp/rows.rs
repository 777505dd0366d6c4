//! Datagrams received into rows of the caller's memory.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::batch::{Batch, BatchCursor};
use super::kernel;
use super::row_method::{RowMethod, RowMethodChooser};
use crate::facts::metadata::Timestamp;
use crate::memory::pool::BufferMut;
use crate::sys::udp_receive::Diversion;

/// What is known about a datagram in a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilledRow {
    /// Bytes of the datagram; more than the row has if its end was cut off.
    pub bytes: usize,
    /// The address that sent it.
    pub source: SocketAddr,
    /// When it arrived, if that is known; see [`Builder::receive_times`](super::Builder::receive_times).
    pub time: Option<Timestamp>,
}

/// What is known about rows that were filled: the first ones of the memory.
#[derive(Debug, Clone, Default)]
pub struct FilledRows {
    runs: Vec<FilledRun>,
    count: usize,
}

/// Rows that follow each other, of datagrams that arrived together.
#[derive(Debug, Clone, Copy)]
struct FilledRun {
    count: usize,
    /// The last one may have fewer bytes.
    last_bytes: usize,
    each: FilledRow,
}

impl FilledRun {
    fn row(&self, index: usize) -> FilledRow {
        let bytes = if index + 1 == self.count { self.last_bytes } else { self.each.bytes };
        FilledRow { bytes, ..self.each }
    }
}

impl FilledRows {
    /// The number of rows.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether no row was filled.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Each row, from the first one on.
    pub fn iter(&self) -> impl Iterator<Item = FilledRow> {
        self.runs.iter().flat_map(|run| (0..run.count).map(|index| run.row(index)))
    }

    fn clear(&mut self) {
        self.runs.clear();
        self.count = 0;
    }

    fn push_run(&mut self, run: FilledRun) {
        self.runs.push(run);
        self.count += run.count;
    }

    fn push(&mut self, row: FilledRow) {
        if let Some(run) = self.runs.last_mut()
            && run.each == row
            && run.last_bytes == row.bytes
        {
            run.count += 1;
            self.count += 1;
        } else {
            self.push_run(FilledRun { count: 1, last_bytes: row.bytes, each: row });
        }
    }
}

/// Rows of one length in memory of the caller's, a datagram each: for
/// [`Receiver::receive_into`](super::Receiver::receive_into).
///
/// The kernel copies each datagram straight into the row where it belongs, if bursts are as long as the last
/// one was, and their datagrams as long as a row. Otherwise rows are copied once more, from the buffers of
/// the socket. Which of both is attempted is chosen by measurement.
///
/// ```
/// use nocopy::{Pool, udp::{RowFiller, Socket}};
/// let mut socket = Socket::bind("127.0.0.1:0")?;
/// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// # for text in ["first", "second", "3"] {
/// #     client.send_to(text.as_bytes(), socket.local_addr()?)?;
/// # }
/// let mut memory = Pool::new(1, 10 * 6)?.take().expect("nothing was taken yet"); // ten rows of six bytes
/// memory.resize(10 * 6);
/// let mut rows = RowFiller::new(6);
/// let count = socket.receiver().receive_into(&mut memory, &mut rows, None)?;
/// assert_eq!(&memory[..5], b"first");
/// let lengths: Vec<usize> = rows.filled().iter().map(|row| row.bytes).collect();
/// assert_eq!((lengths.len(), lengths[0]), (count, 5));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct RowFiller {
    row_bytes: usize,
    stride: usize,
    chooser: RowMethodChooser,
    /// Datagrams of a run of the last call: as many are expected of each.
    datagrams_each: usize,
    filled: FilledRows,
    copied_bytes: usize,
}

impl RowFiller {
    /// For rows of so many bytes, one behind the other.
    ///
    /// # Panics
    /// A row has no bytes.
    pub fn new(row_bytes: usize) -> Self {
        Self::with_stride(row_bytes, row_bytes)
    }

    /// For rows of which each begins `stride` bytes behind the one before; the bytes between them are left
    /// alone.
    ///
    /// # Panics
    /// A row has no bytes, or more than the stride.
    pub fn with_stride(row_bytes: usize, stride: usize) -> Self {
        assert!(
            (1..=stride).contains(&row_bytes),
            "rows of {row_bytes} bytes, {stride} from one to the next"
        );
        Self {
            row_bytes,
            stride,
            chooser: RowMethodChooser::new(row_bytes, &[RowMethod::ByBuffer, RowMethod::Straight]),
            datagrams_each: 1, // until a burst was seen
            filled: FilledRows::default(),
            copied_bytes: 0,
        }
    }

    /// The rows that the last call filled.
    pub fn filled(&self) -> &FilledRows {
        &self.filled
    }

    /// Bytes that the last call copied into rows, after the kernel's copy.
    pub fn copied_bytes(&self) -> usize {
        self.copied_bytes
    }

    /// Which way rows take, and what it was compared with, in words.
    pub fn explain(&self) -> impl fmt::Display {
        self.chooser.explain()
    }

    /// How many rows the memory has. The last one needs no gap behind it.
    fn rows_in(&self, bytes: usize) -> usize {
        (bytes + self.stride - self.row_bytes) / self.stride
    }

    /// Forgets the rows of the last call.
    pub(super) fn begin(&mut self) {
        self.filled.clear();
        self.copied_bytes = 0;
    }

    /// Copies datagrams of a batch into the rows that are not filled.
    pub(super) fn fill_from(&mut self, batch: Batch<'_>, into: &mut BufferMut) {
        let left = self.rows_in(into.len()) - self.filled.len();
        for datagram in batch.take(left) {
            let copied = datagram.len().min(self.row_bytes);
            into.write_at(self.filled.len() * self.stride, &datagram[..copied]);
            let (source, time) = (datagram.source(), datagram.metadata().time);
            self.filled.push(FilledRow { bytes: datagram.len(), source, time });
            self.copied_bytes += copied;
        }
    }

    /// Receives by calls into a batch of buffers each, until one is not full, or all rows are.
    pub(super) fn fill(
        &mut self,
        receiver: &mut kernel::Receiver,
        into: &mut BufferMut,
        timeout: Option<Duration>,
    ) -> io::Result<usize> {
        self.begin();
        let rows = self.rows_in(into.len());
        let mut timeout = timeout;
        while self.filled.len() < rows {
            if let Some(batch) = receiver.remaining() {
                self.fill_from(batch, into);
            } else {
                match self.receive(receiver, into, timeout) {
                    Ok(()) => {}
                    // It comes again; what was received is not lost for it.
                    Err(_) if !self.filled.is_empty() => break,
                    Err(error) => return Err(error),
                }
                if receiver.runs().len() < receiver.batch() {
                    break;
                }
            }
            timeout = Some(Duration::ZERO);
        }
        Ok(self.filled.len())
    }

    /// As [`fill`](Self::fill), by one call of the kernel.
    fn receive(
        &mut self,
        receiver: &mut kernel::Receiver,
        into: &mut BufferMut,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let before = self.filled.len();
        let choice = self.chooser.choose();
        if choice.measured {
            self.chooser.start(choice);
            self.call(choice.method, receiver, into, Some(Duration::ZERO))?;
            if receiver.has_diverted() != (choice.method == RowMethod::Straight) {
                self.chooser.discard();
            }
            if self.filled.len() > before {
                self.chooser.record(self.filled.len() - before);
                return Ok(());
            }
            self.chooser.discard();
        }
        self.call(choice.method, receiver, into, timeout)
    }

    fn call(
        &mut self,
        method: RowMethod,
        receiver: &mut kernel::Receiver,
        into: &mut BufferMut,
        timeout: Option<Duration>,
    ) -> io::Result<()> {
        let most = Diversion::rows_each_max(self.row_bytes, receiver.buffer_bytes());
        let rows_each = self.datagrams_each.min(most);
        let (first, rows) = (self.filled.len(), self.rows_in(into.len()));
        let count = (rows_each * receiver.batch()).min(rows - first);
        if method == RowMethod::Straight && rows_each > 0 {
            let start = first * self.stride;
            let end = start + (count - 1) * self.stride + self.row_bytes;
            let (row_bytes, stride) = (self.row_bytes, self.stride);
            let rows = into.row_memory(start..end);
            let mut diversion = Diversion { header_bytes: 0, row_bytes, stride, rows_each, rows };
            receiver.wait_for_runs(timeout, Some(&mut diversion))?;
        } else {
            receiver.wait_for_runs(timeout, None)?;
        }
        let cursor = match receiver.has_diverted() {
            true => self.keep_rows_in_place(receiver, into, rows_each, first + count),
            false => BatchCursor::NOTHING,
        };
        self.datagrams_each = receiver.runs().first().map_or(self.datagrams_each, |run| run.len());
        receiver.set_cursor(cursor);
        if let Some(batch) = receiver.remaining() {
            self.fill_from(batch, into);
        }
        Ok(())
    }

    /// Counts rows as filled that are where they belong, and returns where others begin: what of those was
    /// received into rows is copied back into its buffer.
    fn keep_rows_in_place(
        &mut self,
        receiver: &mut kernel::Receiver,
        into: &BufferMut,
        rows_each: usize,
        end: usize,
    ) -> BatchCursor {
        let first = self.filled.len();
        let rows_of = |run: usize| {
            let start = (first + run * rows_each).min(end);
            start..(start + rows_each).min(end)
        };
        let mut cursor = BatchCursor::ALL;
        for (index, run) in receiver.runs().iter().enumerate() {
            let (bytes, each) = (run.bytes().len(), run.segment_bytes());
            let fits = each == self.row_bytes || run.is_single();
            let in_place = if fits { rows_of(index).len().min(run.len()) } else { 0 };
            if in_place > 0 {
                let last_bytes = (bytes - (in_place - 1) * each).min(each);
                let each = FilledRow { bytes: each.min(bytes), source: run.source(), time: run.time() };
                self.filled.push_run(FilledRun { count: in_place, last_bytes, each });
            }
            let is_whole = in_place == run.len();
            if !is_whole || in_place != rows_each {
                cursor = match is_whole {
                    true => BatchCursor { runs: index + 1, datagrams: 0 },
                    false => BatchCursor { runs: index, datagrams: in_place },
                };
                break;
            }
        }
        let mut kept = cursor.datagrams;
        for (index, run) in receiver.runs_mut().iter_mut().enumerate().skip(cursor.runs) {
            let gaps = run.bytes_mut().chunks_mut(self.row_bytes);
            for (row, gap) in rows_of(index).zip(gaps).skip(std::mem::take(&mut kept)) {
                into.read_at(row * self.stride, gap);
                self.copied_bytes += gap.len();
            }
        }
        cursor
    }
}

#[cfg(test)]
mod tests;
