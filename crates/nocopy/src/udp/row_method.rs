//! How rows get from the kernel's socket to where they belong: the choice by measurement.

use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::policy::{Choice, Policy, PolicyExplanation, Work, WorkUnit};
use crate::events::Half;

/// Fewer datagrams show the cost of the call rather than that of a row.
const TELLING_DATAGRAMS_MIN: usize = 8;

/// A way for rows to where they belong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::udp) enum RowMethod {
    /// The kernel copies datagrams into buffers, from where rows are copied.
    ByBuffer,
    /// The kernel copies each row to where the next one belongs. If another datagram arrives there, its row
    /// is copied twice more.
    Straight,
}

impl fmt::Display for RowMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::ByBuffer => "by a buffer",
            Self::Straight => "straight into rows",
        })
    }
}

/// The choice by the cost of a datagram: of the receiving call, without a wait, and of placing.
#[derive(Debug)]
pub(in crate::udp) struct RowMethodChooser {
    policy: Policy<RowMethod>,
    work: Work,
    sample: Option<CostSample>,
}

/// A batch that is being measured.
#[derive(Debug)]
struct CostSample {
    choice: Choice<RowMethod>,
    spent: Duration,
    /// `None` while the program has a chunk, whose use is not measured.
    started: Option<Instant>,
}

impl RowMethodChooser {
    /// For rows of that length, among these methods.
    pub(in crate::udp) fn new(row_bytes: usize, methods: &[RowMethod]) -> Self {
        let mut policy = Policy::new(methods).with_work_unit(WorkUnit::Rows);
        policy.report_as(Half::UdpReceiver);
        let bytes = u32::try_from(row_bytes).unwrap_or(u32::MAX);
        // The count is not known before the call; that of a burst of full packets.
        Self { policy, work: Work { destination: 0, bytes, count: 64 }, sample: None }
    }

    /// The method for the next call. If it is to be [measured](Choice::measured), the call must not wait.
    pub(in crate::udp) fn choose(&mut self) -> Choice<RowMethod> {
        self.sample = None;
        self.policy.choose(self.work)
    }

    /// Begins to measure a call.
    pub(in crate::udp) fn start(&mut self, choice: Choice<RowMethod>) {
        self.sample = Some(CostSample { choice, spent: Duration::ZERO, started: Some(Instant::now()) });
    }

    /// The call received nothing, or used another method.
    pub(in crate::udp) fn discard(&mut self) {
        self.sample = None;
    }

    /// Placing goes on, after [`pause`](Self::pause).
    pub(in crate::udp) fn resume(&mut self) {
        if let Some(sample) = &mut self.sample {
            sample.started.get_or_insert_with(Instant::now);
        }
    }

    /// A chunk is returned before all of the batch is placed.
    pub(in crate::udp) fn pause(&mut self) {
        if let Some(sample) = &mut self.sample
            && let Some(started) = sample.started.take()
        {
            sample.spent += started.elapsed();
        }
    }

    /// The batch is placed.
    pub(in crate::udp) fn record(&mut self, datagrams: usize) {
        self.pause();
        if let Some(sample) = self.sample.take().filter(|_| datagrams >= TELLING_DATAGRAMS_MIN) {
            let work = Work { count: u32::try_from(datagrams).unwrap_or(u32::MAX), ..self.work };
            self.policy.record(sample.choice, work, sample.spent);
        }
    }

    pub(in crate::udp) fn explain(&self) -> PolicyExplanation<RowMethod> {
        self.policy.explain()
    }
}
