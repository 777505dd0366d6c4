//! Compares two methods, in pairs of short consecutive epochs.
//!
//! Times drift by 2x within seconds on a shared machine, so only ratios of consecutive epochs count. A pair is an epoch of the
//! incumbent and one of the challenger, in alternating order (IC CI IC …), so that a drift favours neither. The median of
//! the ratios decides: a preempted call spoils one pair, not the verdict.

/// Pairs of one call each at the start: a challenger 60 times as slow costs three calls.
pub(super) const GLANCES: usize = 2;

/// A challenger slower by this factor in both glances is dropped.
const MUCH_SLOWER: f32 = 1.3;

/// A challenger faster by this factor in both glances has won. Stricter than [`MUCH_SLOWER`]: one call may leave work to later
/// ones (completions to be reaped), and so look cheaper than it is.
const MUCH_FASTER: f32 = 0.5;

/// Duration of an epoch after its first calls: long compared with the noise of calls, short compared with drift. One uncounted call comes
/// first, as it may reap completions of the other method.
const EPOCH_NS: f64 = 120e3;
const EPOCH_CALLS: std::ops::RangeInclusive<u8> = 8..=32;
/// Fewer calls than that make an epoch if they take longer: a call of a millisecond is as good as many.
const EPOCH_NS_MAX: f64 = 1e6;

/// A challenger that differs by this in the first three pairs after the glances is decided on.
const CLEARLY: f32 = 0.15;
const CLEAR_PAIRS: usize = 3;

/// The least and the most pairs after the glances.
const PAIRS_MIN: usize = 9;
const PAIRS_MAX: usize = 47;

/// A challenger must be better by this, so that noise does not make the choice flap.
const MARGIN: f32 = 0.03;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Incumbent,
    Challenger,
}

