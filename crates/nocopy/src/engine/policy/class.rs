//! One class of sends: the method in use, the results of other methods, and when the next of them is tried.

use super::METHODS_MAX;
use super::table::Kind;
use super::trial::{GLANCES, Side, Step, Trial, Verdict, median, sort};

/// Between trials, one call in this many is measured. Prime, so that it does not follow a pattern of the sender. Two
/// reads of the clock cost [`CLOCK_NS`], so a call pays under 2 ns.
const SAMPLE_EVERY: u8 = 31;

/// The cost of the two clock reads of a measured call (vDSO, in a virtual machine).
const CLOCK_NS: f64 = 50.0;

/// Calls measured before the first trial: the reference for later costs.
const OPENING_CALLS: u8 = 8;

/// The number of costs remembered for the method in use.
const SAMPLES: usize = OPENING_CALLS as usize;

/// Measured calls that may stay unrecorded in a row (they failed) before a trial is given up.
const UNRECORDED_MAX: u8 = 32;

/// A change of the incumbent's cost by this factor, in [`SAMPLES`] samples in a row, means that the machine or the route changed.
const CHANGED: f32 = 1.5;
const CHANGED_SAMPLES: i8 = 3;

/// The wait of a loser, in the class's own time: first, after being copied, and longest. It doubles each time,
/// and is long enough that this loser's trials cost no more than [`RETRY_SHARE`].
const RETRY_NS: f64 = 20e6;
const RETRY_COPIED_NS: f64 = 100e6;
const RETRY_NS_MAX: f64 = 10e9;
const RETRY_SHARE: f64 = 0.002;

/// A challenger whose first pairs were better than this is compared at once, before the others.
const PROMISING: f32 = 0.7;

/// After this many more completions with "copied" than without, a method is no longer used.
const COPIES_MAX: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Untried,
    /// Nearly as fast in the first pairs, so it is compared after all others were tried briefly.
    Promising,
    NoBetter,
    MuchSlower,
    Copied,
    Unrecorded,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Rival {
    pub(super) outcome: Outcome,
    /// Its cost over that of `against`, in `pairs` pairs; meaningless without pairs.
    pub(super) ratio: f32,
    pub(super) pairs: u8,
    pub(super) against: u8,
    /// Cost of a unit when last in use or tried; 0: not known.
    cost_ns: f32,
    /// Smoothed time until its completions; 0: not known.
    pub(super) held_ns: f32,
    retry_at_ns: f64,
    doublings: u8,
    copies: u8,
}

const UNTRIED: Rival = Rival {
    outcome: Outcome::Untried,
    ratio: 1.0,
    pairs: 0,
    against: 0,
    cost_ns: 0.0,
    held_ns: 0.0,
    retry_at_ns: 0.0,
    doublings: 0,
    copies: 0,
};

pub(super) struct Terms<'a> {
    /// The candidates in order of preference.
    pub(super) order: &'a [u8],
    /// One bit per candidate, set if it is not ruled out; at least one candidate of `order` has it set.
    pub(super) available: u8,
    pub(super) budget: &'a mut Budget,
}

impl Terms<'_> {
    fn is_available(&self, method: u8) -> bool {
        self.available & (1 << method) != 0
    }

    fn rank(&self, method: u8) -> usize {
        self.order.iter().position(|&one| one == method).unwrap_or(usize::MAX)
    }

    fn candidates(&self) -> impl Iterator<Item = u8> {
        self.order.iter().copied().filter(|&method| self.is_available(method))
    }
}

/// What exploring may cost: an initial credit, then a share of the time spent sending. It is one budget for all classes, so
/// exploring costs the same with a thousand peers as with one. Trials start while it has enough for a call.
#[derive(Debug, Clone)]
pub(super) struct Budget {
    credit_ns: f64,
    /// The most that is saved: enough for the dearest call.
    credit_ns_max: f64,
    /// Time spent sending: measured calls, and the estimated cost of the others.
    pub(super) sent_ns: f64,
    /// The part of it spent on slower methods and on clock reads.
    pub(super) explored_ns: f64,
}

impl Budget {
    /// Enough to find three methods that are 60 times as slow as GSO of 44 datagrams.
    const START_NS: f64 = 300e3;
    const SHARE: f64 = 0.01;

    pub(super) fn new() -> Self {
        Self { credit_ns: Self::START_NS, credit_ns_max: Self::START_NS, sent_ns: 0.0, explored_ns: 0.0 }
    }

    fn earn(&mut self, sent_ns: f64) {
        self.sent_ns += sent_ns;
        self.credit_ns = (self.credit_ns + sent_ns * Self::SHARE).min(self.credit_ns_max);
    }

    /// Whether there is enough for a trial by calls that cost so much; if not, it is saved for.
    fn allows(&mut self, call_ns: f64) -> bool {
        self.credit_ns_max = self.credit_ns_max.max(call_ns);
        self.credit_ns >= call_ns
    }

