//! One class of sends: the method in use, what is known of the others, and when the next of them is compared.

use super::kind::WorkKind;
use super::pair::{PairProgress, PairedComparison, epoch_calls};
use super::{ExclusionReason, METHODS_MAX};
use crate::events;

/// Between comparisons, one call in this many is measured. Prime, so that it does not follow a pattern of the
/// sender. Two reads of the clock cost [`CLOCK_NS`], so a call pays under 2 ns.
const SAMPLE_EVERY: u8 = 31;

/// The cost of the two clock reads of a measured call (vDSO, in a virtual machine).
const CLOCK_NS: f64 = 50.0;

/// The number of costs remembered for the method in use.
const SAMPLES: usize = 8;

/// Measured calls that may stay unrecorded in a row (they failed) before a comparison is given up.
const UNRECORDED_MAX: u8 = 32;

/// A change of the incumbent's cost by this factor, in the median of [`SAMPLES`], means that the machine or
/// the route changed.
const CHANGED: f32 = 1.5;
/// No machine changes by this factor: sends take another route, where the kernel may not copy.
const OTHER_ROUTE: f32 = 3.0;

/// A rival is compared again when a quarter of the class's time has passed, and at least this...
const RETRY_NS: f64 = 100e3;
/// ... but no later than this, ...
const RETRY_NS_MAX: f64 = 20e6;
/// ... except after one that cost much: then once those with one rival cost no more than this share, ...
const RETRY_SHARE: f64 = 0.002;
/// ... at the latest then, as it may have been a stall that cost so much.
const RETRY_COSTLY_NS_MAX: f64 = 10e9;
/// The wait of a rival that is copied or refused: first, and longest. It doubles each time.
const RETRY_COPIED_NS: f64 = 100e6;
const RETRY_COPIED_NS_MAX: f64 = 10e9;

/// Rivals that differ by this (a logarithm: 1.3x) are compared by single calls.
const FAR: f32 = 0.26;
/// A rival must be better by this, so that noise does not make the choice flap.
const MARGIN: f32 = 0.02;
/// What is expected of chance, and the most that one pair counts, in spreads.
const DRIFT: f32 = 0.2;
const STEP_MAX: f32 = 2.0;
/// A rival with this score replaces the incumbent.
const WON: f32 = 6.0;
/// The spread of pairs: before any was seen, and the least.
const SPREAD: f32 = 0.3;
const SPREAD_MIN: f32 = 0.02;

/// After this many more completions with "copied" than without, a method is no longer used.
const COPIES_MAX: u8 = 3;

/// Why a method is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExclusionCause {
    /// Not tried yet.
    Untried,
    /// It may be better: to be compared again.
    Promising,
    Challenging,
    /// Not faster by 2 % or more.
    NoBetter,
    /// Slower by 1.3x or more.
    MuchSlower,
    /// Its completions report that the kernel copied, or it was refused.
    Copied,
    /// Its calls failed, so that nothing could be measured.
    Unrecorded,
    /// It cannot be used at all.
    RuledOut(ExclusionReason),
}

/// What is known of a method beside the incumbent.
#[derive(Debug, Clone, Copy)]
pub(super) struct RivalState {
    pub(super) why: ExclusionCause,
    /// Pairs compared with the incumbent, or the one before it.
    pub(super) pairs: u32,
    /// Natural logarithm of its cost over the incumbent's, smoothed, and how much pairs differ from that.
    log_ratio: f32,
    spread: f32,
    /// How sure it is that the rival is better: a cumulative sum (Page 1954, "Continuous inspection
    /// schemes").
    score: f32,
    /// Smoothed time until its completions; 0: not known.
    pub(super) held_ns: f32,
    /// When it may be compared again, in the class's time.
    due_ns: f64,
    doublings: u8,
    copies: u8,
}

const UNTRIED: RivalState = RivalState {
    why: ExclusionCause::Untried,
    pairs: 0,
    log_ratio: 0.0,
    spread: SPREAD,
    score: 0.0,
    held_ns: 0.0,
    due_ns: 0.0,
    doublings: 0,
    copies: 0,
};

impl RivalState {
    /// Its cost over the incumbent's.
    pub(super) fn cost_ratio(&self) -> f32 {
        self.log_ratio.exp()
    }

    fn is_clearly_different(&self) -> bool {
        self.log_ratio.abs() > FAR
    }

