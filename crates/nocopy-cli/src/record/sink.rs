//! Writes pieces of files: one write is in progress while the next is collected.

use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

use nocopy::integration::disk::{SECTOR_BYTES, SectorBuffer, Sectors, Writer, Written};
use nocopy_proto::pcapng::{self, Counts};
use nocopy_report::boot_clock::BootInstant;

use super::files::Files;
use super::guard::Guard;
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
const READER_PATIENCE: Duration = Duration::from_secs(2);

/// How long to wait for the disk at a time once nothing is recorded any more.
const LAST_WAIT: Duration = Duration::from_millis(100);

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Amount {
    pub(super) packets: u64,
    pub(super) bytes: u64,
}

impl Amount {
    pub(super) fn add(&mut self, more: Amount) {
        self.packets += more.packets;
        self.bytes += more.bytes;
    }
}

#[derive(Debug)]
pub(super) struct Piece {
    pub(super) sectors: Sectors,
    pub(super) amount: Amount,
    /// When the piece, or its first packet, was taken.
    pub(super) taken: BootInstant,
}

#[derive(Debug)]
pub(super) struct Sink {
    writer: Writer,
    pub(super) files: Files,
    /// The beginning of every file; empty for payloads.
    head: Vec<u8>,
    waiting: VecDeque<Piece>,
    /// The contents of each piece of the write in progress.
    under_way: Vec<Amount>,
    state: State,
    /// Cuts the file back if this process is killed, if a write may then be incomplete.
    guard: Option<Guard>,
    /// Why there is no guard process although one is needed.
    pub(super) unguarded: Option<io::Error>,
    pub(super) counts: Counts,
    pub(super) written: Amount,
    pub(super) not_written: Amount,
    pub(super) failed: Option<io::Error>,
    /// Free memory to gather packets into.
    spare: Vec<SectorBuffer>,
}

/// The last progress of writing after an interrupt.
#[derive(Debug)]
pub(super) struct Patience {
    bytes: u64,
    since: Instant,
}

/// What was written to a file so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Nothing,
    /// Its beginning, and maybe packets.
    Begun {
        has_pieces: bool,
    },
    /// The counts that every file ends with.
    Closed,
}

impl Sink {
    pub(super) fn new(mut files: Files, head: Vec<u8>) -> Result<Self, Failure> {
        let writer = files.first(now_ns())?;
        let mut sink = Self {
            writer,
            files,
            head,
            waiting: VecDeque::new(),
            under_way: Vec::new(),
            state: State::Nothing,
            guard: None,
            unguarded: None,
            counts: Counts { time_ns: 0, received: 0, dropped: 0 },
            written: Amount::default(),
            not_written: Amount::default(),
            failed: None,
            spare: Vec::new(),
        };
        if sink.writer.is_in_order() {
            sink.start(); // its reader waits for the head
        }
        Ok(sink)
    }

    pub(super) fn writer(&self) -> &Writer {
        &self.writer
    }

    /// Memory for collecting.
    pub(super) fn buffer(&mut self) -> io::Result<SectorBuffer> {
        match self.spare.pop() {
            Some(mut buffer) => {
                buffer.restore();
                Ok(buffer)
            }
            None => SectorBuffer::new(BUFFER_BYTES),
        }
    }

    pub(super) fn push(&mut self, piece: Piece) {
        match self.failed {
            Some(_) => self.not_written.add(piece.amount),
            None => self.waiting.push_back(piece),
        }
    }

    pub(super) fn backlog(&self) -> usize {
        self.waiting.len() + self.under_way.len()
    }

    pub(super) fn is_busy(&self) -> bool {
        self.writer.is_busy()
    }

    /// Waits until the write in progress has ended, but not longer.
    pub(super) fn wait(&self, timeout: Duration) -> io::Result<()> {
        self.writer.wait(timeout)
    }

    /// Takes note of a write that is over, and starts the next.
    pub(super) fn turn(&mut self) {
        if let Some(written) = self.writer.poll() {
            self.settle(written);
        }
        if self.writer.is_busy() || self.failed.is_some() {
            return;
        }
        let Some(next) = self.waiting.front() else {
            if self.writer.has_no_reader() {
                self.fail(io::ErrorKind::BrokenPipe.into());
            }
            return;
        };
        if self.fits(next, 0) {
            return self.start();
        }
        if self.close() {
            match self.files.next(&mut self.writer, now_ns()) {
                Ok(()) => {
                    (self.state, self.guard) = (State::Nothing, None);
                    self.start();
                }
                Err(error) => self.fail(error),
            }
        }
    }

    /// Whether what read the stream has ended, or reads no more.
    pub(super) fn has_lost_reader(&self) -> bool {
        let is_gone = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        self.writer.is_in_order() && self.failed.as_ref().is_some_and(is_gone)
    }

    /// Writes all waiting data, and ends the file.
    pub(super) fn finish(&mut self, interrupt: &Interrupt) {
        let mut patience = self.patience();
        while self.backlog() > 0 && self.failed.is_none() || self.is_busy() {
            self.turn();
            self.wait_for_reader(LAST_WAIT, interrupt, &mut patience);
        }
        if self.state == State::Nothing {
            self.start(); // a file without packets is one all the same
        }
        while self.is_busy() || self.failed.is_none() && !self.close() {
            if let Some(written) = self.writer.poll() {
                self.settle(written);
            }
            self.wait_for_reader(LAST_WAIT, interrupt, &mut patience);
        }
    }

    pub(super) fn patience(&self) -> Patience {
        Patience { bytes: self.writer.bytes_so_far(), since: Instant::now() }
    }

