//! One comparison of two methods: some calls of the one in use, then some of its challenger.
//!
//! Times drift by 2x within seconds on a shared machine, so only calls that follow each other are compared.

use std::ops::AddAssign;

/// Duration of an epoch of methods that are about as fast: long compared with the noise of calls, short
/// compared with drift.
const EPOCH_NS: f64 = 120e3;
const EPOCH_CALLS: std::ops::RangeInclusive<u8> = 8..=32;
/// Fewer calls than that make an epoch if they take longer: a call of a millisecond is as good as many.
const EPOCH_NS_MAX: f64 = 1e6;

/// The calls of an epoch, if one costs `call_ns`.
pub(super) fn epoch_calls(call_ns: f64) -> u8 {
    let calls = ((EPOCH_NS / call_ns) as u8).clamp(*EPOCH_CALLS.start(), *EPOCH_CALLS.end());
    calls.min((EPOCH_NS_MAX / call_ns) as u8).max(1)
}

#[derive(Debug, Clone, Copy, Default)]
struct CostSum {
    ns: f64,
    units: f64,
}

impl AddAssign for CostSum {
    fn add_assign(&mut self, other: Self) {
        self.ns += other.ns;
        self.units += other.units;
    }
}

impl CostSum {
    fn ns_per_unit(self) -> f64 {
        self.ns / self.units
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PairProgress {
    /// The same method is called again.
    Same,
    /// The challenger's epoch begins.
    Turn,
    /// The pair is complete.
    Done,
}

/// Two epochs. Each begins with a call that does not count, as it may reap completions of the other method.
#[derive(Debug, Clone)]
pub(super) struct PairedComparison {
    pub(super) challenger: u8,
    calls: u8,
    left: u8,
    incumbent: Option<CostSum>,
    epoch: CostSum,
    /// All calls of the challenger: the cost of trying it.
    tried: CostSum,
}

impl PairedComparison {
    pub(super) fn new(challenger: u8, calls: u8) -> Self {
        let nothing = CostSum::default();
        Self { challenger, calls, left: calls + 1, incumbent: None, epoch: nothing, tried: nothing }
    }

    /// Records the cost of a call; `ns` and `units` are above zero.
    pub(super) fn record(&mut self, ns: f64, units: f64) -> PairProgress {
        let cost = CostSum { ns, units };
        if self.incumbent.is_some() {
            self.tried += cost;
        }
        if self.left <= self.calls {
            self.epoch += cost;
        }
        // No underflow: each epoch begins with one call or more, and a complete pair is not recorded again.
        self.left -= 1;
        match (self.left, self.incumbent) {
            (1.., _) => PairProgress::Same,
            (0, Some(_)) => PairProgress::Done,
            (0, None) => {
                self.left = self.calls + 1;
                self.incumbent = Some(std::mem::take(&mut self.epoch));
                PairProgress::Turn
            }
        }
    }

    /// Of a complete pair: the natural logarithm of the challenger's cost over the incumbent's, and what
    /// trying it cost more.
    pub(super) fn comparison_result(&self) -> (f32, f64) {
        let incumbent_ns = self.incumbent.unwrap_or(self.epoch).ns_per_unit();
        let excess_ns = self.tried.ns - incumbent_ns * self.tried.units;
        ((self.epoch.ns_per_unit() / incumbent_ns).ln() as f32, excess_ns.max(0.0))
    }
}
