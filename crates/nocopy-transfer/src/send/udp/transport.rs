//! How datagrams get to the host and back: by a socket, or by a port.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use nocopy::Ledger;

use super::Error;
use super::writer::DatagramWriter;

/// The way to one receiver.
pub(super) trait Transport: Debug {
    /// Sends up to so many datagrams, which the writer fills, and not more than a [batch](super::BATCH_BYTES).
    fn send(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error>;

    /// Sends one datagram behind these, with a copy; without room it is dropped.
    fn send_control(&mut self, datagram: &[u8]) -> Result<(), Error>;

    /// Hands on the datagrams of the receiver, after waiting for up to `patience`.
    fn receive(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error>;

    /// Errors that the network reported since the last call.
    fn network_errors(&mut self) -> Vec<io::Error>;

    /// Waits until the kernel is done with everything, not for ever.
    fn drain(&mut self, patience: Duration) -> Result<(), Error>;

    fn account(&mut self) -> Account;
}

/// What became of datagrams that were to be sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendResult {
    Sent,
    /// All memory is on its way.
    NoRoom,
    /// There is nothing to be sent yet.
    Nothing,
    /// There is nothing any more.
    End,
}

/// What a transport did.
#[derive(Debug)]
pub(super) struct Account {
    /// Which ways were taken, and why, in lines.
    pub report: Vec<String>,
    /// Datagrams that the kernel did not take.
    pub refused: u64,
    pub ledger: Ledger,
}