impl Side {
    fn other(self) -> Self {
        match self {
            Self::Incumbent => Self::Challenger,
            Self::Challenger => Self::Incumbent,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Step {
    Same,
    /// The pair's other epoch begins.
    Turn,
    /// A pair is complete; there may be a verdict.
    Pair,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Open,
    Better,
    NoBetter,
    MuchSlower,
}

#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    ns: f64,
    units: f64,
}

impl Cost {
    fn add(&mut self, ns: f64, units: f64) {
        self.ns += ns;
        self.units += units;
    }

    fn each_ns(self) -> f64 {
        self.ns / self.units
    }
}

#[derive(Debug, Clone)]
pub(super) struct Trial {
    pub(super) challenger: u8,
    side: Side,
    /// Calls of an epoch after the glances.
    calls: u8,
    /// Whether this is the second epoch of the pair.
    second: bool,
    warm_up: u8,
    left: u8,
    epoch: Cost,
    /// Cost of a unit in the pair's first epoch.
    first_each_ns: f64,
    /// All calls of the challenger in this pair, uncounted ones included: the cost of trying it.
    tried: Cost,
    /// The cost of trying so far, minus the cost of the incumbent for the same work.
    pub(super) excess_ns: f64,
    /// Challenger's cost over incumbent's, of each pair.
    ratios: [f32; GLANCES + PAIRS_MAX],
    pairs: usize,
}

impl Trial {
    /// A trial of `challenger`; a call of the incumbent costs `call_ns`.
    pub(super) fn new(challenger: u8, call_ns: f64) -> Self {
        Self {
            challenger,
            side: Side::Incumbent,
            calls: ((EPOCH_NS / call_ns) as u8)
                .clamp(*EPOCH_CALLS.start(), *EPOCH_CALLS.end())
                .min((EPOCH_NS_MAX / call_ns) as u8)
                .max(1),
            second: false,
            warm_up: 0,
            left: 1,
            epoch: Cost::default(),
            first_each_ns: 0.0,
            tried: Cost::default(),
            excess_ns: 0.0,
            ratios: [0.0; GLANCES + PAIRS_MAX],
            pairs: 0,
        }
    }

    pub(super) fn side(&self) -> Side {
        self.side
    }

    pub(super) fn pairs(&self) -> usize {
        self.pairs
    }

    /// Records the cost of a call made for the side whose turn it is; `ns` and `units` are above zero.
    pub(super) fn record(&mut self, ns: f64, units: f64) -> Step {
        if self.side == Side::Challenger {
            self.tried.add(ns, units);
        }
        if self.warm_up > 0 {
            self.warm_up -= 1;
            return Step::Same;
        }
        self.epoch.add(ns, units);
        self.left -= 1;
        if self.left > 0 {
            return Step::Same;
        }
        let each_ns = self.epoch.each_ns();
        if self.second {
            self.finish_pair(each_ns);
            // The side that ended a pair begins the next.
            self.begin(self.side);
            return Step::Pair;
        }
        self.first_each_ns = each_ns;
        self.begin(self.side.other());
        self.second = true;
        Step::Turn
    }

    fn begin(&mut self, side: Side) {
        let first_of_all = self.pairs == 0 && side == Side::Challenger;
        let glance = self.pairs < GLANCES;
        self.warm_up = u8::from(side != self.side && (!glance || first_of_all));
        self.left = if glance { 1 } else { self.calls };
        self.epoch = Cost::default();
        self.side = side;
        self.second = false;
    }

    fn finish_pair(&mut self, each_ns: f64) {
        let (incumbent, challenger) = match self.side {
            Side::Incumbent => (each_ns, self.first_each_ns),
            Side::Challenger => (self.first_each_ns, each_ns),
        };
        self.ratios[self.pairs] = (challenger / incumbent) as f32;
        self.pairs += 1;
        self.excess_ns += (self.tried.ns - incumbent * self.tried.units).max(0.0);
        self.tried = Cost::default();
    }

    /// Median of the ratios; the first short pairs count only if there are no others.
    pub(super) fn ratio(&self) -> f32 {
        let ratios = &self.ratios[..self.pairs];
        let counted = if ratios.len() > GLANCES { &ratios[GLANCES..] } else { ratios };
        median(sort(counted, &mut [0.0; PAIRS_MAX]))
    }

    /// The verdict so far. A challenger that is `preferred` to the incumbent need not be better by a margin: it wins ties.
    pub(super) fn verdict(&self, preferred: bool) -> Verdict {
        let ratios = &self.ratios[..self.pairs];
        match ratios.split_at_checked(GLANCES) {
            Some((glances, [])) if glances.iter().all(|&ratio| ratio > MUCH_SLOWER) => Verdict::MuchSlower,
            Some((glances, [])) if glances.iter().all(|&ratio| ratio < MUCH_FASTER) => Verdict::Better,
            Some((_, contest)) if contest.len() == CLEAR_PAIRS => decide_early(contest),
            Some((_, contest)) if contest.len() >= PAIRS_MIN => decide(contest, preferred),
            _ => Verdict::Open,
        }
    }
}

fn decide_early(contest: &[f32]) -> Verdict {
    if contest.iter().all(|&ratio| ratio > 1.0 + CLEARLY) {
        Verdict::NoBetter
    } else if contest.iter().all(|&ratio| ratio < 1.0 - CLEARLY) {
        Verdict::Better
    } else {
        Verdict::Open
    }
}

/// Better: the median is below 1 by the margin, and the upper end of its confidence
/// interval is below 1. No better: the lower end is not below 1 by the margin.
fn decide(contest: &[f32], preferred: bool) -> Verdict {
    let mut space = [0.0; PAIRS_MAX];
    let sorted = sort(contest, &mut space);
    let (lower, upper) = interval(sorted);
    let bar = if preferred { 1.0 } else { 1.0 - MARGIN };
    if median(sorted) < bar && upper < bar + MARGIN {
        Verdict::Better
    } else if lower > bar || contest.len() == PAIRS_MAX {
        Verdict::NoBetter
    } else {
        Verdict::Open
    }
}

/// Sorts the values into `space`, which holds at least as many.
pub(super) fn sort<'a>(values: &[f32], space: &'a mut [f32]) -> &'a [f32] {
    let sorted = &mut space[..values.len()];
    sorted.copy_from_slice(values);
    sorted.sort_unstable_by(f32::total_cmp);
    sorted
}

/// The middle value; 1 if there are none.
pub(super) fn median(sorted: &[f32]) -> f32 {
    match sorted {
        [] => 1.0,
        _ => (sorted[(sorted.len() - 1) / 2] + sorted[sorted.len() / 2]) / 2.0,
    }
}

