//! Decides for one socket which datagrams begin a run, which join a burst, and when to stop joining for a
//! while. It makes no system call and reads no clock.
//!
//! ```text
//!                 8 quick equal sends          one more goes plainly        others join
//!   no run ─────────────────────────▶ examined ────────────────────▶ open ─────────────▶ a burst
//!      ▲                                 │ not eligible                ▲                    │ handed over
//!      │                                 ▼                             └────────────────────┘
//!      └───────────────────────────── skipped, for so many datagrams
//! ```

use nocopy_proto::run::sockets::{BatchingStopCause, Flush, UnbatchedCause};

use crate::destination::Destination;
use crate::payoff::{BurstDecision, PayoffMeasurement};

/// Datagrams of a burst: `UDP_MAX_SEGMENTS` of Linux before 6.9.
pub(crate) const SEGMENTS_MAX: usize = 64;

/// Bytes of a burst: the longest payload of a UDP datagram over IPv4.
pub(crate) const BURST_BYTES_MAX: usize = 65_507;

/// Equal datagrams within this time of each other are a run.
const GAP_NS: u64 = 50_000;

/// Equal sends that start a run by default.
pub(crate) const ENTRY: u32 = 8;

/// How long to trust what was learned about a socket's options and about queueing disciplines.
const ELIGIBILITY_VALID_NS: u64 = 100_000_000;

/// After this many sends without a run, the library backs off: it joins none of the next datagrams,
/// [`BACKOFF_MIN`] of them at first, [`BACKOFF_MAX`] at most.
const SENDS_WITHOUT_RUN_MAX: u32 = 256;
const BACKOFF_MIN: u32 = 4096;
const BACKOFF_MAX: u32 = 1 << 18;

/// A burst with fewer datagrams is short; a burst that the deadline ended is short with fewer than the second
/// number.
const SHORT: u32 = 4;
const SHORT_BY_DEADLINE: u32 = 8;

/// The library backs off when a socket's short bursts exceed its others by this number.
const SHORT_BURSTS_MAX: u32 = 16;

/// What two datagrams must share to be in one burst.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct DatagramShape {
    pub(crate) bytes: usize,
    pub(crate) destination: Destination,
}

impl DatagramShape {
    /// Whether a datagram of this length and destination has this shape; `None` stands for the peer of a
    /// connected socket.
    #[inline]
    pub(crate) fn matches(&self, bytes: usize, address: Option<&[u8]>) -> bool {
        self.bytes == bytes && self.destination.matches(address)
    }

