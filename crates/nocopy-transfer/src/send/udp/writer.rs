//! Writes due datagrams into the memory of a transport.

use std::path::Path;

use super::Error;
use super::payload::{Filled, Payload, Shape};
use crate::send::queue::Schedule;
use crate::transfer::Sending;

/// Fills and counts datagrams that are due.
#[derive(Debug)]
pub(super) struct DatagramWriter<'a> {
    pub payload: &'a mut Payload,
    /// For error messages.
    pub path: &'a Path,
    pub shape: Shape,
    /// Writes headers, if there are any.
    pub sending: Option<&'a mut Sending>,
    pub schedule: &'a mut Schedule,
}

impl DatagramWriter<'_> {
    /// Writes the payload of the next datagrams into slots of a datagram's length each.
    pub(super) fn fill<'p>(&mut self, places: impl Iterator<Item = &'p mut [u8]>) -> Result<Filled, Error> {
        let filled = self.payload.fill(places, self.shape, self.schedule.tally.packets);
        filled.map_err(|source| Error::Input { path: self.path.to_owned(), source })
    }

    /// Completes the next datagram, which is about to be handed over, and counts it.
    pub(super) fn seal(&mut self, datagram: &mut [u8]) {
        if let Some(sending) = &mut self.sending {
            sending.seal(datagram);
        }
        self.schedule.sent(datagram.len(), 1);
    }
}