/// Bounds of the median by the sign test: the ranks three standard errors from the middle. Each bound is wrong in 0.2 % of
/// looks (binomial distribution, 9 to 47 pairs), whatever the shape of the noise.
fn interval(sorted: &[f32]) -> (f32, f32) {
    let count = sorted.len() as f32;
    let rank = ((count - 3.0 * count.sqrt()) / 2.0).max(0.0) as usize;
    (sorted[rank], sorted[sorted.len() - 1 - rank])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a trial with the cost of each call; returns the calls made for each side, and the verdict.
    fn run(mut cost: impl FnMut(Side, usize) -> f64, preferred: bool) -> (usize, usize, Verdict) {
        let mut trial = Trial::new(1, 15e3);
        let (mut incumbent, mut challenger) = (0, 0);
        loop {
            let side = trial.side();
            let ns = cost(side, incumbent + challenger);
            match side {
                Side::Incumbent => incumbent += 1,
                Side::Challenger => challenger += 1,
            }
            if trial.record(ns, 1.0) == Step::Pair {
                let verdict = trial.verdict(preferred);
                if verdict != Verdict::Open {
                    return (incumbent, challenger, verdict);
                }
            }
        }
    }

    fn by_side(incumbent: f64, challenger: f64) -> impl FnMut(Side, usize) -> f64 {
        move |side, _| if side == Side::Incumbent { incumbent } else { challenger }
    }

    #[test]
    fn what_is_far_off_costs_few_calls() {
        assert_eq!(run(by_side(10.0, 600.0), false), (2, 3, Verdict::MuchSlower));
        assert_eq!(run(by_side(600.0, 10.0), false), (2, 3, Verdict::Better));
    }

    #[test]
    fn the_margin_and_ties() {
        assert_eq!(run(by_side(100.0, 98.0), false).2, Verdict::NoBetter);
        assert_eq!(run(by_side(100.0, 96.0), false).2, Verdict::Better);
        assert_eq!(run(by_side(100.0, 99.9), true).2, Verdict::Better);
        assert_eq!(run(by_side(100.0, 101.0), true).2, Verdict::NoBetter);
    }

    #[test]
    fn the_first_call_of_a_method_is_not_held_against_it() {
        let mut first = true;
        let cold = |side, _| match side {
            Side::Challenger if std::mem::take(&mut first) => 50_000.0,
            Side::Challenger => 90.0,
            Side::Incumbent => 100.0,
        };
        assert_eq!(run(cold, false).2, Verdict::Better);
    }

    #[test]
    fn a_drift_favours_neither() {
        for slope in [1.002_f64, 0.998] {
            let drift = |side, call| by_side(100.0, 100.0)(side, call) * slope.powi(call as i32);
            assert_eq!(run(drift, false).2, Verdict::NoBetter, "{slope}");
        }
    }

    #[test]
    fn calls_preempted_do_not_decide() {
        let spikes = |side, call| by_side(100.0, 90.0)(side, call) + if call % 97 == 50 { 1e6 } else { 0.0 };
        assert_eq!(run(spikes, false).2, Verdict::Better);
    }

    #[test]
    fn excess_is_what_trying_cost() {
        let mut trial = Trial::new(1, 15e3);
        for ns in [10.0, 100.0, 100.0, 100.0, 10.0] {
            trial.record(ns, 1.0);
        }
        assert_eq!((trial.pairs(), trial.excess_ns), (2, 270.0));
    }

    #[test]
    fn the_interval_holds_the_median() {
        let sorted: Vec<f32> = (0..47).map(|i| i as f32).collect();
        for count in PAIRS_MIN..=PAIRS_MAX {
            let (lower, upper) = interval(&sorted[..count]);
            // One-sided: the chance that a fair coin shows at most `lower` heads in `count` throws.
            let rank = lower as usize;
            let tail: f64 = (0..=rank).map(|k| choose(count, k)).sum::<f64>() / 2_f64.powi(count as i32);
            assert!(tail < 0.0022, "{count}: {tail}");
            assert_eq!(upper as usize, count - 1 - rank);
        }
    }

    fn choose(n: usize, k: usize) -> f64 {
        (0..k).map(|i| (n - i) as f64 / (i + 1) as f64).product()
    }
}
