//! Transports of datagrams: a socket, or a port.

use std::fmt::Debug;
use std::io;
use std::time::Duration;

use nocopy::Ledger;

use super::Error;
use super::writer::DatagramWriter;

/// The path to one receiver.
pub(super) trait Transport: Debug {
    /// Sends up to that many datagrams, filled by the writer, and at most a [batch](super::BATCH_BYTES).
    fn send(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error>;

    /// Sends one datagram after the queued ones, with a copy; without room it is dropped.
    fn send_control(&mut self, datagram: &[u8]) -> Result<(), Error>;

    /// Passes on the datagrams of the receiver, after waiting for up to `patience`.
    fn receive(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error>;

    /// Errors that the network reported since the last call.
    fn network_errors(&mut self) -> Vec<io::Error>;

    /// Waits for a limited time until the kernel has finished everything.
    fn drain(&mut self, patience: Duration) -> Result<(), Error>;

    fn account(&mut self) -> Account;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendResult {
    Sent,
    NoRoom,
    /// The input has nothing yet.
    Nothing,
    /// The input has ended.
    End,
}

#[derive(Debug)]
pub(super) struct Account {
    /// The methods used, and why, in lines.
    pub report: Vec<String>,
    /// Datagrams that the kernel did not accept.
    pub refused: u64,
    pub ledger: Ledger,
}
