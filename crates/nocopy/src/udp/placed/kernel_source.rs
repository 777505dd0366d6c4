//! Datagrams of a kernel's socket, for a placer.

use std::io;
use std::time::Duration;

use super::placer::{Placer, RowRange};
use super::window::Row;
use crate::sys::udp_receive::Diversion;
use crate::udp::batch::BatchCursor;
use crate::udp::kernel::{self, RowTarget};
use crate::udp::row_method::{RowMethod, RowMethodChooser};

/// Whether to wait for datagrams.
#[derive(Debug, Clone, Copy)]
pub(super) enum Blocking {
    Never,
    AtMost(Duration),
    UntilArrival,
}

/// A kernel's socket, and what of its last batch was placed.
#[derive(Debug)]
pub(super) struct KernelSource {
    pub(super) receiver: Box<kernel::Receiver>,
    placed: BatchCursor,
    chooser: RowMethodChooser,
    /// Where rows of the last batch are, if not in its buffers.
    diverted: Option<DivertedRows>,
    /// Datagrams of a run of the last batch: as many rows are expected of each run.
    datagrams_each: usize,
}

/// Rows that were received straight into a chunk, if they belong there: so many of each run.
#[derive(Debug, Clone, Copy)]
struct DivertedRows {
    range: RowRange,
    rows_each: usize,
}

impl DivertedRows {
    /// Where the row of a datagram of a run is.
    #[inline]
    fn row_of(&self, run: usize, datagram: usize) -> Option<Row> {
        let index = run * self.rows_each + datagram;
        (datagram < self.rows_each && index < self.range.count)
            .then_some(Row { row: self.range.first.row + index, ..self.range.first })
    }
}

impl KernelSource {
    pub(super) fn new(mut receiver: Box<kernel::Receiver>, placer: &Placer) -> Self {
        let methods: &[RowMethod] = match placer.layout().has_numbers_in_header() {
            true => &[RowMethod::ByBuffer, RowMethod::Straight],
            false => &[RowMethod::ByBuffer],
        };
        Self {
            placed: receiver.take_cursor(),
            receiver,
            chooser: RowMethodChooser::new(placer.layout().row_bytes, methods),
            diverted: None,
            datagrams_each: 1,
        }
    }

    #[cfg(test)]
    pub(super) fn pin(&mut self, method: RowMethod, placer: &Placer) {
        self.chooser = RowMethodChooser::new(placer.layout().row_bytes, &[method]);
    }

    pub(super) fn chooser(&self) -> &RowMethodChooser {
        &self.chooser
    }

    /// Whether something is left of the last batch.
    pub(super) fn has_received(&self) -> bool {
        self.placed.runs < self.receiver.runs().len()
    }

    /// Receives a batch if nothing is left of the last one.
    pub(super) fn receive(&mut self, blocking: Blocking, placer: &mut Placer) -> io::Result<()> {
        if self.has_received() {
            return Ok(());
        }
        let choice = self.chooser.choose();
        if choice.measured {
            self.chooser.start(choice);
            self.call(choice.method, Blocking::Never, placer)?;
            let is_as_chosen = self.diverted.is_some() == (choice.method == RowMethod::Straight);
            if !self.has_received() || !is_as_chosen {
                self.chooser.discard();
            }
            if self.has_received() || matches!(blocking, Blocking::Never) {
                return Ok(());
            }
        }
        self.call(choice.method, blocking, placer)
    }

    fn call(&mut self, method: RowMethod, blocking: Blocking, placer: &mut Placer) -> io::Result<()> {
        (self.placed, self.diverted) = (BatchCursor::NOTHING, None);
        let (row_bytes, datagram_bytes) = (placer.layout().row_bytes, placer.layout().datagram_bytes());
        let rows_each_max = Diversion::rows_each_max(datagram_bytes, self.receiver.buffer_bytes());
        let rows_each = self.datagrams_each.min(rows_each_max);
        let range = match method {
            RowMethod::ByBuffer => None,
            RowMethod::Straight => placer.expected_rows(rows_each * self.receiver.batch()),
        };
        match range {
            None => self.call_into(blocking, None)?,
            Some(range) => {
                let header_bytes = datagram_bytes - row_bytes;
                let rows = placer.absent_rows_mut(range).into();
                let mut diversion = Diversion { header_bytes, row_bytes, stride: row_bytes, rows_each, rows };
                self.call_into(blocking, Some(&mut diversion))?;
                self.diverted = self.receiver.has_diverted().then_some(DivertedRows { range, rows_each });
            }
        }
        self.datagrams_each = self.receiver.runs().first().map_or(self.datagrams_each, |run| run.len());
        Ok(())
    }

