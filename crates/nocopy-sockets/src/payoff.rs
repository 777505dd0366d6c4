//! Whether bursts pay on a socket, found by measuring while the program sends.
//!
//! Bursts and plain sends alternate for short epochs, in pairs, because the speed of a shared machine drifts;
//! the median of the pairs' ratios decides. A decision for bursts holds long enough that measuring again
//! costs about a hundredth of the time; this period doubles each time the decision is confirmed. A decision
//! for plain sends holds for as many datagrams as take that long.
//!
//! (The policy of the nocopy library measures the same way among many methods and classes, but it allocates
//! memory for each new class, which a function that a signal handler may call must not do.)

/// The datagrams of an epoch with bursts, and of one without.
const BATCHED_DATAGRAMS: u32 = 256;
const PLAIN_DATAGRAMS: u32 = 64;

/// After this many interruptions epochs become half as long, at most [`HALVINGS_MAX`] times, because a
/// program may pause after every hundred datagrams.
const INTERRUPTIONS: u32 = 16;
const HALVINGS_MAX: u32 = 2;

/// Pairs of epochs of one comparison: an odd number, so that there is a median.
const PAIRS: usize = 5;

/// Bursts are chosen unless plain sends are faster by more than this share: they take less of the processor
/// where both wait for the card.
const FASTER_SHARE: f64 = 0.02;

/// A decision first holds for this many times the duration of the plain epochs, and at most for
/// [`HOLD_NS_MAX`].
const HOLD_TIMES: u64 = 100;
const HOLD_NS_MAX: u64 = 10_000_000_000;

