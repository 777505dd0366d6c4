//! Counts of datagrams, with nocopy's header and without.

use std::net::SocketAddr;
use std::time::Duration;

use super::summary::Summary;
use crate::ledger::LedgerResult;
use crate::processor;
use crate::recv::plain;
use crate::transfer::{CONTROL_BYTES, Handled, Phase, Receiving, RunRow};
use nocopy_report::Ended;

#[derive(Debug)]
pub(super) struct Tally {
    /// `None` if datagrams have no header.
    receiving: Option<Receiving>,
    count: Option<u64>,
    idle: Option<Duration>,
    packets: u64,
    bytes: u64,
    /// When the first and the last data datagram arrived.
    times_ns: Option<(u64, u64)>,
    last_bytes: u64,
    from: Option<SocketAddr>,
    kernel_dropped: u64,
    /// Datagrams from addresses that may not send.
    turned_away: u64,
    start: Option<processor::Start>,
    closed: bool,
    /// The answer by which the sender stops.
    last_answer: Option<LastAnswer>,
}

type LastAnswer = (SocketAddr, [u8; CONTROL_BYTES]);

pub(super) enum Kind<'a> {
    Piece(u64, &'a [u8]),
    Answer([u8; CONTROL_BYTES]),
    Nothing,
}

impl Tally {
    pub(super) fn raw(count: Option<u64>, idle: Option<Duration>) -> Self {
        Self::new(None, count, idle)
    }

    pub(super) fn of_runs(count: Option<u64>, idle: Duration, verify: bool) -> Self {
        Self::new(Some(Receiving::new(verify, idle)), count, None)
    }

    fn new(receiving: Option<Receiving>, count: Option<u64>, idle: Option<Duration>) -> Self {
        Self {
            receiving,
            count,
            idle,
            packets: 0,
            bytes: 0,
            times_ns: None,
            last_bytes: 0,
            from: None,
            kernel_dropped: 0,
            turned_away: 0,
            start: None,
            closed: false,
            last_answer: None,
        }
    }

    pub(super) fn take<'a>(&mut self, from: SocketAddr, bytes: &'a [u8], now_ns: u64) -> Kind<'a> {
        let kind = self.sort(from, bytes, now_ns);
        if self.is_enough() && !self.closed {
            // Checked at once: the next datagram of the batch could exceed the count.
            self.last_answer = self.close(now_ns);
        }
        kind
    }

    /// Counts a datagram from an address that may not send.
    pub(super) fn turn_away(&mut self) {
        self.turned_away += 1;
    }

    fn sort<'a>(&mut self, from: SocketAddr, bytes: &'a [u8], now_ns: u64) -> Kind<'a> {
        if self.closed && self.receiving.is_none() {
            return Kind::Nothing;
        }
        self.start.get_or_insert_with(processor::Start::now);
        let Some(receiving) = &mut self.receiving else {
            let offset = self.bytes;
            self.count_one(from, bytes, now_ns);
            return Kind::Piece(offset, bytes);
        };
        match receiving.handle(from, bytes, now_ns) {
            Handled::Data(data) => {
                self.count_one(from, bytes, now_ns);
                Kind::Piece(data.offset, data.bytes)
            }
            Handled::Answer(answer) => Kind::Answer(answer),
            Handled::Nothing => Kind::Nothing,
        }
    }

    fn count_one(&mut self, from: SocketAddr, bytes: &[u8], now_ns: u64) {
        self.packets += 1;
        self.bytes += bytes.len() as u64;
        self.last_bytes = bytes.len() as u64;
        self.from = Some(from);
        self.times_ns = Some((self.times_ns.map_or(now_ns, |(first_ns, _)| first_ns), now_ns));
    }

    pub(super) fn is_enough(&self) -> bool {
        self.count.is_some_and(|count| self.packets >= count)
    }

    /// Stops counting. Returns the last answer and its receiver.
    pub(super) fn close(&mut self, now_ns: u64) -> Option<LastAnswer> {
        self.closed = true;
        self.last_answer.take().or_else(|| self.receiving.as_mut()?.close(now_ns))
    }

    /// The reason to end, if any; `ended`: end the counting in any case.
    pub(super) fn is_over(&self, now_ns: u64, ended: bool) -> Option<Ended> {
        match self.receiving.as_ref().map(|receiving| receiving.phase(now_ns)) {
            Some(Phase::Over) => Some(Ended::Done),
            Some(Phase::Silent) => Some(Ended::Silent),
            Some(Phase::Running) => None,
            Some(Phase::Waiting) | None if ended => Some(Ended::Done),
            Some(Phase::Waiting) => None,
            None => {
                let (_, last_ns) = self.times_ns?;
                let silent = Duration::from_nanos(now_ns.saturating_sub(last_ns));
                self.idle.is_some_and(|idle| silent >= idle).then_some(Ended::Silent)
            }
        }
    }

    pub(super) fn note_kernel_drops(&mut self, dropped: u64) {
        self.kernel_dropped = dropped;
        if let Some(receiving) = &mut self.receiving {
            receiving.note_kernel_drops(dropped);
        }
    }

    pub(super) fn packets(&self) -> u64 {
        self.packets
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn lost(&self) -> Option<u64> {
        self.receiving.as_ref()?.findings().map(|findings| findings.lost())
    }

    pub(super) fn summary(
        &self,
        address: SocketAddr,
        ended: Ended,
        evidence: LedgerResult,
        output: Option<String>,
    ) -> Summary {
        let run = self.receiving.as_ref();
        let findings = run.and_then(Receiving::findings);
        let has_checksums = run.is_some_and(Receiving::has_checksums);
        let seconds = self.times_ns.map_or(0.0, |(first_ns, last_ns)| (last_ns - first_ns) as f64 / 1e9);
        // The time from the first to the last is that of all but one.
        let a_second = |count: u64| (seconds > 0.0).then(|| count as f64 / seconds);
        Summary {
            address,
            sender: run.and_then(Receiving::peer).or(self.from).map(plain),
            ended,
            packets: self.packets,
            bytes: self.bytes,
            seconds,
            packets_per_second: a_second(self.packets.saturating_sub(1)),
            bits_per_second: a_second(8 * (self.bytes - self.last_bytes)),
            run: RunRow::new(findings.and_then(|findings| findings.sent), findings, has_checksums),
            foreign: self.turned_away + self.receiving.as_ref().map_or(0, Receiving::foreign),
            kernel_dropped: self.kernel_dropped,
            evidence,
            output,
            processor: self.start.map(|start| start.used(self.packets)),
            left_out: false,
        }
    }
}
