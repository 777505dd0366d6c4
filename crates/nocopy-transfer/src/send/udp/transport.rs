//! Transports of datagrams: a socket, or a port.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::io;
use std::time::Duration;

use nocopy::udp::Sender;
use nocopy::{Ledger, Stats};
use nocopy_proto::errno::{ErrorCounts, is_transient};

use super::Error;
use super::writer::DatagramWriter;

/// The path to one receiver.
pub(super) trait Transport: Debug {
    /// Sends up to that many datagrams, filled by the writer, and at most a [batch](super::BATCH_BYTES). What
    /// the kernel refuses is counted, and no error once a datagram was sent.
    fn send(&mut self, writer: &mut DatagramWriter<'_>, count: usize) -> Result<SendResult, Error>;

    /// Sends one datagram after the queued ones, with a copy; without room it is dropped.
    fn send_control(&mut self, datagram: &[u8]) -> Result<(), Error>;

    /// Passes on the datagrams of the receiver, after waiting for up to `patience`.
    fn receive(&mut self, patience: Duration, take: &mut dyn FnMut(&[u8])) -> Result<(), Error>;

    /// Errors that the network reported since the last call.
    fn network_errors(&mut self) -> Vec<io::Error>;

    /// Waits for a limited time until the kernel has finished everything.
    fn drain(&mut self, patience: Duration) -> Result<(), Error>;

    fn report(&mut self) -> TransportReport;
}

/// Whether the run goes on after that error of the sender. Datagrams may be lost, but one must have been
/// sent: until then an error says what is wrong with the target.
pub(super) fn is_recoverable(sender: &Sender, error: &io::Error) -> bool {
    is_transient(error) && sender.stats().moved > 0
}

/// The datagrams that the kernel refused, by its error, except probes.
pub(super) fn refused_counts(stats: &Stats, probes: &ErrorCounts) -> BTreeMap<String, u64> {
    let probes = probes.counts_by_name();
    let by_error = stats.into_iter().filter_map(|counter| {
        let error = counter.name.strip_prefix("refused_")?;
        let count = counter.value.saturating_sub(probes.get(error).copied().unwrap_or(0));
        (count > 0).then(|| (error.to_owned(), count))
    });
    by_error.collect()
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
pub(super) struct TransportReport {
    /// The methods used, and why, in lines.
    pub explanation: Vec<String>,
    /// Datagrams that the kernel did not accept, except probes to the receiver, by cause: its error, or
    /// the counter of a port.
    pub refused: BTreeMap<String, u64>,
    pub ledger: Ledger,
}
