//! Reads the files of one directory together: while one is written here, the next are being read.

use std::collections::{BTreeMap, HashMap};

use nocopy::Buffer;

use super::super::{Failure, drain};
use super::Copying;
use super::partial::{Partial, Wanted};
use crate::client::{Client, Place, Ticket};

/// A file of which reads are in flight.
struct Active {
    partial: Partial,
    /// Offsets of the next byte to be written, and of the next one to be requested.
    next: u64,
    posted: u64,
    /// Pieces that arrived before earlier ones, each with whether the file ends there.
    ahead: BTreeMap<u64, (Buffer, bool)>,
}

impl Active {
    /// Whether to request more: up to the listed size of the file, then one read at a time until a reply
    /// reports the end.
    fn wants(&self) -> bool {
        self.posted < self.partial.size().max(self.next + 1)
    }
}

/// Files, some of which are being read.
pub(super) struct Batch {
    wanted: std::vec::IntoIter<Wanted>,
    active: BTreeMap<u64, Active>,
    tickets: HashMap<Ticket, u64>,
    number: u64,
}

impl Batch {
    pub(super) fn new(wanted: Vec<Wanted>) -> Self {
        Self { wanted: wanted.into_iter(), active: BTreeMap::new(), tickets: HashMap::new(), number: 0 }
    }

    /// Copies all files; returns the complete ones, which do not have their final names yet, and an error
    /// that prevents further copying. Errors of single files are noted.
    pub(super) fn run(
        mut self,
        copying: &mut Copying<'_>,
        client: &mut Client,
    ) -> (Vec<Partial>, Result<(), Failure>) {
        let mut whole = Vec::new();
        let done = self.read_all(copying, client, &mut whole);
        drain(client);
        (whole, done)
    }

    fn read_all(
        &mut self,
        copying: &mut Copying<'_>,
        client: &mut Client,
        whole: &mut Vec<Partial>,
    ) -> Result<(), Failure> {
        loop {
            self.post(copying, client)?;
            if self.active.is_empty() && self.wanted.len() == 0 {
                return Ok(());
            }
            let filled = client.receive()?.expect("reads are in flight, as long as files are not whole");
            let at = self.tickets.remove(&filled.ticket).expect("it was posted here");
            // Beyond the end of a complete file.
            let Some(one) = self.active.get_mut(&at) else { continue };
            let offset = filled.place.offset;
            let taken = filled.read().map_err(Failure::from).and_then(|(buffer, end)| {
                one.ahead.insert(offset, (buffer, end.is_end));
                take(one, copying)
            });
            if let Ok(false) = taken {
                continue;
            }
            let partial = self.active.remove(&at).expect("just looked at").partial;
            match taken.and_then(|_| partial.end()) {
                Ok(()) => whole.push(partial),
                Err(failure) => copying.fail(partial.name(), failure)?,
            }
        }
    }

    /// Requests as much as there are free buffers for, first for files in progress.
    fn post(&mut self, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
        while let Some(buffer) = copying.pool.take() {
            let wanting = self.active.iter().find(|(_, one)| one.wants()).map(|(number, _)| *number);
            let Some(at) = wanting.map_or_else(|| self.begin(copying), |at| Ok(Some(at)))? else {
                return Ok(());
            };
            let one = self.active.get_mut(&at).expect("found, or just begun");
            let bytes = buffer.capacity() as u64;
            let place = Place { file: one.partial.source(), offset: one.posted };
            let ticket = client.post(buffer, place).expect("fewer than the client takes");
            self.tickets.insert(ticket, at);
            one.posted += bytes;
        }
        Ok(())
    }

    /// Opens the next file that needs to be copied.
    fn begin(&mut self, copying: &mut Copying<'_>) -> Result<Option<u64>, Failure> {
        for wanted in self.wanted.by_ref() {
            let name = wanted.name();
            match Partial::open(copying, wanted) {
                Ok(None) => {}
                Ok(Some(partial)) => {
                    let start = partial.start();
                    self.number += 1;
                    let one = Active { partial, next: start, posted: start, ahead: BTreeMap::new() };
                    self.active.insert(self.number, one);
                    return Ok(Some(self.number));
                }
                Err(failure) => copying.fail(name, failure)?,
            }
        }
        Ok(None)
    }
}

/// Writes the pieces that are next; returns whether the file has ended with them.
fn take(one: &mut Active, copying: &mut Copying<'_>) -> Result<bool, Failure> {
    while let Some((buffer, is_end)) = one.ahead.remove(&one.next) {
        one.partial.write(&buffer)?;
        one.next += buffer.len() as u64;
        copying.count(buffer.len())?;
        if is_end {
            return Ok(true);
        }
    }
    Ok(false)
}