    /// Learns from a pair.
    fn add_pair(&mut self, log_ratio: f32) {
        let off = log_ratio - self.log_ratio;
        match self.pairs {
            0 => self.log_ratio = log_ratio,
            // Either method may have been interrupted in one of the first two.
            1 if log_ratio.abs() < self.log_ratio.abs() => self.log_ratio = log_ratio,
            1 => {}
            pairs => {
                let weight = 1.0 / (pairs.min(7) + 1) as f32;
                self.log_ratio += (off * weight).clamp(-self.spread, self.spread);
                self.spread += (off.abs().min(4.0 * self.spread) - self.spread) / 8.0;
                self.spread = self.spread.max(SPREAD_MIN);
            }
        }
        let step = (-log_ratio - MARGIN) / self.spread - DRIFT;
        self.score = (self.score + step.clamp(-STEP_MAX, STEP_MAX)).max(0.0);
        self.pairs = self.pairs.saturating_add(1);
        self.why = if self.score > 0.0 {
            ExclusionCause::Promising
        } else if self.log_ratio > FAR {
            ExclusionCause::MuchSlower
        } else {
            ExclusionCause::NoBetter
        };
    }
}

pub(super) struct ClassContext<'a> {
    /// The candidates in order of preference.
    pub(super) order: &'a [u8],
    /// One bit per candidate, set if it is not ruled out; at least one candidate of `order` has it set.
    pub(super) available: u8,
    pub(super) budget: &'a mut ExplorationBudget,
}

impl ClassContext<'_> {
    fn is_available(&self, method: u8) -> bool {
        self.available & (1 << method) != 0
    }

    fn available_candidates(&self) -> impl Iterator<Item = u8> {
        self.order.iter().copied().filter(|&method| self.is_available(method))
    }
}

/// What exploring may cost: an initial credit, then a share of the time spent sending. It is one budget for
/// all classes, so exploring costs the same with a thousand peers as with one.
#[derive(Debug, Clone)]
pub(super) struct ExplorationBudget {
    credit_ns: f64,
    /// The most that is saved: enough for the call that costs most.
    credit_ns_max: f64,
    /// Time spent sending: measured calls, and the estimated cost of the others.
    pub(super) sent_ns: f64,
    /// The part of it spent on slower methods and on clock reads.
    pub(super) explored_ns: f64,
}

impl ExplorationBudget {
    /// Enough to find three methods that are 60 times as slow as GSO of 44 datagrams.
    const START_NS: f64 = 300e3;
    /// At least so many calls of the first method.
    const START_CALLS: f64 = 16.0;
    /// A call that took longer was interrupted.
    const START_CALL_NS_MAX: f64 = 2e6;
    const SHARE: f64 = 0.008;

    pub(super) fn new() -> Self {
        Self { credit_ns: Self::START_NS, credit_ns_max: Self::START_NS, sent_ns: 0.0, explored_ns: 0.0 }
    }

    fn add_credit(&mut self, sent_ns: f64) {
        self.sent_ns += sent_ns;
        self.credit_ns = (self.credit_ns + sent_ns * Self::SHARE).min(self.credit_ns_max);
    }

    /// Whether there is enough for a comparison that costs so much; if not, it is saved for.
    fn can_afford(&mut self, excess_ns: f64) -> bool {
        self.credit_ns_max = self.credit_ns_max.max(excess_ns);
        excess_ns <= 0.0 || self.credit_ns >= excess_ns
    }

    /// Gives credit for the first class, whose calls cost so much.
    fn grant_initial_credit(&mut self, call_ns: f64) {
        if self.sent_ns == 0.0 {
            let calls_ns = call_ns.min(Self::START_CALL_NS_MAX) * Self::START_CALLS;
            self.credit_ns_max = self.credit_ns_max.max(calls_ns);
            self.credit_ns = self.credit_ns_max;
        }
    }

    /// The debt is limited: a stall during a comparison must not prevent later ones.
    fn charge(&mut self, ns: f64) {
        self.explored_ns += ns;
        self.credit_ns = (self.credit_ns - ns).max(-self.credit_ns_max);
    }
}

/// Costs of a unit in the calls of the incumbent measured last.
#[derive(Debug, Clone, Default)]
struct CostSamples {
    ns: [f32; SAMPLES],
    count: usize,
    /// The median when rivals were last made due.
    reference_ns: f32,
}

impl CostSamples {
    fn push(&mut self, ns: f32) {
        self.ns[self.count % SAMPLES] = ns;
        self.count = self.count.wrapping_add(1);
    }

    fn median(&self) -> Option<f32> {
        let count = self.count.min(SAMPLES);
        let mut sorted = self.ns;
        sorted[..count].sort_unstable_by(f32::total_cmp);
        (count > 0).then(|| (sorted[(count - 1) / 2] + sorted[count / 2]) / 2.0)
    }

