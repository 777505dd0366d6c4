//! The reported figures, computed from the measurement without any I/O: fields of the JSON schema
//! `nocopy.profile/3` (docs/profile.md). A field that does not apply is absent.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::category::{SampleCategory, TimeCategory};
use super::measured::{self, CopiedBytes, DroppedPackets, SampleOwner, SampledStack, WindowMeasurement};

/// Two-sided 95 % of a normal distribution, to which a binomial distribution of some dozen samples is close.
const DEVIATIONS: f64 = 1.96;

/// How late a sample may be taken; it then counts for the code that runs next. Interrupts of a virtual
/// processor are up to 60 us late, and more on a busy machine; with short turns on a processor, 10 to 24 us
/// of each turn were missed on average.
pub(crate) const LATE_SECONDS: f64 = 80e-6;
/// The largest share of the accounted time that samples may miss. If threads run in short turns, late samples
/// also hit them in place of others. Up to 0.38 was missed.
const LATE_SHARE_MAX: f64 = 0.5;

const FUNCTIONS_MAX: usize = 5;

/// With this many samples inside sending calls, the absence of copies is significant: if 5 % of them were
/// copies, one of 13 windows would have none.
const SENDING_SAMPLES_MIN: u64 = 50;

/// The least share of copies among the samples inside sending calls if every byte is copied: 14 to 40 % were
/// measured, for calls of 1 KiB to 1 MiB.
const COPYING_SHARE_MIN: f64 = 0.05;