    fn pay(&mut self, ns: f64) {
        self.explored_ns += ns;
        self.credit_ns -= ns;
    }
}

/// Costs of a unit in the calls measured last.
#[derive(Debug, Clone, Default)]
struct Samples {
    ns: [f32; SAMPLES],
    count: usize,
    next: usize,
}

impl Samples {
    fn push(&mut self, ns: f32) {
        self.ns[self.next] = ns;
        self.next = (self.next + 1) % SAMPLES;
        self.count = (self.count + 1).min(SAMPLES);
    }

    fn median(&self) -> Option<f32> {
        (self.count > 0).then(|| median(sort(&self.ns[..self.count], &mut [0.0; SAMPLES])))
    }
}

#[derive(Debug, Clone)]
pub(super) struct Class {
    pub(super) kind: Kind,
    quiet: u8,
    now: u8,
    /// Measured calls in a row that were not recorded.
    unrecorded: u8,
    /// Calls until trials may start.
    opening: u8,
    /// Distinguishes records of this epoch from late ones.
    epoch: u32,
    pub(super) incumbent: u8,
    trial: Option<Trial>,
    samples: Samples,
    reference_ns: f32,
    /// Samples in a row far above `reference_ns`, or, negative, far below.
    off: i8,
    sent_ns: f64,
    pub(super) switches: u32,
    pub(super) rivals: [Rival; METHODS_MAX],
}

impl Class {
    /// A class without measurements that begins with `incumbent`. If that is `known` to be good for other destinations, measuring is not
    /// urgent: most peers are sent little.
    pub(super) fn new(kind: Kind, incumbent: u8, known: bool) -> Self {
        Self {
            kind,
            quiet: if known { SAMPLE_EVERY - 1 } else { 0 },
            now: incumbent,
            unrecorded: 0,
            opening: OPENING_CALLS,
            epoch: 0,
            incumbent,
            trial: None,
            samples: Samples::default(),
            reference_ns: 0.0,
            off: 0,
            sent_ns: 0.0,
            switches: 0,
            rivals: [UNTRIED; METHODS_MAX],
        }
    }

    /// Forgets everything; records of earlier calls count as late.
    pub(super) fn reset(&mut self, incumbent: u8, known: bool) {
        *self = Self { epoch: self.epoch.wrapping_add(1), ..Self::new(self.kind, incumbent, known) };
    }

    /// Takes out the calls that need not be measured: their method, and how many.
    pub(super) fn take_quiet(&mut self) -> (u8, u8) {
        (self.now, std::mem::take(&mut self.quiet))
    }

    /// Returns those that were not made.
    pub(super) fn return_quiet(&mut self, left: u8) {
        self.quiet += left;
    }

    /// The method of a call to be measured, and the epoch to record it for.
    pub(super) fn measured(&mut self) -> (u8, u32) {
        self.unrecorded = self.unrecorded.saturating_add(1);
        if self.unrecorded > UNRECORDED_MAX {
            if let Some(trial) = self.trial.take() {
                self.lose(trial.challenger, Outcome::Unrecorded, RETRY_NS);
            }
            self.opening = 0;
            self.use_incumbent();
        }
        if self.trial.is_none() && self.opening == 0 {
            self.quiet = SAMPLE_EVERY - 1;
        }
        (self.now, self.epoch)
    }

    /// Records the cost of a measured call. `ns` and `units` are above zero.
    pub(super) fn record(&mut self, terms: &mut Terms<'_>, epoch: u32, ns: f64, units: f64) {
        if epoch != self.epoch {
            return;
        }
        self.unrecorded = 0;
        match self.trial.take() {
            Some(trial) => self.record_trial(terms, trial, ns, units),
            None => self.record_incumbent(terms, ns, units),
        }
        if self.trial.is_none() && self.opening == 0 {
            self.begin_trial(terms, units);
        }
    }

    fn record_incumbent(&mut self, terms: &mut Terms<'_>, ns: f64, units: f64) {
        terms.budget.pay(CLOCK_NS);
        self.samples.push((ns / units) as f32);
        let each_ns = self.samples.median().unwrap_or(0.0);
        self.rivals[usize::from(self.incumbent)].cost_ns = each_ns;
        if self.opening > 0 {
            self.opening -= 1;
            self.reference_ns = each_ns;
            self.spend(terms, ns);
        } else {
            // The median, so that a preempted call does not count for all of these.
            self.spend(terms, f64::from(SAMPLE_EVERY) * f64::from(each_ns) * units);
            self.look_for_change((ns / units) as f32);
        }
    }

    fn spend(&mut self, terms: &mut Terms<'_>, ns: f64) {
        self.sent_ns += ns;
        terms.budget.earn(ns);
    }

