//! Writes pieces of files: one write is in progress while the next is collected.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use nocopy::integration::disk::{SECTOR_BYTES, SectorBuffer, Sectors, Writer, Written};
use nocopy_proto::pcapng::{self, InterfaceCounts};
use nocopy_report::boot_clock::BootInstant;

use super::files::RecordingFiles;
use super::guard::FileGuardProcess;
use crate::Failure;
use nocopy_report::Interrupt;
use nocopy_report::wall_clock::now_ns;

/// The most pieces of memory in a write.
const PIECES_MAX: usize = libc::UIO_MAXIOV as usize;

/// The length of a write that bypasses the page cache, if enough data waits.
const WRITE_BYTES_MAX: usize = 8 << 20;
/// Bytes of a write through the page cache: the processor's caches still have the latest.
const COPIED_BYTES_MAX: usize = 1 << 20;

/// Memory for collecting packets.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// How long the reader of a pipe may read nothing after the user has interrupted.
const READER_TIMEOUT: Duration = Duration::from_secs(2);

/// How long to wait for the disk at a time once nothing is recorded any more.
const FINAL_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct PacketAmount {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl PacketAmount {
    pub(super) fn add(&mut self, more: PacketAmount) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}

#[derive(Debug)]
pub(super) struct FilePiece {
    pub(super) sectors: Sectors,
    pub(super) amount: PacketAmount,
    /// When the piece, or its first packet, was taken.
    pub(super) received_at: BootInstant,
}

#[derive(Debug)]
pub(super) struct RecordingSink {
    writer: Writer,
    pub(super) files: RecordingFiles,
    /// The beginning of every file; empty for payloads.
    header: Vec<u8>,
    waiting: VecDeque<FilePiece>,
    /// The contents of each piece of the write in progress.
    writing: Vec<PacketAmount>,
    state: FileState,
    /// Cuts the file back if this process is killed, if a write may then be incomplete.
    guard: Option<FileGuardProcess>,
    /// Why there is no guard process although one is needed.
    pub(super) guard_error: Option<io::Error>,
    pub(super) counts: InterfaceCounts,
    pub(super) written: PacketAmount,
    pub(super) not_written: PacketAmount,
    pub(super) failed: Option<io::Error>,
    /// Free memory to collect packets in.
    free_buffers: Vec<SectorBuffer>,
}

/// The last progress of writing after an interrupt.
#[derive(Debug)]
pub(super) struct WriteProgress {
    bytes: u64,
    since: Instant,
}

/// What was written to a file so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    Empty,
    /// Its beginning, and maybe packets.
    Started {
        has_pieces: bool,
    },
    /// The counts that every file ends with.
    Closed,
}

impl RecordingSink {
    pub(super) fn new(mut files: RecordingFiles, header: Vec<u8>) -> Result<Self, Failure> {
        let writer = files.open_first_file(now_ns())?;
        let mut sink = Self {
            writer,
            files,
            header,
            waiting: VecDeque::new(),
            writing: Vec::new(),
            state: FileState::Empty,
            guard: None,
            guard_error: None,
            counts: InterfaceCounts { time_ns: 0, received: 0, dropped: 0 },
            written: PacketAmount::default(),
            not_written: PacketAmount::default(),
            failed: None,
            free_buffers: Vec::new(),
        };
        if sink.writer.writes_to_stream() {
            sink.start_write(); // its reader waits for the head
        }
        Ok(sink)
    }

    pub(super) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Memory for collecting.
    pub(super) fn take_buffer(&mut self) -> io::Result<SectorBuffer> {
        match self.free_buffers.pop() {
            Some(mut buffer) => {
                buffer.restore();
                Ok(buffer)
            }
            None => SectorBuffer::new(BUFFER_BYTES),
        }
    }

    pub(super) fn push_piece(&mut self, piece: FilePiece) {
        match self.failed {
            Some(_) => self.not_written.add(piece.amount),
            None => self.waiting.push_back(piece),
        }
    }

