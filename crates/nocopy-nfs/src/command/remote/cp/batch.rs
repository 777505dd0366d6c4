//! The files of one directory, read at once: while one is written here, the next ones are on their way.

use std::collections::{BTreeMap, HashMap};

use nocopy::Buffer;

use super::super::Failure;
use super::Copying;
use super::download::{Partial, Wanted};
use crate::client::{Client, Place, Ticket};

/// A file of which reads are in flight.
struct Active {
    partial: Partial,
    /// Of the next byte to be written, and of the next one to be posted.
    next: u64,
    posted: u64,
    /// Pieces that have come before those in front of them, and whether the file ends with them.
    ahead: BTreeMap<u64, (Buffer, bool)>,
}

impl Active {
    /// Whether there is something to post: at least one read, which says that the file ends, wherever it does by then.
    fn wants(&self) -> bool {
        self.posted < self.partial.size().max(self.next + 1)
    }
}

/// Files of which some are being read.
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

    /// Copies all of them; returns those that are whole and are to be compared before they get their names, if that is wanted.
    ///
    /// # Errors
    /// What ends everything. What concerns one file is noted.
    pub(super) fn run(
        mut self,
        copying: &mut Copying<'_>,
        client: &mut Client,
    ) -> Result<Vec<Partial>, Failure> {
        let mut whole = Vec::new();
        let done = self.read_all(copying, client, &mut whole);
        // Reads behind the ends of files, or that are not wanted any more.
        while let Ok(Some(_)) = client.receive() {}
        done.map(|()| whole)
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
            // Behind the end of a file that is whole.
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
            let name = partial.name();
            let finished = match taken {
                Ok(_) if copying.arguments.verify => {
                    whole.push(partial);
                    Ok(())
                }
                Ok(_) => partial.finish(copying),
                Err(failure) => Err(failure),
            };
            if let Err(failure) = finished {
                copying.fail(name, failure)?;
            }
        }
    }

    /// Posts what buffers there are. Files that were begun go on before others begin.
    fn post(&mut self, copying: &mut Copying<'_>, client: &mut Client) -> Result<(), Failure> {
        while let Some(buffer) = copying.pool.take() {
            let wanting = self.active.iter().find(|(_, one)| one.wants()).map(|(number, _)| *number);
            let Some(at) = wanting.map_or_else(|| self.begin(copying), |at| Ok(Some(at)))? else {
                return Ok(());
            };
            let one = self.active.get_mut(&at).expect("found, or just begun");
            let bytes = buffer.capacity() as u64;
            let place = Place { file: one.partial.source(), offset: one.posted };
            let ticket = client.post(buffer, place).map_err(|rejected| Failure::Post(rejected.reason))?;
            self.tickets.insert(ticket, at);
            one.posted += bytes;
        }
        Ok(())
    }

    /// Opens the next file that can be copied to.
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

/// Writes the pieces that are next; whether the file has ended with them.
fn take(one: &mut Active, copying: &mut Copying<'_>) -> Result<bool, Failure> {
    while let Some((buffer, is_end)) = one.ahead.remove(&one.next) {
        one.partial.write(&buffer)?;
        one.next += buffer.len() as u64;
        copying.note(buffer.len())?;
        if is_end {
            return Ok(true);
        }
    }
    Ok(false)
}
