//! Which of several ways to send is fastest here, found by measuring while sending.
//!
//! No table of thresholds is right for every machine: the same call is the fastest to one destination and the slowest to
//! another, because what happens behind the socket differs (a card that segments, a bridge, a local receiver). So a
//! [`Policy`] watches what the calls cost, for each *class* of sends by itself: a destination, a size of datagrams, a size of
//! batches. In a class one method is the incumbent; now and then another challenges it:
//!
//! * They take turns for short epochs, in pairs, and the median of the pairs' ratios decides, with a rule of confidence, because the
//!   speed of a shared machine drifts by 2x. The challenger has to be better by 3 %.
//! * All are first looked at shortly: one that is slower by 1.3x in two pairs of single calls is dropped, at the cost of three.
//!   One that is off by 15 % in three longer pairs is decided on too; what is closer takes 9 to 47.
//! * A loser waits before it may try again, each time twice as long: 20 ms to 10 s of *time spent sending* in this class. That clock
//!   needs no clock, stands still while nothing is sent, and makes the waits a share of the cost.
//! * All exploring together is paid from one budget: 0.3 ms at first, then 1 % of the time spent sending.
//! * When the cost of the incumbent changes by 1.5x for long, the machine has changed: all may try again.
//! * A zero-copy method whose completions say *copied* is out, for this destination and size.
//!
//! In between one call in 31 is measured, and choosing costs a few nanoseconds. It is sans-I/O: it does not know what
//! a method is, reads no clock and draws no random numbers. The caller asks, sends, and says what it cost:
//!
//! ```
//! use std::time::{Duration, Instant};
//! use nocopy::policy::{Policy, Work};
//!
//! #[derive(Clone, Copy, PartialEq, Eq)]
//! enum Method { Gso, Socket }
//!
//! let mut policy = Policy::new(&[Method::Gso, Method::Socket], &[Method::Socket]);
//! let work = Work { destination: 0, bytes: 1400, count: 44 };
//! let choice = policy.choose(work);
//! let started = choice.measured.then(Instant::now);
//! match choice.method {
//!     Method::Gso => { /* sendmsg with UDP_SEGMENT */ }
//!     Method::Socket => { /* sendto, 44 times */ }
//! }
//! if let Some(started) = started {
//!     policy.record(choice, work, started.elapsed());
//! }
//! ```

use std::time::Duration;

mod class;
mod explain;
mod table;
#[cfg(test)]
mod tests;
mod trial;

use class::{Budget, Class, Terms};
use table::{Kind, Table};

pub use explain::{ClassExplanation, Compared, Explanation, Matter, Ratio, Why};

/// Methods that a policy can choose from.
pub const METHODS_MAX: usize = 8;

/// How long a method is first out for a temporary reason, in time spent sending; it doubles with each time.
const TEMPORARY_NS: f64 = 100e6;
const TEMPORARY_NS_MAX: f64 = 60e9;

/// A run of equal datagrams in a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Work {
    /// A small number the caller gives to each destination, from 0. Some 256 at a time are told apart; with more, the most
    /// talkative ones, and the rest are one.
    pub destination: u32,
    /// Payload bytes of one datagram.
    pub bytes: u32,
    /// Datagrams of the flush to this destination.
    pub count: u32,
}

/// How to send a [`Work`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Choice<M> {
    /// The method.
    pub method: M,
    /// Whether the policy wants to know what it costs; otherwise the clock need not be read.
    pub measured: bool,
    class: u16,
    epoch: u32,
}

impl<M> Choice<M> {
    /// A choice that took no policy: nothing is measured.
    pub(crate) fn by_rule(method: M) -> Self {
        Self { method, measured: false, class: 0, epoch: 0 }
    }
}

