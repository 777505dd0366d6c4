//! Reads the files of one directory together: while one is written here, the next are being read.

use std::collections::{BTreeMap, HashMap};

use nocopy::BufferMut;

use super::super::{Failure, drain_reads};
use super::CopyContext;
use super::download_file::{DownloadFile, DownloadJob};
use crate::client::{Client, FilePosition, Ticket};

/// A file of which reads are in flight.
struct ActiveFile {
    partial: DownloadFile,
    /// Offsets of the next byte to be written, and of the next one to be requested.
    next_write: u64,
    next_read: u64,
    /// Pieces that arrived before earlier ones, each with whether the file ends there.
    ahead: BTreeMap<u64, (BufferMut, bool)>,
}

impl ActiveFile {
    /// Whether to request more: up to the listed size of the file, then one read at a time until a reply
    /// reports the end.
    fn needs_reads(&self) -> bool {
        self.next_read < self.partial.listed_size().max(self.next_write + 1)
    }
}

/// Files, some of which are being read.
pub(super) struct DownloadBatch {
    jobs: std::vec::IntoIter<DownloadJob>,
    active: BTreeMap<u64, ActiveFile>,
    tickets: HashMap<Ticket, u64>,
    number: u64,
}

impl DownloadBatch {
    pub(super) fn new(job: Vec<DownloadJob>) -> Self {
        Self { jobs: job.into_iter(), active: BTreeMap::new(), tickets: HashMap::new(), number: 0 }
    }

    /// Copies all files; returns the complete ones, which do not have their final names yet, and an error
    /// that prevents further copying. Errors of single files are noted.
    pub(super) fn copy_files(
        mut self,
        context: &mut CopyContext<'_>,
        client: &mut Client,
    ) -> (Vec<DownloadFile>, Result<(), Failure>) {
        let mut complete = Vec::new();
        let done = self.read_all_files(context, client, &mut complete);
        drain_reads(client);
        (complete, done)
    }

    fn read_all_files(
        &mut self,
        context: &mut CopyContext<'_>,
        client: &mut Client,
        complete: &mut Vec<DownloadFile>,
    ) -> Result<(), Failure> {
        loop {
            self.post_reads(context, client)?;
            if self.active.is_empty() && self.jobs.len() == 0 {
                return Ok(());
            }
            let filled = client.receive()?.expect("reads are in flight, as long as files are not whole");
            let at = self.tickets.remove(&filled.ticket).expect("it was posted here");
            // Beyond the end of a complete file.
            let Some(one) = self.active.get_mut(&at) else { continue };
            let offset = filled.place.offset;
            let written = filled.into_result().map_err(Failure::from).and_then(|(buffer, end)| {
                one.ahead.insert(offset, (buffer, end.is_end));
                write_ready_pieces(one, context)
            });
            if let Ok(false) = written {
                continue;
            }
            let partial = self.active.remove(&at).expect("just looked at").partial;
            match written.and_then(|_| partial.set_attributes()) {
                Ok(()) => complete.push(partial),
                Err(failure) => context.record_failure(partial.display_name(), failure)?,
            }
        }
    }

    /// Requests as much as there are free buffers for, first for files in progress.
    fn post_reads(&mut self, context: &mut CopyContext<'_>, client: &mut Client) -> Result<(), Failure> {
        while let Some(buffer) = context.pool.take() {
            let wanting = self.active.iter().find(|(_, one)| one.needs_reads()).map(|(number, _)| *number);
            let Some(at) = wanting.map_or_else(|| self.open_next_file(context), |at| Ok(Some(at)))? else {
                return Ok(());
            };
            let one = self.active.get_mut(&at).expect("found, or just begun");
            let bytes = buffer.capacity() as u64;
            let place = FilePosition { file: one.partial.source_handle(), offset: one.next_read };
            let ticket = client.post(buffer, place).expect("fewer than the client takes");
            self.tickets.insert(ticket, at);
            one.next_read += bytes;
        }
        Ok(())
    }

    /// Opens the next file that needs to be copied.
    fn open_next_file(&mut self, context: &mut CopyContext<'_>) -> Result<Option<u64>, Failure> {
        for job in self.jobs.by_ref() {
            let name = job.display_name();
            match DownloadFile::open(context, job) {
                Ok(None) => {}
                Ok(Some(partial)) => {
                    let start = partial.resumed_bytes();
                    self.number += 1;
                    let one =
                        ActiveFile { partial, next_write: start, next_read: start, ahead: BTreeMap::new() };
                    self.active.insert(self.number, one);
                    return Ok(Some(self.number));
                }
                Err(failure) => context.record_failure(name, failure)?,
            }
        }
        Ok(None)
    }
}

/// Writes the pieces that are next; returns whether the file has ended with them.
fn write_ready_pieces(one: &mut ActiveFile, context: &mut CopyContext<'_>) -> Result<bool, Failure> {
    while let Some((buffer, is_end)) = one.ahead.remove(&one.next_write) {
        one.partial.write(&buffer)?;
        one.next_write += buffer.len() as u64;
        context.count_progress(buffer.len())?;
        if is_end {
            return Ok(true);
        }
    }
    Ok(false)
}
