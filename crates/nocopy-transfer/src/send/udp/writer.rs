//! Writes due datagrams into the memory of a transport.

use std::path::Path;

use super::Error;
use super::payload::{DatagramLayout, FillResult, PayloadSource};
use crate::send::queue::Schedule;
use crate::transfer::SenderRun;

/// Fills and counts datagrams that are due.
#[derive(Debug)]
pub(super) struct DatagramWriter<'a> {
    pub payload: &'a mut PayloadSource,
    /// For error messages.
    pub path: &'a Path,
    pub shape: DatagramLayout,
    /// Writes headers, if there are any.
    pub run: Option<&'a mut SenderRun>,
    pub schedule: &'a mut Schedule,
}

impl DatagramWriter<'_> {
    /// Writes the payload of the next datagrams into slots of a datagram's length each.
    pub(super) fn fill<'p>(
        &mut self,
        buffers: impl Iterator<Item = &'p mut [u8]>,
    ) -> Result<FillResult, Error> {
        let filled = self.payload.fill(buffers, self.shape, self.schedule.tally.packets);
        filled.map_err(|source| Error::Input { path: self.path.to_owned(), source })
    }

    /// Completes the next datagram, which is about to be handed over, and counts it.
    pub(super) fn complete_datagram(&mut self, datagram: &mut [u8]) {
        if let Some(run) = &mut self.run {
            run.write_header(datagram);
        }
        self.schedule.record_sent(datagram.len(), 1);
    }
}