/// Datagrams from one look at the clock to the next, while a decision holds.
const CHECK_DATAGRAMS: u32 = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BurstDecision {
    /// Whether to continue with bursts.
    pub(crate) batches: bool,
    /// Nanoseconds a datagram, alone and in bursts: the medians.
    pub(crate) plain_ns: u64,
    pub(crate) batched_ns: u64,
    /// If bursts end: how many datagrams are sent alone before they are tried again.
    pub(crate) retry_after: u32,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PayoffMeasurement {
    stage: MeasurementStage,
    /// Datagrams of this epoch, or since the last look at the clock.
    datagrams: u32,
    since_ns: u64,
    /// Costs of the epochs so far, in nanoseconds a datagram: batched, plain.
    costs: [[f64; PAIRS]; 2],
    pairs: usize,
    plain_spent_ns: u64,
    interruptions: u32,
    /// How often the last decision was confirmed.
    doublings: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MeasurementStage {
    /// An epoch of bursts begins with the next datagram.
    Fresh,
    Batched,
    Plain,
    Holding {
        until_ns: u64,
    },
    /// Bursts, whatever they cost.
    Always,
}

impl PayoffMeasurement {
    pub(crate) const fn new() -> Self {
        Self {
            stage: MeasurementStage::Fresh,
            datagrams: 0,
            since_ns: 0,
            costs: [[0.0; PAIRS]; 2],
            pairs: 0,
            plain_spent_ns: 0,
            interruptions: 0,
            doublings: 0,
        }
    }

    /// Always chooses bursts, without measuring.
    pub(crate) const fn always_batching() -> Self {
        Self { stage: MeasurementStage::Always, ..Self::new() }
    }

    /// Counts datagrams that were sent, in either way.
    #[inline]
    pub(crate) fn count_datagrams(&mut self, datagrams: u32) {
        self.datagrams = self.datagrams.wrapping_add(datagrams);
    }

    #[inline]
    pub(crate) fn is_measuring_plain(&self) -> bool {
        self.stage == MeasurementStage::Plain
    }

    /// Whether [`end_epoch`](Self::end_epoch) must be called with the time; checked before each datagram
    /// while there is no burst.
    #[inline]
    pub(crate) fn is_epoch_over(&self) -> bool {
        match self.stage {
            MeasurementStage::Fresh => true,
            MeasurementStage::Batched => self.datagrams >= BATCHED_DATAGRAMS >> self.epoch_halvings(),
            MeasurementStage::Plain => self.datagrams >= PLAIN_DATAGRAMS >> self.epoch_halvings(),
            MeasurementStage::Holding { .. } => self.datagrams >= CHECK_DATAGRAMS,
            MeasurementStage::Always => false,
        }
    }

    /// Ends an epoch, and begins the next.
    pub(crate) fn end_epoch(&mut self, now_ns: u64) -> Option<BurstDecision> {
        let elapsed_ns = now_ns.saturating_sub(self.since_ns);
        let cost_ns = elapsed_ns as f64 / f64::from(self.datagrams.max(1));
        let (mut decision, pair) = (None, self.pairs.min(PAIRS - 1));
        match self.stage {
            MeasurementStage::Fresh => self.stage = MeasurementStage::Batched,
            MeasurementStage::Batched => {
                self.costs[0][pair] = cost_ns;
                self.stage = MeasurementStage::Plain;
            }
            MeasurementStage::Plain => {
                self.costs[1][pair] = cost_ns;
                self.plain_spent_ns = self.plain_spent_ns.saturating_add(elapsed_ns);
                self.pairs += 1;
                self.stage = MeasurementStage::Batched;
                if self.pairs == PAIRS {
                    decision = Some(self.decide_from_costs(now_ns));
                }
            }
            MeasurementStage::Holding { until_ns } if now_ns >= until_ns => {
                self.stage = MeasurementStage::Batched
            }
            MeasurementStage::Holding { .. } | MeasurementStage::Always => {}
        }
        (self.datagrams, self.since_ns) = (0, now_ns);
        decision
    }

    /// Discards the current epoch and pair, because the program paused: the measured cost has no meaning.
    pub(crate) fn interrupt_epoch(&mut self) {
        if matches!(self.stage, MeasurementStage::Batched | MeasurementStage::Plain) {
            self.stage = MeasurementStage::Fresh;
            self.interruptions = self.interruptions.saturating_add(1);
        }
    }

    #[inline]
    fn epoch_halvings(&self) -> u32 {
        (self.interruptions / INTERRUPTIONS).min(HALVINGS_MAX)
    }

    fn decide_from_costs(&mut self, now_ns: u64) -> BurstDecision {
        let mut ratios = [0.0; PAIRS];
        for (ratio, (batched, plain)) in ratios.iter_mut().zip(self.costs[0].iter().zip(&self.costs[1])) {
            *ratio = plain / batched.max(1.0);
        }
        let batches = median(ratios) > 1.0 - FASTER_SHARE;
        let (batched_ns, plain_ns) = (median(self.costs[0]), median(self.costs[1]));
        let hold_ns = self.plain_spent_ns.saturating_mul(HOLD_TIMES) << self.doublings.min(20);
        let hold_ns = hold_ns.min(HOLD_NS_MAX);
        let doublings = self.doublings + 1;
        let stage = if batches {
            MeasurementStage::Holding { until_ns: now_ns + hold_ns }
        } else {
            MeasurementStage::Fresh
        };
        *self = Self { stage, doublings, ..Self::new() };
        let retry_after = (hold_ns as f64 / plain_ns.max(1.0)) as u32;
        BurstDecision { batches, plain_ns: plain_ns as u64, batched_ns: batched_ns as u64, retry_after }
    }
}

/// The median of an odd number of values.
fn median(mut values: [f64; PAIRS]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[PAIRS / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends datagrams of a given cost; returns the last decision and the share that was sent in bursts.
    fn send_datagrams(
        payoff: &mut PayoffMeasurement,
        datagrams: u32,
        now_ns: &mut u64,
        costs_ns: [u64; 2],
    ) -> (Option<BurstDecision>, u32) {
        let (mut last, mut batched) = (None, 0);
        for _ in 0..datagrams {
            if payoff.is_epoch_over() {
                last = payoff.end_epoch(*now_ns).or(last);
            }
            let is_plain = payoff.is_measuring_plain();
            batched += u32::from(!is_plain);
            *now_ns += costs_ns[usize::from(is_plain)];
            payoff.count_datagrams(1);
        }
        (last, batched)
    }

    #[test]
    fn faster_bursts_continue_and_measuring_costs_little() {
        let (mut payoff, mut now_ns) = (PayoffMeasurement::new(), 1_000_000);
        let (decision, _) = send_datagrams(&mut payoff, 1700, &mut now_ns, [70, 900]);
        let decision = decision.unwrap();
        assert!(decision.batches && decision.batched_ns == 70 && decision.plain_ns == 900, "{decision:?}");
        let before_ns = now_ns;
        let (decision, batched) = send_datagrams(&mut payoff, 10_000_000, &mut now_ns, [70, 900]);
        assert!(decision.is_some_and(|decision| decision.batches), "it looks again");
        let all_batched_ns = 70 * 10_000_000;
        assert!((now_ns - before_ns) as f64 / (all_batched_ns as f64) < 1.02, "{batched}");
    }

    #[test]
    fn slower_bursts_stop_for_longer_each_time() {
        let (mut payoff, mut now_ns) = (PayoffMeasurement::new(), 0);
        let (first, _) = send_datagrams(&mut payoff, 1700, &mut now_ns, [950, 900]);
        let first = first.unwrap();
        assert!(!first.batches && first.retry_after > 10_000, "{first:?}");
        let (second, _) = send_datagrams(&mut payoff, 1700, &mut now_ns, [950, 900]);
        assert!(second.unwrap().retry_after > first.retry_after);
    }

    #[test]
    fn a_stall_in_one_epoch_does_not_change_the_decision() {
        let (mut payoff, mut now_ns) = (PayoffMeasurement::new(), 0);
        send_datagrams(&mut payoff, 100, &mut now_ns, [70, 900]);
        now_ns += 50_000_000;
        let (decision, _) = send_datagrams(&mut payoff, 1600, &mut now_ns, [70, 900]);
        assert!(decision.unwrap().batches);
    }

    #[test]
    fn an_interrupted_epoch_restarts() {
        let (mut payoff, mut now_ns) = (PayoffMeasurement::new(), 0);
        for _ in 0..1000 {
            send_datagrams(&mut payoff, 60, &mut now_ns, [70, 900]);
            now_ns += 1_000_000;
            payoff.interrupt_epoch();
        }
        assert!(!payoff.is_measuring_plain() && payoff.pairs == 0);
        let (decision, _) = send_datagrams(&mut payoff, 420, &mut now_ns, [70, 900]);
        assert!(decision.is_some_and(|decision| decision.batches), "epochs are shorter by now");
        let mut always = PayoffMeasurement::always_batching();
        assert_eq!(send_datagrams(&mut always, 100_000, &mut now_ns, [950, 900]), (None, 100_000));
    }
}
