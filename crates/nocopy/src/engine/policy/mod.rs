//! Finds the fastest of several ways to send, by measuring while sending.
//!
//! No table of thresholds is right for every machine: the same call is the fastest to one destination and the
//! slowest to another, because the layers below the socket differ (a card that segments, a bridge, a local
//! receiver). So a [`Policy`] measures what calls cost, separately for each *class* of sends: a destination,
//! a size in bytes, a count of units. The caller defines the unit: a datagram over UDP, a page's worth of a
//! stream over TCP. In each class one method is the incumbent; from time to time another challenges it:
//!
//! * A comparison is a pair of short epochs, because the speed of a shared machine drifts by 2x: some calls
//!   of the one, then as many of the other. A single call each while they differ by 1.3x or more or nothing
//!   is known, else 8 to 32.
//! * Each pair adds to a cumulative sum (Page 1954, "Continuous inspection schemes"), which grows while the
//!   challenger is better by 2 % and more, and is never below zero. While it is above zero the next pair
//!   follows; when it is high enough, the challenger is the incumbent.
//! * When it is zero the challenger rests for a quarter of the *time spent sending* in this class: at most 20
//!   ms, unless it is so slow that a comparison costs much; then until that is 0.2 % of the time. Measuring
//!   this needs no clock, and stops while nothing is sent.
//! * All comparisons together are paid from one budget: 0.3 ms or 16 calls at first, then 0.8 % of the time
//!   spent sending. One begins if there is enough for it.
//! * When the cost of the incumbent changes by 1.5x for long, the machine has changed: no challenger rests.
//!   Excluded ones rest on, unless it changes by 3x: that is another route.
//! * A zero-copy method whose completions report *copied* is excluded, for this destination and size, and
//!   tried again after 0.1 s of sending, then 0.2 s, and so on up to 10 s.
//!
//! Otherwise one call in 31 is measured, and choosing costs a few nanoseconds. The policy is sans-I/O: it
//! does not know what a method is, reads no clock and draws no random numbers. The caller asks
//! ([`Policy::choose`]), sends, and reports the cost ([`Policy::record`]).

use std::fmt;
use std::time::Duration;

use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence};

mod class;
mod explain;
mod kind;
mod pair;
#[cfg(test)]
mod simulation;
mod table;
#[cfg(test)]
mod tests;

use class::{ClassContext, ExplorationBudget};
use kind::WorkKind;
use table::ClassTable;

pub(crate) use explain::{PolicyExplanation, WorkUnit};

pub(crate) const METHODS_MAX: usize = 8;

/// The first wait of a method that is out for a temporary reason, in time spent sending; it doubles each
/// time.
const TEMPORARY_NS: f64 = 100e6;
const TEMPORARY_NS_MAX: f64 = 60e9;

const NO_MEMORY: &str = "the kernel had no memory to remember zero-copy sends by (ENOBUFS): raise 'sysctl net.core.optmem_max', or \
                         'ulimit -l' where the process has no CAP_IPC_LOCK";

/// What one choice sends or receives: a number of units of one size. Costs are compared per unit.
///
/// | | a unit is | `bytes` are those of |
/// |---|---|---|
/// | UDP | a datagram | one datagram's payload |
/// | TCP | a page's worth of the stream, 4 KiB | the whole write; a page where writes are not told apart |
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    /// A small number the caller gives to each destination, from 0. Some 256 destinations have separate
    /// classes; if there are more, the busiest ones have, and the others share classes. A stream has only one
    /// destination.
    pub destination: u32,
    /// The size that decides which method is fastest: work of different sizes is measured separately.
    pub bytes: u32,
    /// Units.
    pub count: u32,
}

/// How to send a [`Work`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Choice<M> {
    pub method: M,
    /// Whether the policy needs the cost; otherwise the clock need not be read.
    pub measured: bool,
    class: u16,
    epoch: u32,
}

impl<M> Choice<M> {
    /// A choice made without a policy: nothing is measured.
    pub(crate) fn unmeasured(method: M) -> Self {
        Self { method, measured: false, class: 0, epoch: 0 }
    }
}