    /// The factor by which the median is off the reference, if that is far: the median is the reference then.
    /// The first one is no change.
    fn reference_change(&mut self) -> Option<f32> {
        if !self.count.is_multiple_of(SAMPLES) {
            return None;
        }
        let median = self.median()?;
        let factor = (median / self.reference_ns).max(self.reference_ns / median);
        if factor < CHANGED {
            return None;
        }
        let before = std::mem::replace(&mut self.reference_ns, median);
        (before > 0.0).then_some(factor)
    }
}

#[derive(Debug, Clone)]
pub(super) struct ClassState {
    pub(super) kind: WorkKind,
    quiet: u8,
    now: u8,
    /// Measured calls in a row that were not recorded.
    unrecorded: u8,
    /// Distinguishes records of this epoch from late ones.
    epoch: u32,
    pub(super) incumbent: u8,
    /// The incumbent that events have reported.
    pub(super) reported: u8,
    pair: Option<PairedComparison>,
    samples: CostSamples,
    sent_ns: f64,
    pub(super) switches: u32,
    pub(super) rivals: [RivalState; METHODS_MAX],
}

impl ClassState {
    /// A class without measurements that begins with `incumbent`. If that is `known` to be good for other
    /// destinations, measuring is not urgent: most peers are sent little.
    pub(super) fn new(kind: WorkKind, incumbent: u8, known: bool) -> Self {
        Self {
            kind,
            quiet: if known { SAMPLE_EVERY - 1 } else { 0 },
            now: incumbent,
            unrecorded: 0,
            epoch: 0,
            incumbent,
            reported: incumbent,
            pair: None,
            samples: CostSamples::default(),
            sent_ns: 0.0,
            switches: 0,
            rivals: [UNTRIED; METHODS_MAX],
        }
    }

    /// Forgets everything but what events have reported; records of earlier calls count as late.
    pub(super) fn reset(&mut self, incumbent: u8, known: bool) {
        let Self { kind, epoch, reported, .. } = *self;
        *self = Self { epoch: epoch.wrapping_add(1), reported, ..Self::new(kind, incumbent, known) };
    }

    /// Takes out the calls that need not be measured: their method, and how many.
    pub(super) fn take_unmeasured_calls(&mut self) -> (u8, u8) {
        (self.now, std::mem::take(&mut self.quiet))
    }

    /// Returns those that were not made.
    pub(super) fn return_unmeasured_calls(&mut self, left: u8) {
        // No overflow: they were taken out of this class, and it gets new ones only when none are out.
        self.quiet += left;
    }

    /// The method of a call to be measured, and the epoch to record it for.
    pub(super) fn start_measured_call(&mut self) -> (u8, u32) {
        self.unrecorded = self.unrecorded.saturating_add(1);
        if self.unrecorded > UNRECORDED_MAX {
            if let Some(challenger) = self.challenger() {
                self.exclude_method(challenger, ExclusionCause::Unrecorded);
            }
            self.use_incumbent();
        }
        if self.pair.is_none() {
            self.quiet = SAMPLE_EVERY - 1;
        }
        (self.now, self.epoch)
    }

    /// Records the cost of a measured call. `ns` and `units` are above zero.
    pub(super) fn record(&mut self, terms: &mut ClassContext<'_>, epoch: u32, ns: f64, units: f64) {
        if epoch != self.epoch {
            return;
        }
        self.unrecorded = 0;
        terms.budget.grant_initial_credit(ns);
        terms.budget.charge(CLOCK_NS);
        let each_ns = (ns / units) as f32;
        if self.now == self.incumbent {
            self.samples.push(each_ns);
            if let Some(factor) = self.samples.reference_change() {
                self.make_rivals_due(factor >= OTHER_ROUTE);
            }
        }
        match self.pair.take() {
            Some(pair) => {
                self.add_sent_time(terms, ns);
                self.record_pair(terms, pair, ns, units);
            }
            // The median, so that a preempted call does not count for all of these.
            None => {
                let typical_ns = self.samples.median().unwrap_or(each_ns);
                self.add_sent_time(terms, f64::from(SAMPLE_EVERY) * f64::from(typical_ns) * units);
            }
        }
        if self.pair.is_none() {
            self.begin_pair(terms, units);
        }
    }

    fn add_sent_time(&mut self, terms: &mut ClassContext<'_>, ns: f64) {
        self.sent_ns += ns;
        terms.budget.add_credit(ns);
    }

