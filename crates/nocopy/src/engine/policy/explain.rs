//! The explanation of choices, as text.

use std::fmt;
use std::time::Duration;

use nocopy_proto::quantity::time_text;

use super::class::{ClassState, ExclusionCause};
use super::{ExclusionReason, Policy};
use crate::events::{self, Half};

/// The unit of a policy's work, for the words of the explanation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(not(feature = "message"), expect(dead_code, reason = "units of work that is not built"))]
pub(crate) enum WorkUnit {
    /// Datagrams of some bytes each, to several destinations.
    Datagrams,
    /// Pages of 4 KiB of a sent stream, in writes of some bytes each.
    Writes,
    /// Pages of 4 KiB of a received stream.
    Reads,
    /// Received datagrams, whose rows have some bytes each.
    Rows,
    /// Pages of 4 KiB of messages of some bytes each, to several peers.
    Messages,
}

impl WorkUnit {
    fn unit_name(self) -> &'static str {
        match self {
            Self::Datagrams => "datagram",
            Self::Rows => "row",
            Self::Writes | Self::Reads | Self::Messages => "page",
        }
    }
}

/// What a [`Policy`] chose, and why. Displays as text: a line for each class and for each method not chosen
/// in it.
#[derive(Debug, Clone)]
pub(crate) struct PolicyExplanation<M> {
    pub matter: WorkUnit,
    /// The user chose the method.
    pub pinned: bool,
    /// Time spent sending, estimated from the calls that were measured.
    pub sent: Duration,
    /// The part of it spent on slower methods and on clock reads.
    pub explored: Duration,
    /// Methods that are ruled out, permanently or for some time.
    pub ruled_out: Vec<(M, ExclusionReason)>,
    pub classes: Vec<ClassExplanation<M>>,
}

#[derive(Debug, Clone)]
pub(crate) struct ClassExplanation<M> {
    pub matter: WorkUnit,
    /// The caller's number; `None`: all destinations without a separate class.
    pub destination: Option<u32>,
    /// Smallest and largest [`Work::bytes`](super::Work::bytes).
    pub bytes: (u32, u32),
    /// Smallest and largest count of units.
    pub count: (u32, u32),
    /// The method in use.
    pub method: M,
    /// Cost of a unit in ns: the median of the last measured calls.
    pub cost_ns: Option<f64>,
    /// How often the method was changed.
    pub switches: u32,
    /// The other candidates.
    pub others: Vec<RivalExplanation<M>>,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct RivalExplanation<M> {
    /// The method.
    pub method: M,
    /// Why it is not used.
    pub why: ExclusionCause,
    /// Its cost over that of the method in use, smoothed, and the pairs compared; `None`: it was never
    /// compared.
    pub ratio: Option<(f64, u32)>,
    /// Smoothed time until its completions.
    pub held: Option<Duration>,
}

pub(super) fn explain<M: Copy + Eq>(policy: &Policy<M>) -> PolicyExplanation<M> {
    let candidates = &policy.candidates;
    let out = candidates.methods.iter().zip(candidates.out);
    let classes = policy.table.iter().map(|(destination, class)| explain_class(policy, destination, class));
    PolicyExplanation {
        matter: policy.matter,
        pinned: policy.pinned,
        sent: Duration::from_nanos(policy.budget.sent_ns as u64),
        explored: Duration::from_nanos(policy.budget.explored_ns as u64),
        ruled_out: out.filter_map(|(method, out)| Some((*method, out?.reason))).collect(),
        classes: classes.collect(),
    }
}

fn explain_class<M: Copy + Eq>(
    policy: &Policy<M>,
    destination: Option<u32>,
    class: &ClassState,
) -> ClassExplanation<M> {
    let methods = &policy.candidates.methods;
    let order = policy.candidates.preference_order(class.kind).iter();
    let others = order.filter(|&&method| method != class.incumbent);
    ClassExplanation {
        matter: policy.matter,
        destination,
        bytes: class.kind.bytes_range(),
        count: class.kind.count_range(),
        method: methods[usize::from(class.incumbent)],
        cost_ns: class.cost_ns().map(f64::from),
        switches: class.switches,
        others: others.map(|&method| explain_rival(policy, class, method)).collect(),
    }
}

fn explain_rival<M: Copy + Eq>(policy: &Policy<M>, class: &ClassState, method: u8) -> RivalExplanation<M> {
    let methods = &policy.candidates.methods;
    let rival = &class.rivals[usize::from(method)];
    let out = policy.candidates.out[usize::from(method)].filter(|out| out.until_ns > policy.budget.sent_ns);
    let why = match out {
        Some(out) => ExclusionCause::RuledOut(out.reason),
        None if class.challenger() == Some(method) => ExclusionCause::Challenging,
        None => rival.why,
    };
    RivalExplanation {
        method: methods[usize::from(method)],
        why,
        ratio: (rival.pairs > 0).then(|| (f64::from(rival.cost_ratio()), rival.pairs)),
        held: Some(Duration::from_nanos(rival.held_ns as u64)).filter(|held| !held.is_zero()),
    }
}

/// Makes an event of the method of a class, and of why it no longer uses the one before.
pub(super) fn report_change<M: Copy + Eq + fmt::Display>(
    policy: &Policy<M>,
    half: Half,
    destination: Option<u32>,
    class: &ClassState,
) {
    let (now, former) =
        (explain_class(policy, destination, class), explain_rival(policy, class, class.reported));
    events::method_changed(half, &now.method, &WorkText(&now), &former);
}

impl<M: fmt::Display> fmt::Display for PolicyExplanation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chosen = if self.pinned { "chosen by the user" } else { "chosen by measurement" };
        f.write_str(chosen)?;
        if !self.sent.is_zero() {
            let share = 100.0 * self.explored.as_secs_f64() / self.sent.as_secs_f64();
            let activity =
                if matches!(self.matter, WorkUnit::Reads | WorkUnit::Rows) { "receiving" } else { "sending" };
            let spent = time_text(self.sent.as_secs_f64());
            write!(f, "; exploring took {share:.2} % of {spent} spent {activity}")?;
        }
        for (method, reason) in &self.ruled_out {
            write!(f, "\n{method} is ruled out: {reason}")?;
        }
        self.classes.iter().try_for_each(|class| write!(f, "\n{class}"))
    }
}