/// Copies other than those between kernel and program, by function.
const OTHER_COPIES: [(&str, &str); 6] = [
    (
        "skb_copy_ubufs",
        "late copy of what was sent without one, because it was delivered here or looked at on the way",
    ),
    ("skb_pp_cow_data", "packets copied into pages for an XDP program"),
    ("tcp_collapse", "a full receive queue copied together"),
    ("__skb_linearize", "packets copied into one piece"),
    ("skb_copy_expand", "whole packets copied"),
    ("skb_copy", "whole packets copied"),
];

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub seconds: f64,
    pub threads: u32,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    pub time: TimeFigures,
    pub calls: Vec<CallFigures>,
    pub copies: CopyFigures,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<ReceiveQueueFigures>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tcp: Option<TcpFigures>,
    pub drops: Vec<DroppedPackets>,
    pub overhead: OverheadFigures,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimeFigures {
    /// Categories with samples, in the order of [`TimeCategory::ALL`].
    pub categories: Vec<CategoryTime>,
    /// Off the processor: a call waited.
    pub sleeping: OffProcessorTime,
    /// Time off the processor while runnable, because another task ran.
    pub runnable: OffProcessorTime,
    /// Processor time of the target's threads: by samples, with half of its 95 % interval, and as the kernel
    /// accounts it.
    pub sampled_seconds: f64,
    pub error_seconds: f64,
    pub accounted_seconds: f64,
    /// Time that samples may have missed because they were late, each time that a thread left a processor;
    /// and the part of the accounted time for which clock ticks are missing on all processors.
    pub late_seconds: f64,
    pub stalled_seconds: f64,
    pub switches: u64,
    /// Time of softirqs and device interrupts on all processors, for any traffic; and the share of it that
    /// `categories` cover.
    pub machine_seconds: f64,
    pub machine_share: f64,
    pub period_us: f64,
    pub samples: u64,
    pub samples_without_stack: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CategoryTime {
    pub category: TimeCategory,
    pub seconds: f64,
    /// Half of the 95 % interval.
    pub error_seconds: f64,
    pub share: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_mb: Option<f64>,
    /// Samples as taken; for softirqs, before the target's share is computed.
    pub samples: u64,
    /// The innermost functions, most samples first.
    pub functions: Vec<FunctionSamples>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FunctionSamples {
    pub name: String,
    pub samples: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct OffProcessorTime {
    pub seconds: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub us_per_mb: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CallKind {
    Receive,
    Send,
    Poll,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CallFigures {
    pub kind: CallKind,
    pub count: u64,
    pub bytes: u64,
    pub bytes_per_call: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calls_per_mb: Option<f64>,
    /// Time from entry to return of one call.
    pub us_per_call: f64,
    pub inside_seconds: f64,
    pub sleeping_seconds: f64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct CopyFigures {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<ReceivedCopies>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<SentCopies>,
    pub others: Vec<OtherCopy>,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceivedCopies {
    /// Copies per received byte between socket and program, including mapped bytes.
    pub per_byte: f64,
    #[serde(flatten)]
    pub bytes: CopiedBytes,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SentCopies {
    /// `None` with too few samples.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_byte: Option<f64>,
    /// Samples inside sending calls, and those of them in the copy from the program.
    pub samples: u64,
    pub copying_samples: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OtherCopy {
    pub function: String,
    pub description: String,
    /// Samples on all processors, for all packets.
    pub samples: u64,
    pub machine_seconds: f64,
}

/// The receive queue at the beginning of TCP receive calls.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReceiveQueueFigures {
    pub depth_mean_bytes: f64,
    pub depth_max_bytes: u64,
    /// The depth in queued packets, each of which may be several joined segments.
    pub depth_mean_packets: f64,
    pub depth_max_packets: u64,
    /// The share of received bytes that were in the queue at the beginning of the call.
    pub queued_share: f64,
    pub queued_bytes: u64,
    pub waited_bytes: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TcpFigures {
    pub sockets: u32,
    pub segments_in: u64,
    pub packets_in: u64,
    pub segments_out: u64,
    pub segments_retransmitted: u64,
    /// More than 1 if segments arrive joined: by GRO, in the backlog, or because a sender on the same host
    /// never cut them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub segments_per_packet: Option<f64>,
    /// The share of incoming packets that a process handled when it released the socket; softirq handled the
    /// others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog_share: Option<f64>,
    /// Sent segments without payload, per received segment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acks_per_segment: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub window_mean_bytes: Option<f64>,
    pub receive_buffer_bytes: u64,
    pub receive_buffer_fixed: bool,
    /// Sockets missing in these figures, because there were too many.
    #[serde(default)]
    pub lost_sockets: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OverheadFigures {
    pub seconds: f64,
    /// A share of the processor time that the kernel accounts to the target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<f64>,
    pub program_runs: u64,
    pub lost_events: u64,
}

impl Figures {
    pub fn from_measurement(measured: &WindowMeasurement) -> Self {
        let WindowMeasurement { receives, sends, polls, .. } = measured;
        let megabytes = (receives.bytes + sends.bytes) as f64 / 1e6;
        let accounted = measured.tasks.user + measured.tasks.system;
        let calls = [(CallKind::Receive, receives), (CallKind::Send, sends), (CallKind::Poll, polls)];
        let mut drops = measured.drops.clone();
        drops.sort_by_key(|drops| (!drops.of_target, std::cmp::Reverse(drops.packets)));
        Self {
            seconds: measured.elapsed.as_secs_f64(),
            threads: measured.tasks.threads,
            received_bytes: receives.bytes,
            sent_bytes: sends.bytes,
            time: TimeFigures::from_measurement(measured, megabytes),
            calls: calls
                .into_iter()
                .filter_map(|(kind, calls)| CallFigures::from_counts(kind, calls, megabytes))
                .collect(),
            copies: CopyFigures::from_measurement(measured),
            queue: ReceiveQueueFigures::from_call_counts(receives),
            tcp: TcpFigures::from_counters(&measured.tcp),
            drops,
            overhead: OverheadFigures {
                seconds: measured.overhead.programs.as_secs_f64(),
                share: ratio(measured.overhead.programs.as_secs_f64(), accounted.as_secs_f64()),
                program_runs: measured.overhead.program_runs,
                lost_events: measured.overhead.lost_events,
            },
        }
    }

    pub fn calls_of_kind(&self, kind: CallKind) -> Option<&CallFigures> {
        self.calls.iter().find(|calls| calls.kind == kind)
    }

    /// Share of the time of all categories; 0 without samples.
    pub fn category_share(&self, category: TimeCategory) -> f64 {
        self.time.categories.iter().find(|time| time.category == category).map_or(0.0, |time| time.share)
    }
}

#[derive(Debug, Default)]
struct SampleTally<'a> {
    /// Samples of the target's own work.
    own: u64,
    /// Samples of softirqs and interrupts, whichever thread they interrupted.
    machine: u64,
    functions: BTreeMap<&'a str, u64>,
}

impl TimeFigures {
    fn from_measurement(measured: &WindowMeasurement, megabytes: f64) -> Self {
        let WindowMeasurement { sampling, stacks, .. } = measured;
        let tallies = tally_by_category(stacks);
        let machine_share = match measured.machine_packets {
            0 => 1.0,
            all => (measured.delivered_packets as f64 / all as f64).min(1.0),
        };
        let period = sampling.period.as_secs_f64();
        let weight = |tally: &SampleTally<'_>| tally.own as f64 + machine_share * tally.machine as f64;
        let whole: f64 = tallies.values().map(weight).sum();
        let counted: u64 = tallies.values().map(|tally| tally.own + tally.machine).sum();
        let categories = tallies.iter().map(|(&category, tally)| CategoryTime {
            category,
            seconds: weight(tally) * period,
            error_seconds: category_error_samples(tally, counted, machine_share) * period,
            share: ratio(weight(tally), whole).unwrap_or(0.0),
            us_per_mb: ratio(weight(tally) * period * 1e6, megabytes),
            samples: tally.own + tally.machine,
            functions: top_functions(&tally.functions),
        });
        let of_target: u64 = stacks
            .iter()
            .filter(|stack| stack.owner != SampleOwner::OtherTask)
            .map(|stack| stack.samples)
            .sum();
        let accounted_seconds = (measured.tasks.user + measured.tasks.system).as_secs_f64();
        let off = |time: Duration| OffProcessorTime {
            seconds: time.as_secs_f64(),
            us_per_mb: ratio(time.as_secs_f64() * 1e6, megabytes),
        };
        Self {
            categories: categories.collect(),
            sleeping: off(measured.receives.sleeping + measured.sends.sleeping + measured.polls.sleeping),
            runnable: off(measured.receives.runnable + measured.sends.runnable + measured.polls.runnable),
            sampled_seconds: of_target as f64 * period,
            accounted_seconds,
            error_seconds: count_error_samples(measured, of_target) * period,
            stalled_seconds: accounted_seconds * missed_tick_share(sampling),
            late_seconds: (measured.tasks.switches as f64 * LATE_SECONDS)
                .min(LATE_SHARE_MAX * accounted_seconds),
            switches: measured.tasks.switches,
            machine_seconds: tallies.values().map(|tally| tally.machine).sum::<u64>() as f64 * period,
            machine_share,
            period_us: period * 1e6,
            samples: sampling.taken,
            samples_without_stack: sampling.without_stack,
        }
    }
}

fn tally_by_category(stacks: &[SampledStack]) -> BTreeMap<TimeCategory, SampleTally<'_>> {
    let mut tallies: BTreeMap<TimeCategory, SampleTally<'_>> = BTreeMap::new();
    for stack in stacks {
        let Some(SampleCategory { category, is_machine }) =
            SampleCategory::from_stack(stack.owner, &stack.functions)
        else {
            continue;
        };
        let tally = tallies.entry(category).or_default();
        *(if is_machine { &mut tally.machine } else { &mut tally.own }) += stack.samples;
        if let Some(innermost) = stack.functions.first() {
            *tally.functions.entry(innermost).or_default() += stack.samples;
        }
    }
    tallies
}

/// The standard error in samples: both counts of a category are binomial.
fn category_error_samples(tally: &SampleTally<'_>, counted: u64, machine_share: f64) -> f64 {
    let variance = |count: u64| count as f64 * (1.0 - count as f64 / counted.max(1) as f64);
    DEVIATIONS * (variance(tally.own) + machine_share * machine_share * variance(tally.machine)).sqrt()
}

/// The standard error in samples of a count of the target, among all samples that the clocks could take.
fn count_error_samples(measured: &WindowMeasurement, count: u64) -> f64 {
    let period = measured.sampling.period.as_secs_f64();
    let most = ratio(measured.elapsed.as_secs_f64() * f64::from(measured.tasks.threads.max(1)), period);
    let chance = most.map_or(0.0, |most| (count as f64 / most).min(1.0));
    // At least as if every second chance were taken: a thread that always runs is still caught between two
    // ticks, or not.
    let variance = count as f64 * (1.0 - chance.min(0.5));
    DEVIATIONS * variance.sqrt() + measured.sampling.without_stack as f64 + 1.0
}

/// The share of the due clock ticks that did not happen.
fn missed_tick_share(sampling: &measured::SamplingCounts) -> f64 {
    1.0 - ratio(sampling.ticks as f64, sampling.ticks_due as f64).unwrap_or(1.0).min(1.0)
}

fn top_functions(functions: &BTreeMap<&str, u64>) -> Vec<FunctionSamples> {
    let mut all: Vec<_> = functions.iter().map(|(&name, &samples)| (samples, name)).collect();
    all.sort_by_key(|&(samples, name)| (std::cmp::Reverse(samples), name));
    let named = all.into_iter().take(FUNCTIONS_MAX);
    named.map(|(samples, name)| FunctionSamples { name: name.into(), samples }).collect()
}

impl CallFigures {
    fn from_counts(kind: CallKind, calls: &measured::CallCounts, megabytes: f64) -> Option<Self> {
        let count = calls.count as f64;
        (calls.count > 0).then(|| Self {
            kind,
            count: calls.count,
            bytes: calls.bytes,
            bytes_per_call: calls.bytes as f64 / count,
            calls_per_mb: ratio(count, megabytes),
            us_per_call: calls.inside.as_secs_f64() * 1e6 / count,
            inside_seconds: calls.inside.as_secs_f64(),
            sleeping_seconds: calls.sleeping.as_secs_f64(),
        })
    }
}

impl CopyFigures {
    fn from_measurement(measured: &WindowMeasurement) -> Self {
        let WindowMeasurement { copied, sends, stacks, .. } = measured;
        let copied_bytes = copied.to_user_bytes + copied.udp_bytes;
        let received = ratio(copied_bytes as f64, measured.receives.bytes as f64);
        let received = received.map(|per_byte| ReceivedCopies { per_byte, bytes: copied.clone() });
        let sent = (sends.bytes > 0).then(|| SentCopies::from_stacks(stacks));
        Self { received, sent, others: other_copies(measured) }
    }
}

impl SentCopies {
    fn from_stacks(stacks: &[SampledStack]) -> Self {
        let sending = || stacks.iter().filter(|stack| stack.owner == SampleOwner::Sending);
        let is_copy = |stack: &&SampledStack| {
            SampleCategory::from_stack(stack.owner, &stack.functions)
                .is_some_and(|spot| spot.category == TimeCategory::CopyFromUser)
        };
        let samples = sending().map(|stack| stack.samples).sum();
        let copying_samples = sending().filter(is_copy).map(|stack| stack.samples).sum();
        let per_byte = match (copying_samples, samples) {
            (0, ..SENDING_SAMPLES_MIN) => None,
            (0, _) => Some(0.0),
            // Less may be the copy of some of it, as of headers in front of a file.
            (copying, all) => (copying as f64 >= COPYING_SHARE_MIN * all as f64).then_some(1.0),
        };
        Self { per_byte, samples, copying_samples }
    }
}

fn other_copies(measured: &WindowMeasurement) -> Vec<OtherCopy> {
    let samples_in = |function: &str| -> u64 {
        let has = |stack: &&SampledStack| {
            stack.functions.iter().any(|name| name.split('.').next() == Some(function))
        };
        measured.stacks.iter().filter(has).map(|stack| stack.samples).sum()
    };
    let all =
        OTHER_COPIES.iter().map(|(function, description)| (function, description, samples_in(function)));
    let seen = all.filter(|(.., samples)| *samples > 0);
    seen.map(|(function, description, samples)| OtherCopy {
        function: (*function).into(),
        description: (*description).into(),
        samples,
        machine_seconds: samples as f64 * measured.sampling.period.as_secs_f64(),
    })
    .collect()
}

impl ReceiveQueueFigures {
    fn from_call_counts(receives: &measured::CallCounts) -> Option<Self> {
        let depth_mean_bytes = ratio(receives.depth_sum_bytes as f64, receives.depth_count as f64)?;
        let depth_mean_packets = ratio(receives.depth_sum_packets as f64, receives.depth_count as f64)?;
        let both = receives.queued_bytes + receives.waited_bytes;
        Some(Self {
            depth_mean_bytes,
            depth_max_bytes: receives.depth_max_bytes,
            depth_mean_packets,
            depth_max_packets: receives.depth_max_packets,
            queued_share: ratio(receives.queued_bytes as f64, both as f64).unwrap_or(0.0),
            queued_bytes: receives.queued_bytes,
            waited_bytes: receives.waited_bytes,
        })
    }
}

impl TcpFigures {
    fn from_counters(tcp: &measured::TcpCounters) -> Option<Self> {
        let acks = tcp.segments_out.saturating_sub(tcp.data_segments_out);
        // Otherwise the packets are of other sockets than the segments.
        let is_whole = tcp.segments_in > 0 && tcp.lost_sockets == 0;
        let segments_per_packet = ratio(tcp.segments_in as f64, tcp.packets_in as f64);
        (u64::from(tcp.sockets) + tcp.lost_sockets > 0).then(|| Self {
            sockets: tcp.sockets,
            segments_in: tcp.segments_in,
            packets_in: tcp.packets_in,
            segments_out: tcp.segments_out,
            segments_retransmitted: tcp.segments_retransmitted,
            segments_per_packet: segments_per_packet.filter(|_| is_whole),
            backlog_share: ratio(tcp.packets_in_backlog as f64, tcp.packets_in as f64),
            acks_per_segment: ratio(acks as f64, tcp.segments_in as f64),
            window_mean_bytes: ratio(tcp.window_sum_bytes as f64, tcp.window_count as f64),
            receive_buffer_bytes: tcp.receive_buffer_bytes,
            receive_buffer_fixed: tcp.receive_buffer_fixed,
            lost_sockets: tcp.lost_sockets,
        })
    }
}

fn ratio(numerator: f64, denominator: f64) -> Option<f64> {
    (denominator > 0.0).then(|| numerator / denominator)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::fixture::{bulk_receive_measurement, sampled_stack};

    fn category_time(figures: &Figures, category: TimeCategory) -> &CategoryTime {
        figures.time.categories.iter().find(|time| time.category == category).unwrap()
    }

    #[test]
    fn category_time_is_sampled_and_softirqs_are_split_by_packets() {
        let figures = Figures::from_measurement(&bulk_receive_measurement());
        let copy = category_time(&figures, TimeCategory::CopyToUser);
        assert!((copy.seconds - 0.5).abs() < 1e-12, "{copy:?}");
        assert!((copy.us_per_mb.unwrap() - 0.5e6 / 1_073.741_824).abs() < 1e-6, "{copy:?}");
        assert_eq!(copy.functions, [FunctionSamples { name: "_copy_to_iter".into(), samples: 1_000 }]);
        // Half of the machine's packets were its own.
        assert_eq!(figures.time.machine_share, 0.5);
        assert!((category_time(&figures, TimeCategory::SoftirqReceive).seconds - 0.25).abs() < 1e-12);
        assert!((figures.time.machine_seconds - 0.5).abs() < 1e-12);
        // Softirqs on stacks of other threads do not count as time of the target's threads.
        assert!((figures.time.sampled_seconds - 0.9).abs() < 1e-12);
        let shares: f64 = figures.time.categories.iter().map(|time| time.share).sum();
        assert!((shares - 1.0).abs() < 1e-12);
    }

    #[test]
    fn counts_are_reported_as_means_and_shares() {
        let figures = Figures::from_measurement(&bulk_receive_measurement());
        let receives = figures.calls_of_kind(CallKind::Receive).unwrap();
        assert_eq!(receives.bytes_per_call, 65_536.0);
        assert_eq!(figures.calls_of_kind(CallKind::Send), None);
        let queue = figures.queue.as_ref().unwrap();
        assert_eq!(
            (queue.depth_mean_bytes, queue.depth_max_bytes, queue.queued_share),
            (40_000.0, 90_000, 0.5)
        );
        assert_eq!((queue.depth_mean_packets, queue.depth_max_packets), (2.5, 6));
        let tcp = figures.tcp.as_ref().unwrap();
        assert!((tcp.segments_per_packet.unwrap() - 45.0).abs() < 0.01, "{tcp:?}");
        assert!((tcp.backlog_share.unwrap() - 0.1).abs() < 0.001, "{tcp:?}");
        assert_eq!(tcp.window_mean_bytes, Some(3_000_000.0));
        assert!((figures.overhead.share.unwrap() - 0.01).abs() < 1e-12);
    }

    #[test]
    fn an_empty_window_has_no_figures() {
        let figures = Figures::from_measurement(&WindowMeasurement::default());
        assert!(figures.time.categories.is_empty() && figures.calls.is_empty());
        assert!(figures.queue.is_none() && figures.tcp.is_none() && figures.copies.received.is_none());
        assert!(serde_json::to_string(&figures).unwrap().find("null").is_none());
    }

    #[test]
    fn copies_per_byte_come_from_copied_bytes_and_samples() {
        let mut measured = bulk_receive_measurement();
        assert_eq!(Figures::from_measurement(&measured).copies.received.unwrap().per_byte, 1.0);
        measured.copied.mapped_bytes = measured.copied.to_user_bytes;
        measured.receives.bytes *= 2;
        assert_eq!(Figures::from_measurement(&measured).copies.received.unwrap().per_byte, 0.5);
        measured.copied.to_user_bytes *= 3;
        assert_eq!(
            Figures::from_measurement(&measured).copies.received.unwrap().per_byte,
            1.5,
            "two of three were peeks"
        );
        measured.sends.bytes = 1_000;
        let sent =
            |measured: &WindowMeasurement| Figures::from_measurement(measured).copies.sent.unwrap().per_byte;
        assert_eq!(sent(&measured), None, "no sample tells");
        measured.stacks.push(sampled_stack(
            SampleOwner::Sending,
            "skb_copy_ubufs.part.0 handle_softirqs",
            SENDING_SAMPLES_MIN,
        ));
        assert_eq!(sent(&measured), Some(0.0));
        let others = Figures::from_measurement(&measured).copies.others;
        assert_eq!((others.len(), others[0].function.as_str()), (1, "skb_copy_ubufs"));
        measured.stacks.push(sampled_stack(SampleOwner::Sending, "_copy_from_iter tcp_sendmsg", 1));
        assert_eq!(sent(&measured), None, "it may be the copy of a part");
        measured.stacks.push(sampled_stack(SampleOwner::Sending, "_copy_from_iter tcp_sendmsg", 10));
        assert_eq!(sent(&measured), Some(1.0));
    }

    /// Tests the printed error: over random samples it covers the true time in 95 of 100 cases.
    #[test]
    fn the_printed_error_covers_the_true_time_in_95_percent() {
        let mut state = 1_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let (taken, chance, tries) = (1_000_u64, 0.2, 2_000);
        let mut covered = 0;
        for _ in 0..tries {
            let copies = (0..taken).filter(|_| uniform() < chance).count() as u64;
            let mut measured = WindowMeasurement::default();
            measured.sampling.period = Duration::from_millis(1);
            measured.stacks = vec![
                sampled_stack(SampleOwner::Receiving, "_copy_to_iter", copies),
                sampled_stack(SampleOwner::Receiving, "tcp_recvmsg", taken - copies),
            ];
            let figures = Figures::from_measurement(&measured);
            let time = category_time(&figures, TimeCategory::CopyToUser);
            covered += u32::from((time.seconds - chance).abs() <= time.error_seconds);
        }
        let share = f64::from(covered) / f64::from(tries);
        assert!((0.93..0.97).contains(&share), "{share}");
    }

    proptest! {
        /// With any stacks, every sample of the target has exactly one category, and no figure is NaN.
        #[test]
        fn every_sample_of_the_stacks_has_one_category(
            counts in prop::collection::vec(0_u64..10_000, 5),
            delivered in 0_u64..9,
            machine in 0_u64..9,
        ) {
            let mut measured = bulk_receive_measurement();
            for (stack, count) in measured.stacks.iter_mut().zip(&counts) {
                stack.samples = *count;
            }
            (measured.delivered_packets, measured.machine_packets) = (delivered, machine);
            let figures = Figures::from_measurement(&measured);
            let samples: u64 = figures.time.categories.iter().map(|time| time.samples).sum();
            prop_assert_eq!(samples, counts.iter().sum::<u64>());
            prop_assert!((0.0..=1.0).contains(&figures.time.machine_share));
            let numbers = figures.time.categories.iter().flat_map(|time| [time.seconds, time.error_seconds, time.share]);
            prop_assert!(numbers.into_iter().all(|number| number.is_finite() && number >= 0.0));
        }
    }
}