    fn record_pair(&mut self, terms: &mut ClassContext<'_>, mut pair: PairedComparison, ns: f64, units: f64) {
        match pair.record(ns, units) {
            PairProgress::Same => self.pair = Some(pair),
            PairProgress::Turn => {
                self.begin_epoch(pair.challenger);
                self.pair = Some(pair);
            }
            PairProgress::Done => {
                let (log_ratio, excess_ns) = pair.comparison_result();
                terms.budget.charge(excess_ns);
                self.use_incumbent();
                self.conclude_pair(pair.challenger, log_ratio, excess_ns);
            }
        }
    }

    /// Learns from a complete pair: the challenger wins, goes on, or waits.
    fn conclude_pair(&mut self, challenger: u8, log_ratio: f32, excess_ns: f64) {
        let (sent_ns, rival) = (self.sent_ns, &mut self.rivals[usize::from(challenger)]);
        if rival.why == ExclusionCause::Unrecorded {
            rival.doublings = 0;
        }
        rival.add_pair(log_ratio);
        if rival.score >= WON {
            // What was smoothed may be of an earlier mood of the machine.
            rival.log_ratio = rival.log_ratio.min(-MARGIN);
            self.make_incumbent(challenger);
        } else if rival.score == 0.0 && rival.pairs > 1 {
            let latest_ns = (excess_ns / RETRY_SHARE).clamp(RETRY_NS_MAX, RETRY_COSTLY_NS_MAX);
            rival.due_ns = sent_ns + (sent_ns / 4.0).clamp(RETRY_NS, latest_ns);
        }
    }

    /// Lets a rival challenge the incumbent: those never compared first, in order of preference, then the
    /// cheapest. If the budget does not allow the first, it is saved for, and one that should cost nothing
    /// may go before.
    fn begin_pair(&mut self, terms: &mut ClassContext<'_>, units: f64) {
        let rival = |method: u8| &self.rivals[usize::from(method)];
        let due = |one: &u8| *one != self.incumbent && rival(*one).due_ns <= self.sent_ns;
        let order = |one: u8| if rival(one).pairs == 0 { f32::NEG_INFINITY } else { rival(one).log_ratio };
        let by_order = |one: &u8, other: &u8| order(*one).total_cmp(&order(*other));
        let Some(mut challenger) = terms.available_candidates().filter(due).min_by(by_order) else { return };
        let Some(each_ns) = self.samples.median() else { return };
        let call_ns = f64::from(each_ns) * units;
        let calls = |method: u8| {
            let is_near = rival(method).pairs > 1 && !rival(method).is_clearly_different();
            if is_near { epoch_calls(call_ns) } else { 1 }
        };
        let excess_ns = |method: u8| {
            let excess =
                if rival(method).pairs == 0 { 1.0 } else { f64::from(rival(method).cost_ratio()) - 1.0 };
            f64::from(calls(method) + 1) * (call_ns * excess + 2.0 * CLOCK_NS)
        };
        if !terms.budget.can_afford(excess_ns(challenger)) {
            let free = terms.available_candidates().filter(due).filter(|&one| excess_ns(one) <= 0.0);
            let Some(other) = free.min_by(by_order) else { return };
            challenger = other;
        }
        self.pair = Some(PairedComparison::new(challenger, calls(challenger)));
        self.begin_epoch(self.incumbent);
    }

    fn begin_epoch(&mut self, method: u8) {
        self.now = method;
        self.epoch = self.epoch.wrapping_add(1);
        self.unrecorded = 0;
        self.quiet = 0;
    }

    fn use_incumbent(&mut self) {
        self.pair = None;
        self.begin_epoch(self.incumbent);
        self.quiet = SAMPLE_EVERY - 1;
    }

    /// Makes `method` the incumbent, and measures what is known of the others from its cost.
    fn make_incumbent(&mut self, method: u8) {
        let RivalState { log_ratio, pairs, .. } = self.rivals[usize::from(method)];
        let base = if pairs > 0 { log_ratio } else { 0.0 };
        for rival in &mut self.rivals {
            rival.log_ratio -= base;
            rival.score = 0.0;
        }
        let former = &mut self.rivals[usize::from(self.incumbent)];
        *former = RivalState { why: ExclusionCause::NoBetter, log_ratio: -base, pairs, ..*former };
        self.incumbent = method;
        self.switches = self.switches.wrapping_add(1);
        self.samples = CostSamples::default();
        self.use_incumbent();
        self.quiet = 0;
    }

    /// Lets rivals be compared again, because the machine has changed, or `all`, because the route has: also
    /// those that are excluded.
    fn make_rivals_due(&mut self, all: bool) {
        let due = self.rivals.iter_mut().filter(|rival| all || rival.doublings == 0);
        due.for_each(|rival| rival.due_ns = 0.0);
    }