    fn look_for_change(&mut self, each_ns: f32) {
        let direction = match each_ns / self.reference_ns {
            ratio if ratio > CHANGED => 1,
            ratio if ratio < 1.0 / CHANGED => -1,
            _ => 0,
        };
        self.off = if direction == self.off.signum() { self.off + direction } else { direction };
        if self.off.abs() == CHANGED_SAMPLES {
            self.reopen();
        }
    }

    /// Lets earlier losers be tried again, because the machine has changed.
    fn reopen(&mut self) {
        self.off = 0;
        self.opening = OPENING_CALLS;
        self.quiet = 0;
        self.samples = Samples::default();
        for rival in &mut self.rivals {
            (rival.retry_at_ns, rival.doublings) = (0.0, 0);
            rival.outcome = Outcome::Untried;
        }
    }

    /// Lets a candidate challenge the incumbent, if allowed: first candidates never tried, in order of preference, then the cheapest. While
    /// the budget does not allow it, only candidates that looked better than the incumbent.
    fn begin_trial(&mut self, terms: &mut Terms<'_>, units: f64) {
        let rival = |method: u8| &self.rivals[usize::from(method)];
        let each_ns = rival(self.incumbent).cost_ns;
        let looked_better = |one: &Rival| one.outcome == Outcome::Promising && one.cost_ns < each_ns;
        let call_ns = f64::from(each_ns) * units;
        let is_allowed = self.ready(terms).next().is_some() && terms.budget.allows(call_ns);
        let payable = |&method: &u8| is_allowed || looked_better(rival(method));
        let ready = self.ready(terms).filter(payable);
        let next = ready.min_by(|&one, &other| rival(one).cost_ns.total_cmp(&rival(other).cost_ns));
        if let Some(challenger) = next {
            self.trial = Some(Trial::new(challenger, call_ns));
            self.epoch = self.epoch.wrapping_add(1);
            self.quiet = 0;
        }
    }

    /// Candidates that may challenge.
    fn ready(&self, terms: &Terms<'_>) -> impl Iterator<Item = u8> {
        let is_ready = |&method: &u8| self.rivals[usize::from(method)].retry_at_ns <= self.sent_ns;
        terms.candidates().filter(|&method| method != self.incumbent).filter(is_ready)
    }

    /// Whether to try others first: the challenger is close, and an untried one may be far better.
    fn is_to_be_parked(&self, terms: &Terms<'_>, trial: &Trial) -> bool {
        let untried = |method| self.rivals[usize::from(method)].outcome == Outcome::Untried;
        let glanced = trial.pairs() == GLANCES && trial.ratio() > PROMISING;
        glanced && self.ready(terms).any(|one| one != trial.challenger && untried(one))
    }

    fn record_trial(&mut self, terms: &mut Terms<'_>, mut trial: Trial, ns: f64, units: f64) {
        self.spend(terms, ns);
        let excess_ns = trial.excess_ns;
        let step = trial.record(ns, units);
        terms.budget.pay(CLOCK_NS + trial.excess_ns - excess_ns);
        if step != Step::Same {
            self.epoch = self.epoch.wrapping_add(1);
        }
        let preferred = terms.rank(trial.challenger) < terms.rank(self.incumbent);
        let verdict = if step == Step::Pair { trial.verdict(preferred) } else { Verdict::Open };
        match verdict {
            Verdict::Open if step == Step::Pair && self.is_to_be_parked(terms, &trial) => {
                self.compared(trial.challenger, self.incumbent, trial.ratio(), trial.pairs());
                self.rivals[usize::from(trial.challenger)].outcome = Outcome::Promising;
                self.use_incumbent();
            }
            Verdict::Open => {
                self.now = if trial.side() == Side::Incumbent { self.incumbent } else { trial.challenger };
                self.trial = Some(trial);
            }
            Verdict::Better => self.win(&trial),
            Verdict::NoBetter => self.finish_trial(&trial, Outcome::NoBetter),
            Verdict::MuchSlower => self.finish_trial(&trial, Outcome::MuchSlower),
        }
    }

    fn win(&mut self, trial: &Trial) {
        let loser = std::mem::replace(&mut self.incumbent, trial.challenger);
        self.compared(loser, trial.challenger, 1.0 / trial.ratio(), trial.pairs());
        self.lose(loser, Outcome::NoBetter, RETRY_NS);
        self.take_over();
    }

    fn finish_trial(&mut self, trial: &Trial, outcome: Outcome) {
        self.compared(trial.challenger, self.incumbent, trial.ratio(), trial.pairs());
        self.lose(trial.challenger, outcome, RETRY_NS.max(trial.excess_ns / RETRY_SHARE));
        self.use_incumbent();
    }