    pub(super) fn pending_pieces(&self) -> usize {
        self.waiting.len() + self.writing.len()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// Waits until the write in progress has ended, but not longer.
    pub(super) fn wait_for_write(&self, timeout: Duration) -> io::Result<()> {
        self.writer.wait(timeout)
    }

    /// Takes note of a write that is over, and starts the next.
    pub(super) fn advance_writes(&mut self) {
        if let Some(written) = self.writer.poll() {
            self.complete_write(written);
        }
        if self.writer.is_busy() || self.failed.is_some() {
            return;
        }
        let Some(next) = self.waiting.front() else {
            if self.writer.has_no_reader() {
                self.fail_writing(io::ErrorKind::BrokenPipe.into());
            }
            return;
        };
        if self.fits_current_file(next, 0) {
            return self.start_write();
        }
        if self.write_statistics() {
            match self.files.open_next_file(&mut self.writer, now_ns()) {
                Ok(()) => {
                    (self.state, self.guard) = (FileState::Empty, None);
                    self.start_write();
                }
                Err(error) => self.fail_writing(error),
            }
        }
    }

    /// Whether what read the stream has ended, or reads no more.
    pub(super) fn has_lost_reader(&self) -> bool {
        let is_reader_gone = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        self.writer.writes_to_stream() && self.failed.as_ref().is_some_and(is_reader_gone)
    }

    /// Writes all waiting data, and ends the file.
    pub(super) fn finish_writing(&mut self, interrupt: &Interrupt) {
        let mut progress = self.write_progress();
        while self.pending_pieces() > 0 && self.failed.is_none() || self.is_busy() {
            self.advance_writes();
            self.wait_with_reader_timeout(FINAL_WAIT, interrupt, &mut progress);
        }
        if self.state == FileState::Empty {
            self.start_write(); // a file without packets is one all the same
        }
        while self.is_busy() || self.failed.is_none() && !self.write_statistics() {
            if let Some(written) = self.writer.poll() {
                self.complete_write(written);
            }
            self.wait_with_reader_timeout(FINAL_WAIT, interrupt, &mut progress);
        }
    }

    pub(super) fn write_progress(&self) -> WriteProgress {
        WriteProgress { bytes: self.writer.bytes_so_far(), since: Instant::now() }
    }

    /// Waits as [`wait_for_write`](Self::wait_for_write). After an interrupt a stream whose reader does not
    /// read is given up.
    pub(super) fn wait_with_reader_timeout(
        &mut self,
        timeout: Duration,
        interrupt: &Interrupt,
        progress: &mut WriteProgress,
    ) {
        if let Err(error) = self.wait_for_write(timeout) {
            self.fail_writing(error);
        }
        let bytes = self.writer.bytes_so_far();
        if bytes > progress.bytes || !interrupt.was_interrupted() {
            *progress = WriteProgress { bytes, since: Instant::now() };
        } else if self.writer.writes_to_stream() && progress.since.elapsed() >= READER_TIMEOUT {
            let error = io::Error::new(io::ErrorKind::TimedOut, "its reader does not read");
            if let Some(written) = self.writer.abort_stream_write(error) {
                self.complete_write(written);
            }
        }
    }

    /// Removes the padding at the end of the file, which filled its last sector.
    pub(super) fn remove_padding(&mut self, bytes: u64) {
        let end = self.writer.file_bytes().saturating_sub(bytes);
        if self.failed.is_none()
            && let Err(error) = self.writer.truncate_file(end)
        {
            self.fail_writing(error);
        }
        self.files.current_file().bytes = self.writer.file_bytes();
    }

    /// Whether a piece fits into this file after `before` unwritten bytes.
    fn fits_current_file(&self, piece: &FilePiece, before: usize) -> bool {
        let (size, more) = (self.writer.file_bytes() + before as u64, piece.len() as u64);
        match self.state {
            FileState::Empty | FileState::Started { has_pieces: false } => true,
            FileState::Started { has_pieces: true } => !self.files.must_rotate(size, more, piece.received_at),
            FileState::Closed => false,
        }
    }

    fn start_write(&mut self) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let bytes_max = if self.writer.method().direct { WRITE_BYTES_MAX } else { COPIED_BYTES_MAX };
        if self.state == FileState::Empty {
            self.state = FileState::Started { has_pieces: false };
            let header = std::mem::take(&mut self.header);
            bytes += self.add_copied_bytes(&mut batch, &header);
            self.header = header;
        }
        while let Some(next) = self.waiting.front() {
            let has_room = batch.len() < PIECES_MAX && (bytes == 0 || bytes + next.len() <= bytes_max);
            if !has_room || !self.fits_current_file(next, bytes) {
                break;
            }
            self.state = FileState::Started { has_pieces: true };
            let piece = self.waiting.pop_front().expect("seen");
            bytes += piece.len();
            batch.push(piece.sectors);
            self.writing.push(piece.amount);
        }
        if !batch.is_empty() {
            self.update_guard();
            self.writer.start_append(batch);
        }
    }