/// Why a method cannot be used on this socket, whatever the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reason {
    /// Not to be had here; the text is the fact and its cause ("io_uring is disabled by kernel.io_uring_disabled").
    Unavailable(&'static str),
    /// Not to be had now; the text is the fact and its cause ("ENOBUFS: net.core.optmem_max is exhausted"). It is tried again
    /// after a wait that doubles with each time.
    Temporary(&'static str),
}

/// A method that is ruled out.
#[derive(Debug, Clone, Copy)]
struct Out {
    reason: Reason,
    /// In time spent sending.
    until_ns: f64,
    doublings: u8,
}

/// The measured choice of one socket among methods of sending.
///
/// Allocates when a destination or a kind of send is seen for the first time, and never else. One class takes some 600 bytes.
#[derive(Debug)]
pub struct Policy<M> {
    last_work: Work,
    last_kind: Kind,
    last_class: usize,
    table: Table,
    candidates: Candidates<M>,
    budget: Budget,
    pinned: bool,
    matter: Matter,
}

#[derive(Debug)]
struct Candidates<M> {
    methods: Vec<M>,
    /// Indices in order of preference, for several datagrams and for one.
    batches: Vec<u8>,
    singles: Vec<u8>,
    out: [Option<Out>; METHODS_MAX],
}

impl<M: Copy + Eq> Policy<M> {
    /// A policy that chooses among `batches` for flushes of several datagrams, and among `singles` for those of one.
    ///
    /// Both are in order of preference: the first is used until another is measured to be faster, and wins ties. So the plain
    /// call goes first in `singles`. What gains nothing from a single datagram is best left out there. The last is what
    /// remains if all are ruled out.
    ///
    /// # Panics
    /// A list is empty, or there are more than [`METHODS_MAX`] methods.
    pub fn new(batches: &[M], singles: &[M]) -> Self {
        assert!(!batches.is_empty() && !singles.is_empty(), "a policy needs a method to choose");
        let mut methods: Vec<M> = Vec::with_capacity(METHODS_MAX);
        let mut index = |method: &M| {
            let known = methods.iter().position(|one| one == method);
            known.unwrap_or_else(|| {
                methods.push(*method);
                methods.len() - 1
            }) as u8
        };
        let batches: Vec<u8> = batches.iter().map(&mut index).collect();
        let singles = singles.iter().map(&mut index).collect();
        assert!(methods.len() <= METHODS_MAX, "more than {METHODS_MAX} methods");
        Self {
            last_work: Work { destination: 0, bytes: 0, count: 0 },
            last_kind: Kind::of(0, 0),
            last_class: usize::MAX,
            table: Table::new(),
            candidates: Candidates { methods, batches, singles, out: [None; METHODS_MAX] },
            budget: Budget::new(),
            pinned: false,
            matter: Matter::Datagrams,
        }
    }

    /// A policy that always chooses `method`; it still measures now and then, to be able to say what it costs.
    pub fn pinned(method: M) -> Self {
        Self { pinned: true, ..Self::new(&[method], &[method]) }
    }

    /// The same for work of another kind than datagrams; it is explained in its words.
    #[must_use]
    pub fn about(mut self, matter: Matter) -> Self {
        self.matter = matter;
        self
    }

    /// How to send the next run of datagrams. Costs some 5 ns while work does not change, 10 ns where only the destination does, and
    /// 15 to 30 ns otherwise (measured).
    #[inline]
    pub fn choose(&mut self, work: Work) -> Choice<M> {
        if work == self.last_work
            && let Some(method) = self.table.class(self.last_class).and_then(Class::quiet)
        {
            return self.candidates.unmeasured(method);
        }
        self.choose_anew(work)
    }

    /// The same where it takes no thought: work of the same kind as before, and nothing to be measured. Otherwise `None`, and
    /// [`choose`](Self::choose) is to be asked.
    #[inline]
    pub(crate) fn choose_at_once(&mut self, work: Work) -> Option<M> {
        if work != self.last_work {
            return None;
        }
        let method = self.table.class(self.last_class).and_then(Class::quiet)?;
        Some(self.candidates.methods[usize::from(method)])
    }

    fn choose_anew(&mut self, work: Work) -> Choice<M> {
        if work != self.last_work || self.last_class == usize::MAX {
            // Many destinations in turn are mostly sent the same.
            if (work.bytes, work.count) != (self.last_work.bytes, self.last_work.count) {
                self.last_kind = Kind::of(work.bytes, work.count);
            }
            let kind = self.last_kind;
            let (candidates, sent_ns) = (&self.candidates, self.budget.sent_ns);
            self.last_class =
                self.table.find(work.destination, kind, |kind, hint| candidates.first(kind, hint, sent_ns));
            self.last_work = work;
        }
        let class = self.table.class(self.last_class).expect("found above");
        if let Some(method) = class.quiet() {
            return self.candidates.unmeasured(method);
        }
        let (method, epoch) = class.measured();
        let method = self.candidates.methods[usize::from(method)];
        Choice { method, measured: true, class: self.last_class as u16, epoch }
    }

    /// Takes what a measured choice cost: the elapsed time of its system calls, sending and reaping what completions are due.
    /// Reaping must not be put off for more than some calls, or a method looks cheaper than it is.
    ///
    /// `work` is what was sent; its count may be smaller than what was asked for. A choice that was not measured, or that is
    /// late, because meanwhile another method's turn came, is ignored. Calls that failed need not be recorded.
    pub fn record(&mut self, choice: Choice<M>, work: Work, cost: Duration) {
        let Some(class) = self.table.class(usize::from(choice.class)).filter(|_| choice.measured) else {
            return;
        };
        let kind = class.kind;
        let mut terms = self.candidates.terms(kind, &mut self.budget);
        let ns = (cost.as_nanos() as f64).max(1.0);
        class.record(&mut terms, choice.epoch, ns, f64::from(work.count.max(1)));
        if class.is_settled() {
            let method = class.incumbent;
            self.table.hint(kind, method);
        }
    }

    /// Takes what a completion says of a zero-copy send to `destination` with datagrams of `bytes`: whether the kernel copied after
    /// all, and how long after sending it came. Completions of sends before [`forget`](Self::forget) speak of the old
    /// route and are best not told.
    pub fn completed(
        &mut self,
        destination: u32,
        method: M,
        bytes: u32,
        copied: bool,
        after: Option<Duration>,
    ) {
        let Some(method) = self.candidates.index(method) else { return };
        let (candidates, budget) = (&self.candidates, &mut self.budget);
        let held_ns = after.map(|after| after.as_nanos() as f32);
        self.table.of_size(destination, bytes, |class| {
            class.completed(&candidates.terms(class.kind, budget), method, copied, held_ns);
        });
    }

    /// Takes `method` out, for all destinations. False if nothing else is left for some sends, which then go on by the last
    /// candidate.
    pub fn rule_out(&mut self, method: M, why: Reason) -> bool {
        let Some(method) = self.candidates.index(method) else { return true };
        self.candidates.rule_out(method, why, self.budget.sent_ns);
        let (candidates, budget) = (&self.candidates, &mut self.budget);
        for class in self.table.classes() {
            class.ruled_out(&candidates.terms(class.kind, budget));
        }
        [&candidates.batches, &candidates.singles]
            .iter()
            .all(|order| candidates.allowed(order, budget.sent_ns) != 0)
    }

    /// Forgets what was learnt of a destination: its route changed, or its number went to another.
    pub fn forget(&mut self, destination: u32) {
        let (candidates, sent_ns) = (&self.candidates, self.budget.sent_ns);
        self.table.forget(destination, |kind, hint| candidates.first(kind, hint, sent_ns));
    }

    /// What was chosen for which sends, and why.
    pub fn explain(&self) -> Explanation<M> {
        explain::explain(self)
    }
}

impl<M: Copy + Eq> Candidates<M> {
    fn index(&self, method: M) -> Option<u8> {
        self.methods.iter().position(|&one| one == method).map(|index| index as u8)
    }

    #[inline]
    fn unmeasured(&self, method: u8) -> Choice<M> {
        Choice { method: self.methods[usize::from(method)], measured: false, class: 0, epoch: 0 }
    }

    fn order(&self, kind: Kind) -> &[u8] {
        if kind.is_single() { &self.singles } else { &self.batches }
    }

    /// A bit for each of `order` that is not ruled out.
    fn allowed(&self, order: &[u8], sent_ns: f64) -> u8 {
        let is_out = |method: u8| self.out[usize::from(method)].is_some_and(|out| out.until_ns > sent_ns);
        order.iter().filter(|&&method| !is_out(method)).fold(0, |bits, &method| bits | 1 << method)
    }

    fn terms<'a>(&'a self, kind: Kind, budget: &'a mut Budget) -> Terms<'a> {
        let order = self.order(kind);
        let available = match self.allowed(order, budget.sent_ns) {
            0 => 1 << order[order.len() - 1],
            allowed => allowed,
        };
        Terms { order, available, budget }
    }

    /// What a new class begins with.
    fn first(&self, kind: Kind, hint: Option<u8>, sent_ns: f64) -> u8 {
        let order = self.order(kind);
        let allowed = self.allowed(order, sent_ns);
        let is_allowed = |method: &u8| allowed & (1 << method) != 0;
        let preferred = || order.iter().copied().find(is_allowed);
        hint.filter(is_allowed).or_else(preferred).unwrap_or(order[order.len() - 1])
    }

    fn rule_out(&mut self, method: u8, reason: Reason, sent_ns: f64) {
        let out = &mut self.out[usize::from(method)];
        let doublings = out.map_or(0, |out| (out.doublings + 1).min(16));
        let wait_ns = match reason {
            Reason::Unavailable(_) => f64::INFINITY,
            Reason::Temporary(_) => (TEMPORARY_NS * f64::from(1_u32 << doublings)).min(TEMPORARY_NS_MAX),
        };
        // A temporary reason does not shorten a lasting one.
        if out.is_none_or(|out| out.until_ns <= sent_ns + wait_ns) {
            *out = Some(Out { reason, until_ns: sent_ns + wait_ns, doublings });
        }
    }
}