/// Why a method cannot be used on this socket, whatever the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExclusionReason {
    /// Not available on this machine; the text is the fact and its cause ("io_uring is disabled by
    /// kernel.io_uring_disabled").
    Unavailable(&'static str),
    /// Not available now; the text is the fact and its cause ("ENOBUFS: net.core.optmem_max is exhausted").
    /// It is tried again after a wait that doubles each time.
    Temporary(&'static str),
}

#[derive(Debug, Clone, Copy)]
struct Exclusion {
    reason: ExclusionReason,
    /// Counted in time spent sending.
    until_ns: f64,
    doublings: u8,
}

/// The choice of one socket among methods of sending: the user's, a plain call where that is known to be
/// best, or measurement.
///
/// Allocates only when a destination or a kind of send is new. One class takes some 600 bytes.
#[derive(Debug)]
pub(crate) struct Policy<M> {
    last: LastChoice,
    table: ClassTable,
    candidates: Candidates<M>,
    budget: ExplorationBudget,
    pinned: bool,
    matter: WorkUnit,
    /// The half whose methods they are: changes are its events.
    half: Option<Half>,
    /// The ordinary call, which copies, and sends a single unit of fewer bytes, without measuring.
    plain: Option<M>,
    small_bytes: u32,
}

/// The work that was chosen for last, and its class.
#[derive(Debug)]
struct LastChoice {
    work: Work,
    kind: WorkKind,
    class: usize,
    /// The method of so many further calls for this work, which need not be measured; taken out of the class.
    method: u8,
    quiet: u8,
}

impl LastChoice {
    fn none() -> Self {
        // No caller's: destinations are numbered from 0.
        let work = Work { destination: u32::MAX, bytes: 0, count: 0 };
        Self { work, kind: WorkKind::of_size_and_count(0, 0), class: usize::MAX, method: 0, quiet: 0 }
    }
}

#[derive(Debug)]
struct Candidates<M> {
    methods: Vec<M>,
    /// Indices in order of preference, in general and for single units.
    order: Vec<u8>,
    singles: Vec<u8>,
    out: [Option<Exclusion>; METHODS_MAX],
}

impl<M: Copy + Eq + fmt::Display> Policy<M> {
    /// A policy that chooses among `methods`.
    ///
    /// They are in order of preference: the first is used until another is measured to be faster. The last is
    /// used if all are ruled out. Panics if the list is empty, or has more than [`METHODS_MAX`] methods.
    pub(crate) fn new(methods: &[M]) -> Self {
        let mut candidates = Candidates {
            methods: Vec::new(),
            order: Vec::new(),
            singles: Vec::new(),
            out: [None; METHODS_MAX],
        };
        candidates.order = candidates.add_methods(methods);
        candidates.singles = candidates.order.clone();
        Self {
            last: LastChoice::none(),
            table: ClassTable::new(),
            candidates,
            budget: ExplorationBudget::new(),
            pinned: false,
            matter: WorkUnit::Datagrams,
            half: None,
            plain: None,
            small_bytes: 0,
        }
    }

    /// Other candidates for work of a single unit, in order of preference. The plain call should be first;
    /// methods that gain nothing from a single unit are best left out. Panics as [`new`](Self::new), where
    /// all methods of both lists count.
    #[must_use]
    pub(crate) fn with_single_methods(mut self, methods: &[M]) -> Self {
        self.candidates.singles = self.candidates.add_methods(methods);
        self
    }

    /// A policy that always chooses `method`; it still measures now and then, to report the cost.
    pub(crate) fn pinned(method: M) -> Self {
        Self { pinned: true, ..Self::new(&[method]) }
    }

    #[must_use]
    pub(crate) fn with_work_unit(mut self, matter: WorkUnit) -> Self {
        self.matter = matter;
        self
    }

    /// Makes later changes events of that half. What it explains from the beginning is none.
    pub(crate) fn report_as(&mut self, half: Half) {
        self.half = Some(half);
    }

    /// Has a single unit of fewer than `small_bytes` sent by `method`, an ordinary call, unless another
    /// method is pinned.
    #[must_use]
    pub(crate) fn with_plain_call(mut self, method: M, small_bytes: u32) -> Self {
        self.plain = Some(method);
        self.small_bytes = if self.pinned { 0 } else { small_bytes };
        self
    }

    /// How to do the next work. Costs some 5 ns while work does not change, 10 ns if only the destination
    /// does, and 15 to 30 ns otherwise (measured).
    #[inline]
    pub(crate) fn choose(&mut self, work: impl Into<Work>) -> Choice<M> {
        let work = work.into();
        if self.is_small(work.count, work.bytes)
            && let Some(plain) = self.plain
        {
            return Choice::unmeasured(plain);
        }
        if work != self.last.work {
            self.switch_work(work);
        }
        if self.is_quiet() {
            self.last.quiet -= 1;
            return self.candidates.unmeasured_choice(self.last.method);
        }
        self.choose_measured()
    }

    #[inline]
    fn is_small(&self, units: u32, bytes: u32) -> bool {
        units <= 1 && bytes < self.small_bytes
    }

    /// Whether the next call for the last work need not be measured: then the method is known.
    #[inline]
    fn is_quiet(&mut self) -> bool {
        self.last.quiet > 0 || self.take_unmeasured_calls()
    }

    fn take_unmeasured_calls(&mut self) -> bool {
        let Some(class) = self.table.class(self.last.class) else { return false };
        (self.last.method, self.last.quiet) = class.take_unmeasured_calls();
        self.last.quiet > 0
    }

    /// Whether this work is done by `method`, and its cost need not be measured.
    #[inline]
    pub(crate) fn uses_unmeasured(&mut self, work: Work, method: M) -> bool {
        if self.is_small(work.count, work.bytes) {
            return self.plain == Some(method);
        }
        let is_used = work == self.last.work
            && self.is_quiet()
            && self.candidates.methods[usize::from(self.last.method)] == method;
        self.last.quiet -= u8::from(is_used);
        is_used
    }

    /// The evidence for bytes that a copying method sent, `units` of that size at a time.
    #[inline]
    pub(crate) fn copied_evidence(&self, units: u32, bytes: usize) -> Evidence {
        Evidence::Copied(match self.pinned {
            true => Cause::SocketCall,
            false if self.is_small(units, saturating_size(bytes)) => Cause::BelowThreshold,
            false => Cause::CopyingIsFaster,
        })
    }

    /// Finds the class of other work.
    fn switch_work(&mut self, work: Work) {
        self.return_unmeasured_calls();
        let last = &mut self.last;
        // Several destinations in turn are mostly sent the same.
        if (work.bytes, work.count) != (last.work.bytes, last.work.count) {
            last.kind = WorkKind::of_size_and_count(work.bytes, work.count);
        }
        let (candidates, sent_ns) = (&self.candidates, self.budget.sent_ns);
        let first = |kind, hint| candidates.first_method(kind, hint, sent_ns);
        last.class = self.table.find_or_add(work.destination, last.kind, first);
        last.work = work;
    }

    fn choose_measured(&mut self) -> Choice<M> {
        let class = self.table.class(self.last.class).expect("found for the last work");
        let (method, epoch) = class.start_measured_call();
        let method = self.candidates.methods[usize::from(method)];
        // The class fits in 16 bits (`ClassTable::find_or_add`).
        Choice { method, measured: true, class: self.last.class as u16, epoch }
    }

    /// Before a class changes, the calls that were taken out are returned to theirs.
    fn return_unmeasured_calls(&mut self) {
        if let (1.., Some(class)) = (self.last.quiet, self.table.class(self.last.class)) {
            class.return_unmeasured_calls(std::mem::take(&mut self.last.quiet));
        }
    }

    /// Records the cost of a measured choice: the elapsed time of its system calls, sending and reaping due
    /// completions. Reaping must not be delayed by more than some calls, or a method looks cheaper than it
    /// is.
    ///
    /// `work` is the work that was sent, perhaps less than announced. A choice that was not measured, or
    /// whose record comes after another method's turn began, is ignored. Failed calls need not be recorded.
    pub(crate) fn record(&mut self, choice: Choice<M>, work: impl Into<Work>, cost: Duration) {
        let work = work.into();
        self.return_unmeasured_calls();
        let Some(class) = self.table.class(usize::from(choice.class)).filter(|_| choice.measured) else {
            return;
        };
        let kind = class.kind;
        let mut terms = self.candidates.class_context(kind, &mut self.budget);
        let ns = (cost.as_nanos() as f64).max(1.0);
        class.record(&mut terms, choice.epoch, ns, f64::from(work.count.max(1)));
        let is_new = class.has_unreported_change();
        if class.is_settled() {
            let method = class.incumbent;
            self.table.set_hint(kind, method);
        }
        if is_new {
            self.report_changes();
        }
    }

    /// Records the completion of a zero-copy send to `destination` of [size](Work::bytes) `bytes`: whether
    /// the kernel copied after all, and how long after sending it came. Completions of sends before
    /// [`forget`](Self::forget) concern the old route and should not be recorded.
    pub(crate) fn record_completion(
        &mut self,
        destination: u32,
        method: M,
        bytes: u32,
        copied: bool,
        after: Option<Duration>,
    ) {
        self.return_unmeasured_calls();
        let Some(method) = self.candidates.index(method) else { return };
        let (candidates, budget) = (&self.candidates, &mut self.budget);
        let held_ns = after.map(|after| after.as_nanos() as f32);
        let mut is_new = false;
        self.table.for_each_of_size(destination, bytes, |class| {
            class.record_completion(&candidates.class_context(class.kind, budget), method, copied, held_ns);
            is_new |= copied && class.has_unreported_change();
        });
        if is_new {
            self.report_changes();
        }
    }

    /// Notes that `method` was refused for `destination` and size `bytes`, where another may work. It is not
    /// used there until a wait is over that doubles each time.
    pub(crate) fn record_refusal(&mut self, destination: u32, method: M, bytes: u32) {
        self.return_unmeasured_calls();
        let Some(method) = self.candidates.index(method) else { return };
        let (candidates, budget) = (&self.candidates, &mut self.budget);
        let mut is_new = false;
        self.table.for_each_of_size(destination, bytes, |class| {
            class.record_refusal(&candidates.class_context(class.kind, budget), method);
            is_new |= class.has_unreported_change();
        });
        if is_new {
            self.report_changes();
        }
    }

    /// Rules `method` out for all destinations. False if some sends have no other method left; they then use
    /// the last candidate.
    pub(crate) fn rule_out(&mut self, method: M, why: ExclusionReason) -> bool {
        self.return_unmeasured_calls();
        let Some(index) = self.candidates.index(method) else { return true };
        let before = self.candidates.exclusion_reason(index);
        self.candidates.rule_out(index, why, self.budget.sent_ns);
        if events::ENABLED
            && let (Some(half), Some(reason)) = (self.half, self.candidates.exclusion_reason(index))
            && before != Some(reason)
        {
            events::method_ruled_out(half, &method, &reason);
        }
        let (candidates, budget) = (&self.candidates, &mut self.budget);
        let mut is_new = false;
        for class in self.table.classes() {
            class.replace_ruled_out(&candidates.class_context(class.kind, budget));
            is_new |= class.has_unreported_change();
        }
        if is_new {
            self.report_changes();
        }
        let (candidates, budget) = (&self.candidates, &self.budget);
        [&candidates.order, &candidates.singles]
            .iter()
            .all(|order| candidates.allowed_methods(order, budget.sent_ns) != 0)
    }

    /// Rules a method out because it is not available on this machine, or for this socket.
    pub(crate) fn mark_unavailable(&mut self, method: M, why: &'static str) {
        self.rule_out(method, ExclusionReason::Unavailable(why));
    }

    /// Rules a zero-copy method out for a while, because it met `ENOBUFS`, and no completion made room.
    pub(crate) fn rule_out_for_enobufs(&mut self, method: M) {
        self.rule_out(method, ExclusionReason::Temporary(NO_MEMORY));
    }

    /// Forgets everything learned, and temporary reasons. [Unavailable](ExclusionReason::Unavailable) methods
    /// stay so.
    pub(crate) fn forget_all(&mut self) {
        self.candidates.out = self.candidates.out.map(|out| out.filter(|out| out.until_ns.is_infinite()));
        for class in self.table.classes() {
            class.reset(self.candidates.first_method(class.kind, None, 0.0), false);
        }
        self.report_changes();
        (self.last, self.table, self.budget) =
            (LastChoice::none(), ClassTable::new(), ExplorationBudget::new());
    }

    /// Makes an event of each class that has another method than when that was last called.
    #[cold]
    fn report_changes(&mut self) {
        if let Some(half) = self.half {
            for (destination, class) in self.table.iter().filter(|(_, class)| class.has_unreported_change()) {
                explain::report_change(self, half, destination, class);
            }
        }
        self.table.classes().for_each(|class| class.set_reported());
    }

    pub(crate) fn explain(&self) -> PolicyExplanation<M> {
        explain::explain(self)
    }
}

#[cfg(feature = "tcp")]
impl<M: Copy + Eq> Policy<M> {
    #[inline]
    pub(crate) fn is_pinned(&self) -> bool {
        self.pinned
    }
}

/// A length as the size of a [`Work`].
pub(crate) fn saturating_size(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

impl<M: Copy + Eq> Candidates<M> {
    /// The indices of methods, in their order; adds those that are new.
    fn add_methods(&mut self, methods: &[M]) -> Vec<u8> {
        assert!(!methods.is_empty(), "a policy needs a method to choose");
        let mut index = |&method: &M| {
            self.index(method).unwrap_or_else(|| {
                self.methods.push(method);
                (self.methods.len() - 1) as u8
            })
        };
        let order = methods.iter().map(&mut index).collect();
        assert!(self.methods.len() <= METHODS_MAX, "more than {METHODS_MAX} methods");
        order
    }

    fn index(&self, method: M) -> Option<u8> {
        self.methods.iter().position(|&one| one == method).map(|index| index as u8)
    }

    fn exclusion_reason(&self, method: u8) -> Option<ExclusionReason> {
        self.out[usize::from(method)].map(|out| out.reason)
    }

    #[inline]
    fn unmeasured_choice(&self, method: u8) -> Choice<M> {
        Choice { method: self.methods[usize::from(method)], measured: false, class: 0, epoch: 0 }
    }

    fn preference_order(&self, kind: WorkKind) -> &[u8] {
        if kind.is_single() { &self.singles } else { &self.order }
    }

    /// A bit for each of `order` that is not ruled out.
    fn allowed_methods(&self, order: &[u8], sent_ns: f64) -> u8 {
        // There is a bit for each method: `add_methods` allows no more than `METHODS_MAX`.
        let is_out = |method: u8| self.out[usize::from(method)].is_some_and(|out| out.until_ns > sent_ns);
        order.iter().filter(|&&method| !is_out(method)).fold(0, |bits, &method| bits | 1 << method)
    }

    fn class_context<'a>(&'a self, kind: WorkKind, budget: &'a mut ExplorationBudget) -> ClassContext<'a> {
        let order = self.preference_order(kind);
        let available = match self.allowed_methods(order, budget.sent_ns) {
            0 => 1 << order[order.len() - 1],
            allowed => allowed,
        };
        ClassContext { order, available, budget }
    }

    /// The method that a new class begins with.
    fn first_method(&self, kind: WorkKind, hint: Option<u8>, sent_ns: f64) -> u8 {
        let order = self.preference_order(kind);
        let allowed = self.allowed_methods(order, sent_ns);
        let is_allowed = |method: &u8| allowed & (1 << method) != 0;
        let preferred = || order.iter().copied().find(is_allowed);
        hint.filter(is_allowed).or_else(preferred).unwrap_or(order[order.len() - 1])
    }

    fn rule_out(&mut self, method: u8, reason: ExclusionReason, sent_ns: f64) {
        let out = &mut self.out[usize::from(method)];
        let doublings = out.map_or(0, |out| (out.doublings + 1).min(16));
        let wait_ns = match reason {
            ExclusionReason::Unavailable(_) => f64::INFINITY,
            ExclusionReason::Temporary(_) => {
                (TEMPORARY_NS * f64::from(1_u32 << doublings)).min(TEMPORARY_NS_MAX)
            }
        };
        // A temporary reason does not shorten a longer wait.
        if out.is_none_or(|out| out.until_ns <= sent_ns + wait_ns) {
            *out = Some(Exclusion { reason, until_ns: sent_ns + wait_ns, doublings });
        }
    }
}