/// The work of a class.
struct WorkText<'a, M>(&'a ClassExplanation<M>);

impl<M> fmt::Display for WorkText<'_, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let &ClassExplanation { matter, destination, bytes, count, .. } = self.0;
        let (bytes, count) = (RangeText(bytes), RangeText(count));
        match (matter, destination) {
            (WorkUnit::Writes, _) => write!(f, "writes of {bytes} bytes"),
            (WorkUnit::Reads, _) => write!(f, "reads"),
            (WorkUnit::Rows, _) => write!(f, "rows of {bytes} bytes"),
            (WorkUnit::Messages, Some(peer)) => write!(f, "peer {peer}, messages of {bytes} bytes"),
            (WorkUnit::Messages, None) => write!(f, "other peers, messages of {bytes} bytes"),
            (WorkUnit::Datagrams, Some(one)) => {
                write!(f, "destination {one}, {bytes} bytes, {count} a flush")
            }
            (WorkUnit::Datagrams, None) => write!(f, "other destinations, {bytes} bytes, {count} a flush"),
        }
    }
}

impl<M: fmt::Display> fmt::Display for ClassExplanation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", WorkText(self), self.method)?;
        if let Some(ns) = self.cost_ns {
            write!(f, ", {ns:.0} ns a {}", self.matter.unit_name())?;
        }
        match self.switches {
            0 => {}
            1 => write!(f, ", changed once")?,
            many => write!(f, ", changed {many} times")?,
        }
        self.others.iter().try_for_each(|other| write!(f, "\n  {other}"))
    }
}

impl<M: fmt::Display> fmt::Display for RivalExplanation<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.method, self.why)?;
        if let Some((ratio, pairs)) = self.ratio {
            let plural = if pairs == 1 { "" } else { "s" };
            write!(f, ", {ratio:.2} times the cost in {pairs} pair{plural}")?;
        }
        self.held.map_or(Ok(()), |held| write!(f, ", buffers held for {}", time_text(held.as_secs_f64())))
    }
}

impl fmt::Display for ExclusionCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Untried => write!(f, "not tried yet"),
            Self::Promising => write!(f, "perhaps better, to be compared again"),
            Self::Challenging => write!(f, "being compared"),
            Self::NoBetter => write!(f, "no better"),
            Self::MuchSlower => write!(f, "much slower"),
            Self::Copied => write!(f, "pointless, completions say copied"),
            Self::Unrecorded => write!(f, "its calls could not be measured"),
            Self::RuledOut(reason) => write!(f, "ruled out, {reason}"),
        }
    }
}

impl fmt::Display for ExclusionReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "{why}"),
            Self::Temporary(why) => write!(f, "for now, {why}"),
        }
    }
}

struct RangeText((u32, u32));

impl fmt::Display for RangeText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            (low, high) if low == high => write!(f, "{low}"),
            (low, u32::MAX) => write!(f, "{low} or more"),
            (low, high) => write!(f, "{low} to {high}"),
        }
    }
}