    #[inline]
    pub(crate) fn segments_max(&self) -> usize {
        BURST_BYTES_MAX.checked_div(self.bytes).unwrap_or(0).min(SEGMENTS_MAX)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunDecision {
    /// Send it alone, and report the outcome by [`RunDetector::record_send`].
    SendSingly(UnbatchedCause),
    Join,
    /// Find out whether the socket is eligible for bursts, report it by [`RunDetector::record_eligibility`],
    /// and ask again.
    CheckEligibility,
}

/// Changes to the usual treatment of sockets, for tests.
#[derive(Debug, Clone, Copy)]
pub(crate) struct BurstTuning {
    /// Equal sends that make a run.
    pub(crate) entry: u32,
    /// Bursts are not measured, and short ones do not end joining.
    pub(crate) always: bool,
}

impl BurstTuning {
    pub(crate) const DEFAULT: Self = Self { entry: ENTRY, always: false };
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RunDetector {
    shape: DatagramShape,
    /// Equal datagrams sent so far, up to `entry`.
    equal: u32,
    since_ns: u64,
    /// Whether the next datagram of this shape joins a burst, because the one before it was sent alone
    /// without an error.
    is_open: bool,
    /// Sends since the last run.
    sends_without_run: u32,
    eligible: Option<(Destination, u64)>,
    payoff: PayoffMeasurement,
    shorts: u32,
    /// Bursts of datagrams of at least this many bytes were refused.
    refused_bytes: usize,
    backoff: u32,
    tuning: BurstTuning,
}

impl RunDetector {
    pub(crate) const fn new(tuning: BurstTuning) -> Self {
        Self {
            shape: DatagramShape { bytes: 0, destination: Destination::CONNECTED },
            equal: 0,
            since_ns: 0,
            is_open: false,
            sends_without_run: 0,
            eligible: None,
            payoff: if tuning.always {
                PayoffMeasurement::always_batching()
            } else {
                PayoffMeasurement::new()
            },
            shorts: 0,
            refused_bytes: usize::MAX,
            backoff: BACKOFF_MIN,
            tuning,
        }
    }

    /// What to do with a datagram, when no burst is under way that it could join.
    pub(crate) fn decide_datagram(&mut self, shape: DatagramShape, now: impl FnOnce() -> u64) -> RunDecision {
        if shape.segments_max() < 2 {
            self.end_run();
            return RunDecision::SendSingly(UnbatchedCause::Unfit);
        }
        if shape != self.shape {
            self.shape = shape;
            self.end_run();
        }
        if self.equal < self.tuning.entry || shape.bytes >= self.refused_bytes {
            return RunDecision::SendSingly(UnbatchedCause::NoRun);
        }
        if self.payoff.is_measuring_plain() && !self.payoff.is_epoch_over() {
            return RunDecision::SendSingly(UnbatchedCause::Measured);
        }
        if self.is_open {
            return RunDecision::Join;
        }
        let now_ns = now();
        let is_known = self.eligible.is_some_and(|(destination, then_ns)| {
            destination == shape.destination && now_ns.saturating_sub(then_ns) < ELIGIBILITY_VALID_NS
        });
        if is_known { RunDecision::SendSingly(UnbatchedCause::First) } else { RunDecision::CheckEligibility }
    }

    /// Whether a measured epoch is over, so that [`end_epoch`](Self::end_epoch) must be called before
    /// [`decide_datagram`](Self::decide_datagram).
    #[inline]
    pub(crate) fn is_epoch_over(&self) -> bool {
        self.equal >= self.tuning.entry && self.payoff.is_epoch_over()
    }

    /// Ends an epoch. If bursts do not pay, the second value is the number of datagrams to send unjoined.
    pub(crate) fn end_epoch(&mut self, now_ns: u64) -> (Option<BurstDecision>, Option<u32>) {
        let decision = self.payoff.end_epoch(now_ns);
        let stopped = decision.filter(|decision| !decision.batches);
        if stopped.is_some() {
            self.end_run();
        }
        (decision, stopped.map(|decision| decision.retry_after.clamp(BACKOFF_MIN, BACKOFF_MAX)))
    }

    /// Records whether a datagram that went alone was sent. After too many sends without a run, returns how
    /// many datagrams to send unjoined.
    pub(crate) fn record_send(
        &mut self,
        shape: DatagramShape,
        plain: UnbatchedCause,
        is_sent: bool,
        now: impl FnOnce() -> u64,
    ) -> Option<u32> {
        if !is_sent || shape != self.shape {
            self.end_run();
            return self.count_send_without_run();
        }
        match plain {
            UnbatchedCause::First | UnbatchedCause::Measured => {
                self.payoff.count_datagrams(1);
                self.is_open = true;
                None
            }
            _ => self.count_equal_datagram(now),
        }
    }

    fn count_equal_datagram(&mut self, now: impl FnOnce() -> u64) -> Option<u32> {
        self.equal += 1;
        let entry = self.tuning.entry;
        // The clock is read for runs only, and twice: at the second datagram and at the last.
        if self.equal == 2 && entry > 2 {
            self.since_ns = now();
        } else if self.equal >= entry {
            let steps = u64::from(entry.saturating_sub(2));
            let is_quick = steps == 0 || now().saturating_sub(self.since_ns) <= steps * GAP_NS;
            if !is_quick {
                self.equal = 0;
                return self.count_send_without_run();
            }
            self.sends_without_run = 0;
            return None;
        }
        self.count_send_without_run()
    }

    fn count_send_without_run(&mut self) -> Option<u32> {
        self.sends_without_run += 1;
        (self.sends_without_run >= SENDS_WITHOUT_RUN_MAX).then(|| self.back_off())
    }

    /// Records whether the socket and the route allow bursts. The error is the number of datagrams to send
    /// unjoined.
    pub(crate) fn record_eligibility(
        &mut self,
        eligible: Result<(), BatchingStopCause>,
        now_ns: u64,
    ) -> Result<(), u32> {
        match eligible {
            Ok(()) => {
                self.eligible = Some((self.shape.destination, now_ns));
                Ok(())
            }
            Err(_) => Err(self.back_off()),
        }
    }

    /// Records a burst that was sent. If bursts do not pay, returns how many datagrams to send unjoined.
    pub(crate) fn record_burst(&mut self, why: Flush, datagrams: u32) -> Option<u32> {
        self.is_open = false;
        self.payoff.count_datagrams(datagrams);
        if matches!(why, Flush::Wait | Flush::Deadline) {
            self.payoff.interrupt_epoch();
        }
        let is_short = datagrams < SHORT || (why == Flush::Deadline && datagrams < SHORT_BY_DEADLINE);
        if self.tuning.always || !is_short {
            self.shorts = self.shorts.saturating_sub(1);
            return None;
        }
        self.shorts += 1;
        (self.shorts >= SHORT_BURSTS_MAX).then(|| self.back_off())
    }

    /// The kernel refused to cut a burst (`EIO`, `EINVAL`): it cuts none, or none whose datagrams have this
    /// size or more.
    pub(crate) fn record_refusal(&mut self, bytes: usize, is_for_all: bool) {
        self.refused_bytes = self.refused_bytes.min(if is_for_all { 0 } else { bytes });
        self.end_run();
    }

    /// Forgets what was learned about the socket, because its options or its peer may have changed.
    pub(crate) fn forget_learned(&mut self) {
        self.eligible = None;
        self.refused_bytes = usize::MAX;
        self.end_run();
    }

    /// Ends the run: the next datagram begins a new one.
    fn end_run(&mut self) {
        (self.equal, self.is_open) = (0, false);
    }

    /// Backs off, for longer each time.
    fn back_off(&mut self) -> u32 {
        let count = self.backoff;
        self.backoff = count.saturating_mul(2).min(BACKOFF_MAX);
        (self.sends_without_run, self.shorts, self.eligible) = (0, 0, None);
        self.end_run();
        count
    }
}

#[cfg(test)]
mod tests;