    /// Waits as [`wait`](Self::wait). After an interrupt a stream whose reader does not read is given up.
    pub(super) fn wait_for_reader(
        &mut self,
        timeout: Duration,
        interrupt: &Interrupt,
        patience: &mut Patience,
    ) {
        if let Err(error) = self.wait(timeout) {
            self.fail(error);
        }
        let bytes = self.writer.bytes_so_far();
        if bytes > patience.bytes || !interrupt.came() {
            *patience = Patience { bytes, since: Instant::now() };
        } else if self.writer.is_in_order() && patience.since.elapsed() >= READER_PATIENCE {
            let error = io::Error::new(io::ErrorKind::TimedOut, "its reader does not read");
            if let Some(written) = self.writer.give_up(error) {
                self.settle(written);
            }
        }
    }

    /// Removes the padding at the end of the file, which filled its last sector.
    pub(super) fn cut(&mut self, bytes: u64) {
        let end = self.writer.file_bytes().saturating_sub(bytes);
        if self.failed.is_none()
            && let Err(error) = self.writer.set_end(end)
        {
            self.fail(error);
        }
        self.files.current().bytes = self.writer.file_bytes();
    }

    /// Whether a piece fits into this file after `before` unwritten bytes.
    fn fits(&self, piece: &Piece, before: usize) -> bool {
        let (size, more) = (self.writer.file_bytes() + before as u64, piece.len() as u64);
        match self.state {
            State::Nothing | State::Begun { has_pieces: false } => true,
            State::Begun { has_pieces: true } => !self.files.is_full(size, more, piece.taken),
            State::Closed => false,
        }
    }

    fn start(&mut self) {
        let (mut batch, mut bytes) = (Vec::new(), 0);
        let bytes_max = if self.writer.method().direct { WRITE_BYTES_MAX } else { COPIED_BYTES_MAX };
        if self.state == State::Nothing {
            self.state = State::Begun { has_pieces: false };
            let head = std::mem::take(&mut self.head);
            bytes += self.add_copied(&mut batch, &head);
            self.head = head;
        }
        while let Some(next) = self.waiting.front() {
            let has_room = batch.len() < PIECES_MAX && (bytes == 0 || bytes + next.len() <= bytes_max);
            if !has_room || !self.fits(next, bytes) {
                break;
            }
            self.state = State::Begun { has_pieces: true };
            let piece = self.waiting.pop_front().expect("seen");
            bytes += piece.len();
            batch.push(piece.sectors);
            self.under_way.push(piece.amount);
        }
        if !batch.is_empty() {
            self.watch();
            self.writer.start(batch);
        }
    }

    /// Reports the whole pieces to the guard before more is written. Payloads are never incomplete.
    fn watch(&mut self) {
        let is_whole = self.writer.method().direct || self.writer.is_in_order();
        if is_whole || self.head.is_empty() || self.unguarded.is_some() {
            return;
        }
        let told = match &mut self.guard {
            Some(guard) => guard.tell(self.writer.file_bytes()),
            empty => Guard::start(self.writer.file())
                .and_then(|guard| empty.insert(guard).tell(self.writer.file_bytes())),
        };
        if let Err(error) = told {
            (self.guard, self.unguarded) = (None, Some(error));
        }
    }

    /// Writes the counts at the end of a pcapng file; returns whether that is done.
    fn close(&mut self) -> bool {
        if self.state == State::Closed || self.head.is_empty() {
            return true;
        }
        let bytes = if self.writer.is_in_order() { pcapng::STATISTICS_BYTES } else { SECTOR_BYTES };
        let mut sector = vec![0; bytes];
        let (counts, rest) = sector.split_at_mut(pcapng::STATISTICS_BYTES);
        pcapng::statistics(counts, &self.counts);
        pcapng::filler(rest);
        let mut batch = Vec::new();
        self.add_copied(&mut batch, &sector);
        self.state = State::Closed;
        if !batch.is_empty() {
            self.watch();
            self.writer.start(batch);
        }
        false
    }

    /// Adds bytes of our own to a write, and returns how many.
    fn add_copied(&mut self, batch: &mut Vec<Sectors>, bytes: &[u8]) -> usize {
        if bytes.is_empty() {
            return 0;
        }
        match SectorBuffer::new(bytes.len()) {
            Ok(mut buffer) => {
                buffer.as_mut().copy_from_slice(bytes);
                batch.push(Sectors::Memory(buffer));
                self.under_way.push(Amount::default());
                bytes.len()
            }
            Err(error) => {
                self.fail(error);
                0
            }
        }
    }

    fn settle(&mut self, Written { sectors, whole, error }: Written) {
        let mut packets = 0;
        for (place, amount) in self.under_way.drain(..).enumerate() {
            let tally = if place < whole { &mut self.written } else { &mut self.not_written };
            tally.add(amount);
            packets += if place < whole { amount.packets } else { 0 };
        }
        if self.guard.is_some() {
            self.watch(); // what is whole stays, also at the end
        }
        let file = self.files.current();
        (file.bytes, file.packets) = (self.writer.file_bytes(), file.packets + packets);
        for sectors in sectors {
            match sectors {
                Sectors::Memory(buffer) if buffer.capacity() >= BUFFER_BYTES => self.spare.push(buffer),
                _ => {}
            }
        }
        if let Some(error) = error {
            self.fail(error);
        }
    }

    /// Stops writing; waiting packets are lost, and counted.
    fn fail(&mut self, error: io::Error) {
        self.failed.get_or_insert(error);
        for piece in self.waiting.drain(..) {
            self.not_written.add(piece.amount);
        }
    }
}

impl Piece {
    fn len(&self) -> usize {
        self.sectors.as_ref().len()
    }
}