    fn call_into(&mut self, blocking: Blocking, rows: RowTarget<'_, '_>) -> io::Result<()> {
        match blocking {
            Blocking::Never => self.receiver.receive_runs_now(rows),
            Blocking::UntilArrival => self.receiver.wait_for_runs(None, rows),
            Blocking::AtMost(timeout) => self.receiver.wait_for_runs(Some(timeout), rows),
        }
    }

    /// Places datagrams of the last batch, and returns whether there were any.
    pub(super) fn place_received(&mut self, placer: &mut Placer) -> bool {
        if !self.has_received() {
            return false;
        }
        self.chooser.resume();
        if self.diverted.is_some() && self.place_diverted(placer) {
            self.restore_diverted(placer);
        }
        if self.diverted.is_none() {
            self.place_from_buffers(placer);
        }
        if self.has_received() {
            self.chooser.pause();
        } else {
            self.chooser.record(self.receiver.runs().iter().map(|run| run.len()).sum());
        }
        true
    }

    /// Marks rows as present that are where they belong, until a chunk is complete. Returns true if there is
    /// one that belongs elsewhere: it and all that follow have to be placed by copying.
    fn place_diverted(&mut self, placer: &mut Placer) -> bool {
        let Some(diverted) = self.diverted else { return false };
        let datagram_bytes = placer.layout().datagram_bytes();
        while let Some(run) = self.receiver.runs().get(self.placed.runs) {
            let (bytes, is_whole) = (run.bytes(), run.segment_bytes() == datagram_bytes);
            let mut left = bytes.get(self.placed.datagrams * datagram_bytes..).unwrap_or(&[]);
            while let Some((datagram, others)) = left.split_at_checked(datagram_bytes)
                && is_whole
                && let Some(row) = diverted.row_of(self.placed.runs, self.placed.datagrams)
                && placer.is_of_row(datagram, row)
            {
                left = others;
                self.placed.datagrams += 1;
                let goes_on = placer.mark_written(row);
                if left.is_empty() {
                    self.placed = BatchCursor { runs: self.placed.runs + 1, datagrams: 0 };
                }
                if !goes_on {
                    return false;
                }
                if left.is_empty() {
                    break;
                }
            }
            if !left.is_empty() || bytes.is_empty() {
                return true;
            }
        }
        false
    }

    /// Copies rows back into the gaps of their datagrams, before other rows are written where they are.
    #[cold]
    fn restore_diverted(&mut self, placer: &mut Placer) {
        let Some(diverted) = self.diverted.take() else { return };
        let (datagram_bytes, row_bytes) = (placer.layout().datagram_bytes(), placer.layout().row_bytes);
        let mut first = self.placed.datagrams;
        for (index, run) in self.receiver.runs_mut().iter_mut().enumerate().skip(self.placed.runs) {
            let gaps = run.bytes_mut().chunks_mut(datagram_bytes).enumerate();
            for (datagram, bytes) in gaps.skip(std::mem::take(&mut first)) {
                let Some(row) = diverted.row_of(index, datagram) else { break };
                let gap = bytes.get_mut(datagram_bytes - row_bytes..).unwrap_or(&mut []);
                placer.copy_back(row, gap);
            }
        }
    }

    fn place_from_buffers(&mut self, placer: &mut Placer) {
        for run in &self.receiver.runs()[self.placed.runs..] {
            let (bytes, segment_bytes) = (run.bytes(), run.segment_bytes());
            // An empty datagram is no part of anything, but is one.
            let mut left = bytes.get(self.placed.datagrams * segment_bytes..).unwrap_or(&[]);
            loop {
                let (datagram, others) = left.split_at(left.len().min(segment_bytes));
                left = others;
                let goes_on = placer.place(datagram);
                self.placed = match left {
                    [] => BatchCursor { runs: self.placed.runs + 1, datagrams: 0 },
                    _ => BatchCursor { datagrams: self.placed.datagrams + 1, ..self.placed },
                };
                if !goes_on {
                    return;
                }
                if left.is_empty() {
                    break;
                }
            }
        }
    }
}
