//! Counts of datagrams, with nocopy's header and without.

use std::net::SocketAddr;
use std::time::Duration;

use super::summary::Summary;
use crate::ledger::LedgerSummary;
use crate::processor;
use crate::recv::canonical_address;
use crate::transfer::{CONTROL_BYTES, HandledDatagram, ReceiverPhase, ReceiverRun, RunRow};
use nocopy_report::CommandEnd;

#[derive(Debug)]
pub(super) struct Tally {
    /// `None` if datagrams have no header.
    run: Option<ReceiverRun>,
    count: Option<u64>,
    idle: Option<Duration>,
    datagrams: u64,
    bytes: u64,
    /// When the first and the last data datagram arrived.
    times_ns: Option<(u64, u64)>,
    last_bytes: u64,
    from: Option<SocketAddr>,
    kernel_dropped: u64,
    /// Datagrams from addresses that may not send.
    rejected: u64,
    start: Option<processor::ProcessorTimeSnapshot>,
    closed: bool,
    /// The report by which the sender stops.
    last_report: Option<LastReport>,
}

type LastReport = (SocketAddr, [u8; CONTROL_BYTES]);

pub(super) enum DatagramAction<'a> {
    Piece(u64, &'a [u8]),
    Report([u8; CONTROL_BYTES]),
    Nothing,
}

impl Tally {
    pub(super) fn without_headers(count: Option<u64>, idle: Option<Duration>) -> Self {
        Self::new(None, count, idle)
    }

    pub(super) fn with_headers(count: Option<u64>, idle: Duration, verify: bool) -> Self {
        Self::new(Some(ReceiverRun::new(verify, idle)), count, None)
    }

    fn new(run: Option<ReceiverRun>, count: Option<u64>, idle: Option<Duration>) -> Self {
        Self {
            run,
            count,
            idle,
            datagrams: 0,
            bytes: 0,
            times_ns: None,
            last_bytes: 0,
            from: None,
            kernel_dropped: 0,
            rejected: 0,
            start: None,
            closed: false,
            last_report: None,
        }
    }

    pub(super) fn handle_datagram<'a>(
        &mut self,
        from: SocketAddr,
        bytes: &'a [u8],
        now_ns: u64,
    ) -> DatagramAction<'a> {
        let kind = self.classify(from, bytes, now_ns);
        if self.has_reached_count() && !self.closed {
            // Checked at once: the next datagram of the batch could exceed the count.
            self.last_report = self.stop_counting(now_ns);
        }
        kind
    }

    /// Counts a datagram from an address that may not send.
    pub(super) fn count_rejected(&mut self) {
        self.rejected += 1;
    }

    fn classify<'a>(&mut self, from: SocketAddr, bytes: &'a [u8], now_ns: u64) -> DatagramAction<'a> {
        if self.closed && self.run.is_none() {
            return DatagramAction::Nothing;
        }
        self.start.get_or_insert_with(processor::ProcessorTimeSnapshot::now);
        let Some(run) = &mut self.run else {
            let offset = self.bytes;
            self.count_datagram(from, bytes, now_ns);
            return DatagramAction::Piece(offset, bytes);
        };
        match run.handle_datagram(from, bytes, now_ns) {
            HandledDatagram::Data(data) => {
                self.count_datagram(from, bytes, now_ns);
                DatagramAction::Piece(data.offset, data.bytes)
            }
            HandledDatagram::Report(report) => DatagramAction::Report(report),
            HandledDatagram::Nothing => DatagramAction::Nothing,
        }
    }

    fn count_datagram(&mut self, from: SocketAddr, bytes: &[u8], now_ns: u64) {
        self.datagrams += 1;
        self.bytes += bytes.len() as u64;
        self.last_bytes = bytes.len() as u64;
        self.from = Some(from);
        self.times_ns = Some((self.times_ns.map_or(now_ns, |(first_ns, _)| first_ns), now_ns));
    }

    pub(super) fn has_reached_count(&self) -> bool {
        self.count.is_some_and(|count| self.datagrams >= count)
    }

    /// Stops counting. Returns the last report and its receiver.
    pub(super) fn stop_counting(&mut self, now_ns: u64) -> Option<LastReport> {
        self.closed = true;
        self.last_report.take().or_else(|| self.run.as_mut()?.stop_counting(now_ns))
    }

    /// The reason to end, if any; `ended`: end the counting in any case.
    pub(super) fn reason_to_end(&self, now_ns: u64, ended: bool) -> Option<CommandEnd> {
        match self.run.as_ref().map(|run| run.phase(now_ns)) {
            Some(ReceiverPhase::Over) => Some(CommandEnd::Done),
            Some(ReceiverPhase::Silent) => Some(CommandEnd::Timeout),
            Some(ReceiverPhase::Running) => None,
            Some(ReceiverPhase::Waiting) | None if ended => Some(CommandEnd::Done),
            Some(ReceiverPhase::Waiting) => None,
            None => {
                let (_, last_ns) = self.times_ns?;
                let silent = Duration::from_nanos(now_ns.saturating_sub(last_ns));
                self.idle.is_some_and(|idle| silent >= idle).then_some(CommandEnd::Timeout)
            }
        }
    }

    pub(super) fn record_kernel_drops(&mut self, dropped: u64) {
        self.kernel_dropped = dropped;
        if let Some(run) = &mut self.run {
            run.record_kernel_drops(dropped);
        }
    }

    pub(super) fn datagrams(&self) -> u64 {
        self.datagrams
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn lost(&self) -> Option<u64> {
        self.run.as_ref()?.run_counts().map(|run_counts| run_counts.lost_datagrams())
    }

    pub(super) fn summary(
        &self,
        address: SocketAddr,
        ended: CommandEnd,
        evidence: LedgerSummary,
        output: Option<String>,
    ) -> Summary {
        let run = self.run.as_ref();
        let run_counts = run.and_then(ReceiverRun::run_counts);
        let has_checksums = run.is_some_and(ReceiverRun::has_checksums);
        let seconds = self.times_ns.map_or(0.0, |(first_ns, last_ns)| (last_ns - first_ns) as f64 / 1e9);
        // The time from the first to the last is that of all but one.
        let a_second = |count: u64| (seconds > 0.0).then(|| count as f64 / seconds);
        Summary {
            address,
            sender: run.and_then(ReceiverRun::peer).or(self.from).map(canonical_address),
            ended,
            datagrams: self.datagrams,
            bytes: self.bytes,
            seconds,
            datagrams_per_second: a_second(self.datagrams.saturating_sub(1)),
            bits_per_second: a_second(8 * (self.bytes - self.last_bytes)),
            run: RunRow::new(run_counts.and_then(|run_counts| run_counts.sent), run_counts, has_checksums),
            foreign: self.rejected + self.run.as_ref().map_or(0, ReceiverRun::foreign_datagrams),
            kernel_dropped: self.kernel_dropped,
            evidence,
            output,
            processor: self.start.map(|start| start.usage_since(self.datagrams)),
            left_out: false,
        }
    }
}