    /// Reports the whole pieces to the guard before more is written. Payloads are never incomplete.
    fn update_guard(&mut self) {
        let is_complete = self.writer.method().direct || self.writer.writes_to_stream();
        if is_complete || self.header.is_empty() || self.guard_error.is_some() {
            return;
        }
        let reported = match &mut self.guard {
            Some(guard) => guard.report_complete_bytes(self.writer.file_bytes()),
            empty => FileGuardProcess::start(self.writer.file())
                .and_then(|guard| empty.insert(guard).report_complete_bytes(self.writer.file_bytes())),
        };
        if let Err(error) = reported {
            (self.guard, self.guard_error) = (None, Some(error));
        }
    }

    /// Writes the counts at the end of a pcapng file; returns whether that is done.
    fn write_statistics(&mut self) -> bool {
        if self.state == FileState::Closed || self.header.is_empty() {
            return true;
        }
        let bytes = if self.writer.writes_to_stream() { pcapng::STATISTICS_BYTES } else { SECTOR_BYTES };
        let mut sector = vec![0; bytes];
        let (counts, rest) = sector.split_at_mut(pcapng::STATISTICS_BYTES);
        pcapng::write_statistics(counts, &self.counts);
        pcapng::write_filler(rest);
        let mut batch = Vec::new();
        self.add_copied_bytes(&mut batch, &sector);
        self.state = FileState::Closed;
        if !batch.is_empty() {
            self.update_guard();
            self.writer.start_append(batch);
        }
        false
    }

    /// Adds bytes of our own to a write, and returns how many.
    fn add_copied_bytes(&mut self, batch: &mut Vec<Sectors>, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        match SectorBuffer::new(bytes.len()) {
            Ok(mut buffer) => {
                buffer.as_mut().copy_from_slice(bytes);
                batch.push(Sectors::Memory(buffer));
                self.writing.push(PacketAmount::default());
                bytes.len()
            }
            Err(error) => {
                self.fail_writing(error);
                0
            }
        }
    }

    fn complete_write(&mut self, Written { sectors, whole, error }: Written) {
        let mut packets = 0;
        for (index, amount) in self.writing.drain(..).enumerate() {
            let total = if index < whole { &mut self.written } else { &mut self.not_written };
            total.add(amount);
            packets += if index < whole { amount.packets } else { 0 };
        }
        if self.guard.is_some() {
            self.update_guard(); // what is whole stays, also at the end
        }
        let file = self.files.current_file();
        (file.bytes, file.packets) = (self.writer.file_bytes(), file.packets + packets);
        for sectors in sectors {
            match sectors {
                Sectors::Memory(buffer) if buffer.capacity() >= BUFFER_BYTES => {
                    self.free_buffers.push(buffer)
                }
                _ => {}
            }
        }
        if let Some(error) = error {
            self.fail_writing(error);
        }
    }

    /// Stops writing; waiting packets are lost, and counted.
    fn fail_writing(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
        for piece in self.waiting.drain(..) {
            self.not_written.add(piece.amount);
        }
    }
}

impl FilePiece {
    fn len(&self) -> usize {
        self.sectors.as_ref().len()
    }
}
