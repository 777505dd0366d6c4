//! What carries datagrams to the host and back: a socket, or a port.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use nocopy::Ledger;

use super::Error;
use super::cargo::Cargo;

/// The way to one receiver.
pub(super) trait Carrier: Debug {
    /// Sends up to so many datagrams of the cargo, and not more than a [batch](super::BATCH_BYTES).
    fn carry(&mut self, cargo: &mut Cargo<'_>, count: usize) -> Result<Carried, Error>;

    /// Sends one datagram behind these, with a copy. One that there is no room for is gone.
    fn say(&mut self, datagram: &[u8]) -> Result<(), Error>;

    /// Hands on what has come from the receiver, perhaps after waiting for it.
    fn hear(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error>;

    /// What the network said since the last time.
    fn complaints(&mut self) -> Vec<io::Error>;

    /// Waits until the kernel is done with everything, not for ever.
    fn drain(&mut self, patience: Duration) -> Result<(), Error>;

    fn account(&mut self) -> Account;
}

/// What became of datagrams that were to be carried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Carried {
    Sent,
    /// All memory is on its way.
    NoRoom,
    /// There is nothing to be sent yet.
    Nothing,
    /// There is nothing any more.
    End,
}

/// What a carrier did.
#[derive(Debug)]
pub(super) struct Account {
    /// Which ways were taken, and why, in lines.
    pub report: Vec<String>,
    /// Datagrams that the kernel did not take.
    pub refused: u64,
    pub ledger: Ledger,
}
