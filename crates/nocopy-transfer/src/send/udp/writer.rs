//! Writes due datagrams into the memory of a transport.

use std::path::Path;

use super::Error;
use super::payload::{FillResult, Payload, Shape};
use crate::send::queue::Schedule;
use crate::transfer::SenderRun;

/// Fills and counts datagrams that are due.
#[derive(Debug)]
pub(super) struct DatagramWriter<'a> {
    pub payload: &'a mut Payload,
    /// For error messages.
    pub path: &'a Path,
    pub shape: Shape,
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
    pub(super) fn seal(&mut self, datagram: &mut [u8]) {
        if let Some(run) = &mut self.run {
            run.seal(datagram);
        }
        self.schedule.sent(datagram.len(), 1);
    }
}