    fn compared(&mut self, method: u8, against: u8, ratio: f32, pairs: usize) {
        let cost_ns = self.rivals[usize::from(against)].cost_ns * ratio;
        let rival = &mut self.rivals[usize::from(method)];
        (rival.against, rival.ratio, rival.pairs) = (against, ratio, pairs as u8);
        if cost_ns > 0.0 {
            rival.cost_ns = cost_ns;
        }
    }

    /// Makes `method`, which lost, wait.
    fn lose(&mut self, method: u8, outcome: Outcome, wait_ns: f64) {
        let rival = &mut self.rivals[usize::from(method)];
        rival.outcome = outcome;
        rival.retry_at_ns = self.sent_ns + (wait_ns * f64::from(1_u32 << rival.doublings)).min(RETRY_NS_MAX);
        rival.doublings = (rival.doublings + 1).min(16);
    }

    fn use_incumbent(&mut self) {
        self.trial = None;
        self.now = self.incumbent;
        self.epoch = self.epoch.wrapping_add(1);
        self.unrecorded = 0;
        self.quiet = SAMPLE_EVERY - 1;
    }

    /// Restarts the measurements for a new incumbent.
    fn take_over(&mut self) {
        self.use_incumbent();
        self.switches = self.switches.wrapping_add(1);
        self.opening = OPENING_CALLS;
        self.quiet = 0;
        self.off = 0;
        self.samples = Samples::default();
    }

    /// A completion of a zero-copy send.
    pub(super) fn completed(&mut self, terms: &Terms<'_>, method: u8, copied: bool, held_ns: Option<f32>) {
        let rival = &mut self.rivals[usize::from(method)];
        if let Some(ns) = held_ns {
            rival.held_ns = if rival.held_ns > 0.0 { rival.held_ns + (ns - rival.held_ns) / 8.0 } else { ns };
        }
        if !copied {
            rival.copies = rival.copies.saturating_sub(1);
            return;
        }
        rival.copies = (rival.copies + 1).min(COPIES_MAX);
        if rival.copies == COPIES_MAX {
            self.end_turn(terms, method);
        }
    }

    /// Handles a refusal of a method where another may work, as if the send had been copied. The method is tried again after growing waits,
    /// because routes change.
    pub(super) fn refused(&mut self, terms: &Terms<'_>, method: u8) {
        self.rivals[usize::from(method)].copies = COPIES_MAX;
        self.end_turn(terms, method);
    }

    /// Removes a method whose sends are copied or refused.
    fn end_turn(&mut self, terms: &Terms<'_>, method: u8) {
        let challenges = self.trial.as_ref().is_some_and(|trial| trial.challenger == method);
        let rival = &mut self.rivals[usize::from(method)];
        let untried = rival.outcome == Outcome::Untried;
        // The method was ruled out while this call was in progress: that must not double the wait.
        if !(challenges || method == self.incumbent || untried) {
            return;
        }
        // The next completion with "copied" then suffices.
        rival.copies = COPIES_MAX - 1;
        if challenges {
            self.use_incumbent();
        } else if method == self.incumbent && !self.give_way(terms, Outcome::Copied) {
            return;
        }
        self.lose(method, Outcome::Copied, RETRY_COPIED_NS);
    }

    pub(super) fn ruled_out(&mut self, terms: &Terms<'_>) {
        if self.trial.as_ref().is_some_and(|trial| !terms.is_available(trial.challenger)) {
            self.use_incumbent();
        }
        if !terms.is_available(self.incumbent) {
            // A copying method is better than an unavailable one.
            let _ = self.give_way(terms, Outcome::Copied) || self.give_way(terms, Outcome::Unrecorded);
        }
    }

    /// Replaces the incumbent by the method that was cheapest when last tried, except those with outcome `except`; false if there is none.
    fn give_way(&mut self, terms: &Terms<'_>, except: Outcome) -> bool {
        let rival = |method: u8| self.rivals[usize::from(method)];
        let cost = |method: &u8| if rival(*method).cost_ns > 0.0 { rival(*method).cost_ns } else { f32::MAX };
        let others = terms.candidates().filter(|&one| one != self.incumbent && rival(one).outcome != except);
        let Some(next) = others.min_by(|a, b| cost(a).total_cmp(&cost(b))) else { return false };
        self.incumbent = next;
        self.take_over();
        for rival in self.rivals.iter_mut().filter(|rival| rival.outcome != Outcome::Copied) {
            rival.retry_at_ns = 0.0;
        }
        true
    }

    /// The cost of a unit: the median of the last measured calls.
    pub(super) fn cost_ns(&self) -> Option<f32> {
        self.samples.median()
    }

    pub(super) fn challenger(&self) -> Option<u8> {
        self.trial.as_ref().map(|trial| trial.challenger)
    }

    /// Whether calls were measured and led to a choice.
    pub(super) fn is_settled(&self) -> bool {
        self.opening == 0 && self.trial.is_none()
    }
}