    /// Makes a method that is copied, refused or not recorded wait.
    fn exclude_method(&mut self, method: u8, why: ExclusionCause) {
        let rival = &mut self.rivals[usize::from(method)];
        // The shift is at most 16 (below).
        let wait_ns = RETRY_COPIED_NS * f64::from(1_u32 << rival.doublings);
        rival.due_ns = self.sent_ns + wait_ns.min(RETRY_COPIED_NS_MAX);
        rival.doublings = (rival.doublings + 1).min(16);
        (rival.why, rival.score) = (why, 0.0);
    }

    /// A completion of a zero-copy send.
    pub(super) fn record_completion(
        &mut self,
        terms: &ClassContext<'_>,
        method: u8,
        copied: bool,
        held_ns: Option<f32>,
    ) {
        let rival = &mut self.rivals[usize::from(method)];
        if let Some(ns) = held_ns {
            rival.held_ns = if rival.held_ns > 0.0 { rival.held_ns + (ns - rival.held_ns) / 8.0 } else { ns };
        }
        if !copied {
            rival.copies = rival.copies.saturating_sub(1);
            rival.doublings = 0;
            return;
        }
        rival.copies = (rival.copies + 1).min(COPIES_MAX);
        if rival.copies == COPIES_MAX {
            self.stop_using(terms, method);
        }
    }

    /// Handles a refusal of a method where another may work, as if the send had been copied. The method is
    /// tried again after growing waits, because routes change.
    pub(super) fn record_refusal(&mut self, terms: &ClassContext<'_>, method: u8) {
        self.rivals[usize::from(method)].copies = COPIES_MAX;
        self.stop_using(terms, method);
    }

    /// Removes a method whose sends are copied or refused.
    fn stop_using(&mut self, terms: &ClassContext<'_>, method: u8) {
        let challenges = self.challenger() == Some(method);
        let rival = &mut self.rivals[usize::from(method)];
        // The method was ruled out while this call was in progress: that must not double the wait.
        if rival.why == ExclusionCause::Copied && rival.due_ns > self.sent_ns && method != self.incumbent {
            return;
        }
        // The next completion with "copied" then suffices.
        rival.copies = COPIES_MAX - 1;
        if challenges {
            self.use_incumbent();
        } else if method == self.incumbent && !self.replace_incumbent(terms, ExclusionCause::Copied) {
            return;
        }
        self.exclude_method(method, ExclusionCause::Copied);
    }

    pub(super) fn replace_ruled_out(&mut self, terms: &ClassContext<'_>) {
        if self.challenger().is_some_and(|challenger| !terms.is_available(challenger)) {
            self.use_incumbent();
        }
        if !terms.is_available(self.incumbent) {
            // A copying method is better than an unavailable one.
            let _ = self.replace_incumbent(terms, ExclusionCause::Copied)
                || self.replace_incumbent(terms, ExclusionCause::Unrecorded);
        }
    }

    /// Replaces the incumbent by the method that was cheapest when last compared, except those that are out
    /// because of `except`; false if there is none.
    fn replace_incumbent(&mut self, terms: &ClassContext<'_>, except: ExclusionCause) -> bool {
        let rival = |method: u8| &self.rivals[usize::from(method)];
        let others =
            terms.available_candidates().filter(|&one| one != self.incumbent && rival(one).why != except);
        let cost = |method: u8| if rival(method).pairs > 0 { rival(method).log_ratio } else { f32::MAX };
        let Some(next) = others.min_by(|&a, &b| cost(a).total_cmp(&cost(b))) else { return false };
        self.make_incumbent(next);
        self.make_rivals_due(false);
        true
    }

    /// Whether the incumbent is another than events have reported; never, if there are no events.
    #[inline]
    pub(super) fn has_unreported_change(&self) -> bool {
        events::ENABLED && self.incumbent != self.reported
    }

    pub(super) fn set_reported(&mut self) {
        self.reported = self.incumbent;
    }

    /// The cost of a unit: the median of the last measured calls.
    pub(super) fn cost_ns(&self) -> Option<f32> {
        self.samples.median()
    }

    pub(super) fn challenger(&self) -> Option<u8> {
        self.pair.as_ref().map(|pair| pair.challenger)
    }

    /// Whether calls were measured, and no other method is being compared.
    pub(super) fn is_settled(&self) -> bool {
        self.samples.count >= SAMPLES && self.pair.is_none()
    }
}
