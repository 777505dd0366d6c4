//! The methods to receive, and the choice among them.
//!
//! The length of chunks, and whether to map pages, are chosen by measurement. The measured time is that from
//! one call to the next, so it includes the program's work on the bytes; the cost of unmapping is spread over
//! the chunks. A wait counts half, and no longer than the work: see [`CostSample::cost_until`].

use std::fmt;
use std::time::{Duration, Instant};

use crate::engine::policy::{self, Choice, ExclusionReason, Policy, PolicyExplanation, Work, WorkUnit};
use crate::events::Half;
use crate::facts::evidence::Cause;

/// How bytes of a stream are received.
// A third method would be io_uring's zero-copy receive (`IORING_OP_RECV_ZC`): a method of the policy, a
// function of the receiver that makes a chunk, and a kind of piece that a chunk can have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReceiveMethod {
    /// An ordinary call copies up to `bytes` bytes into a buffer.
    Recv {
        /// The most bytes of one call; at most a buffer of the pool.
        bytes: u32,
    },
    /// The pages of the data are mapped (`TCP_ZEROCOPY_RECEIVE`; Linux 4.18); data that does not fill whole
    /// pages is copied.
    Mapped,
}

impl fmt::Display for ReceiveMethod {
    /// `recv of 64 KiB`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recv { bytes } if bytes % (1 << 20) == 0 => write!(f, "recv of {} MiB", bytes >> 20),
            Self::Recv { bytes } if bytes % 1024 == 0 => write!(f, "recv of {} KiB", bytes / 1024),
            Self::Recv { bytes } => write!(f, "recv of {bytes} bytes"),
            Self::Mapped => f.write_str("mapped"),
        }
    }
}

/// The lengths to choose from (mapping is tried after the first), in order. With shorter chunks the calls
/// cost too much; longer ones leave the caches before they are read.
const CHUNK_BYTES: [u32; policy::METHODS_MAX - 1] =
    [64 << 10, 128 << 10, 256 << 10, 32 << 10, 512 << 10, 1 << 20, 16 << 10];

/// The largest of [`CHUNK_BYTES`].
pub(super) const CHUNK_BYTES_MAX: usize = 1 << 20;

/// What is lent as a slice: as much as readers with a buffer of their own usually take at a time.
const SLICE_BYTES: usize = 64 << 10;

/// The unit of costs: a page's worth of bytes, however it was received.
const UNIT_BYTES: usize = 4096;

/// The work that is announced for every chunk, so that all are compared; the true count is recorded with the
/// cost.
const WORK: Work = Work { destination: 0, bytes: UNIT_BYTES as u32, count: 32 };

/// Shorter chunks that could have been longer show the sender's pauses rather than the cost.
const TELLING_BYTES_MIN: usize = 32 << 10;

/// The choice, by the cost of receiving and *using* a byte: from the start of one call to the start of the
/// next. So it includes a chunk's effect on the caches, and the cost of unmapping.
#[derive(Debug)]
pub(super) struct ReceiveMethodChooser {
    policy: Policy<ReceiveMethod>,
    /// The most bytes of a slice.
    slice_bytes: usize,
    /// Whether mapping was measured, or found not to work.
    is_mapping_known: bool,
    sample: Option<CostSample>,
}

#[derive(Debug)]
struct CostSample {
    choice: Choice<ReceiveMethod>,
    /// When the work began, or went on behind a wait.
    started: Instant,
    owed: Duration,
    waited: Duration,
    /// Units received by the call; 0 while its cost is not meaningful.
    units: u32,
    /// The call received nothing, so the next one continues the measurement.
    is_open: bool,
}

impl CostSample {
    /// The receiver's work, and half of its wait.
    ///
    /// Bytes that lie in the socket for long are cold, also for a sender that shares a cache with the
    /// receiver, or whose acknowledgements then come late: with chunks of 256 KiB instead of 16 KiB the
    /// receiver's work was the same, and the rate 0.65 (over veth). That shows only in the wait. It counts
    /// less than work, which a wire that is full makes into wait; and a wait beyond the work is that for a
    /// slow sender, whatever the method.
    fn cost_until(&self, now: Instant) -> Duration {
        let work = now.duration_since(self.started) + self.owed;
        work + self.waited.min(work) / 2
    }

    /// A wait ends.
    fn go_on(&mut self, now: Instant) {
        self.waited += now.duration_since(self.started);
        self.started = now;
    }
}

impl ReceiveMethodChooser {
    /// Always `pinned`, or the best method that fits the buffers.
    pub(super) fn new(pinned: Option<ReceiveMethod>, buffer_bytes: usize) -> Self {
        let mut policy = pinned
            .map_or_else(|| policy_for_buffers(buffer_bytes), Policy::pinned)
            .with_work_unit(WorkUnit::Reads);
        policy.report_as(Half::TcpReceiver);
        let slice_bytes = match pinned {
            Some(ReceiveMethod::Recv { bytes }) => bytes as usize,
            _ => SLICE_BYTES,
        };
        Self { policy, slice_bytes, is_mapping_known: false, sample: None }
    }

    /// The cause booked for copied bytes. "Copying is faster" is not booked before it is known.
    #[inline]
    pub(super) fn cause_of_copying(&self) -> Cause {
        if self.is_mapping_known && !self.policy.is_pinned() {
            Cause::CopyingIsFaster
        } else {
            Cause::SocketCall
        }
    }

    /// The method to receive by now; data received before has been used.
    #[inline]
    pub(super) fn start_call(&mut self) -> ReceiveMethod {
        self.start_call_with_clock(Instant::now)
    }

    /// As [`start_call`](Self::start_call), with a clock, which is read only while measuring.
    #[inline]
    fn start_call_with_clock(&mut self, clock: impl Fn() -> Instant) -> ReceiveMethod {
        let mut now = None;
        if let Some(mut sample) = self.sample.take() {
            let started = *now.insert(clock());
            if sample.is_open {
                sample.go_on(started);
                return self.sample.insert(sample).choice.method;
            }
            self.record_sample(&sample, started);
        }
        let choice = self.policy.choose(WORK);
        if choice.measured {
            let started = now.unwrap_or_else(clock);
            self.sample = Some(CostSample {
                choice,
                started,
                owed: Duration::ZERO,
                waited: Duration::ZERO,
                units: 0,
                is_open: false,
            });
        }
        choice.method
    }

    /// The most bytes to receive by a copy, to be lent as a slice, of which nothing is measured; data
    /// received before has been used.
    #[inline]
    pub(super) fn start_slice(&mut self) -> usize {
        if let Some(sample) = self.sample.take().filter(|sample| !sample.is_open) {
            self.record_sample(&sample, Instant::now());
        }
        self.slice_bytes
    }

    fn record_sample(&mut self, sample: &CostSample, now: Instant) {
        if sample.units > 0 {
            self.is_mapping_known |= sample.choice.method == ReceiveMethod::Mapped;
            let work = Work { count: sample.units, ..WORK };
            self.policy.record(sample.choice, work, sample.cost_until(now));
        }
    }

    /// Whether a wait of the call affects a measurement.
    #[inline]
    pub(super) fn is_measuring(&self) -> bool {
        self.sample.is_some()
    }

    /// Notes that a wait of the call has ended.
    pub(super) fn end_wait(&mut self) {
        if let Some(sample) = &mut self.sample {
            sample.go_on(Instant::now());
        }
    }

    /// Leaves out what the call did so far.
    pub(super) fn restart_clock(&mut self) {
        if let Some(sample) = &mut self.sample {
            sample.started = Instant::now();
        }
    }

    /// Adds the cost of unmapping the chunk, which happens later, together with others.
    pub(super) fn add_unmapping_cost(&mut self, cost: Duration) {
        if let Some(sample) = &mut self.sample {
            sample.owed = cost;
        }
    }

    /// Records that the call received nothing yet.
    #[inline]
    pub(super) fn note_empty_call(&mut self) {
        if let Some(sample) = &mut self.sample {
            sample.is_open = true;
        }
    }

    /// Notes what the call received, and how. A receiver that is faster than its sender never fills a large
    /// chunk, so a chunk need not be full, only long enough that its bytes dominate its cost.
    #[inline]
    pub(super) fn note_received(&mut self, way: ReceiveMethod, bytes: usize) {
        let Some(sample) = &mut self.sample else { return };
        sample.is_open = false;
        let bytes_max = match way {
            ReceiveMethod::Recv { bytes } => bytes as usize,
            ReceiveMethod::Mapped => usize::MAX,
        };
        if way == sample.choice.method && bytes >= TELLING_BYTES_MIN.min(bytes_max) {
            sample.units = (bytes / UNIT_BYTES).max(1) as u32;
        }
    }

    /// Notes that pages cannot be mapped, now or ever.
    pub(super) fn rule_out_mapping(&mut self, why: ExclusionReason) {
        self.sample = None;
        self.is_mapping_known = true;
        if !self.policy.is_pinned() {
            self.policy.rule_out(ReceiveMethod::Mapped, why);
        }
    }

    pub(super) fn explain(&self) -> PolicyExplanation<ReceiveMethod> {
        self.policy.explain()
    }
}

fn policy_for_buffers(buffer_bytes: usize) -> Policy<ReceiveMethod> {
    let fitting = CHUNK_BYTES.into_iter().filter(|&bytes| bytes as usize <= buffer_bytes);
    let mut ways: Vec<ReceiveMethod> = fitting.map(|bytes| ReceiveMethod::Recv { bytes }).collect();
    if ways.is_empty() {
        ways.push(ReceiveMethod::Recv { bytes: buffer_bytes as u32 });
    }
    // Tried first, because it has the most to gain; whether anything is mapped is known after some chunks.
    ways.insert(1, ReceiveMethod::Mapped);
    Policy::new(&ways)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method_in_use(explanation: &PolicyExplanation<ReceiveMethod>) -> Option<ReceiveMethod> {
        explanation.classes.first().map(|class| class.method)
    }

    fn candidate_methods(buffer_bytes: usize) -> Vec<ReceiveMethod> {
        let mut chooser = ReceiveMethodChooser::new(None, buffer_bytes);
        let first = chooser.start_call();
        let explanation = chooser.explain();
        let others = explanation.classes[0].others.iter().map(|other| other.method);
        [first].into_iter().chain(others).collect()
    }

    #[test]
    fn receive_lengths_are_displayed_in_their_largest_unit() {
        let name = |bytes| ReceiveMethod::Recv { bytes }.to_string();
        let names = [name(1000), name(64 << 10), name(1536 << 10), name(1 << 20)];
        assert_eq!(names, ["recv of 1000 bytes", "recv of 64 KiB", "recv of 1536 KiB", "recv of 1 MiB"]);
    }

    #[test]
    fn candidate_chunk_lengths_fit_into_the_buffers() {
        let all = candidate_methods(CHUNK_BYTES_MAX);
        assert_eq!((all.len(), all[0]), (policy::METHODS_MAX, ReceiveMethod::Recv { bytes: 64 << 10 }));
        assert_eq!(candidate_methods(40 << 10).len(), 3);
        assert_eq!(candidate_methods(4096), [ReceiveMethod::Recv { bytes: 4096 }, ReceiveMethod::Mapped]);
        assert_eq!(
            candidate_methods(16 << 10),
            [ReceiveMethod::Recv { bytes: 16 << 10 }, ReceiveMethod::Mapped]
        );
    }

    #[test]
    fn calls_that_receive_nothing_continue_a_measurement() {
        let mut chooser = ReceiveMethodChooser::new(None, CHUNK_BYTES_MAX);
        for _ in 0..1000 {
            chooser.start_call();
            assert!(chooser.is_measuring());
            chooser.note_empty_call();
        }
        chooser.note_received(ReceiveMethod::Recv { bytes: 64 << 10 }, 64 << 10);
        chooser.start_call();
        assert!(chooser.explain().classes[0].cost_ns.is_some());
    }

    #[test]
    fn a_slice_behind_a_chunk_ends_its_measurement() {
        let mut chooser = ReceiveMethodChooser::new(None, CHUNK_BYTES_MAX);
        let method = chooser.start_call();
        chooser.note_received(method, 64 << 10);
        chooser.start_slice();
        assert!(chooser.explain().classes[0].cost_ns.is_some());
        assert!(!chooser.is_measuring(), "a slice is not measured");
    }

    #[test]
    fn short_chunks_are_not_measured() {
        let mut chooser = ReceiveMethodChooser::new(None, CHUNK_BYTES_MAX);
        for _ in 0..1000 {
            let way = chooser.start_call();
            chooser.note_received(way, 1000);
            assert_eq!(chooser.cause_of_copying(), Cause::SocketCall, "nothing was compared");
        }
        let explanation = chooser.explain();
        assert_eq!(explanation.classes[0].cost_ns, None);
        assert_eq!(method_in_use(&explanation), Some(ReceiveMethod::Recv { bytes: 64 << 10 }));
    }

    /// Receives that many bytes, where each waiting call takes that long by each way.
    fn explain_after_receiving(
        bytes: usize,
        queued: usize,
        cost: impl Fn(ReceiveMethod, usize) -> f64,
    ) -> PolicyExplanation<ReceiveMethod> {
        let mut chooser = ReceiveMethodChooser::new(None, CHUNK_BYTES_MAX);
        let (mut now, mut received, mut call) = (Instant::now(), 0, 0_u32);
        while received < bytes {
            let way = chooser.start_call_with_clock(|| now);
            let count = match way {
                ReceiveMethod::Recv { bytes } => queued.min(bytes as usize),
                ReceiveMethod::Mapped => queued,
            };
            call += 1;
            // Some noise, and now and then a call that was preempted.
            let factor =
                1.0 + f64::from(call * 7919 % 101) / 500.0 + if call % 97 == 50 { 10.0 } else { 0.0 };
            now += Duration::from_nanos((cost(way, count) * factor) as u64);
            chooser.note_received(way, count);
            received += count;
        }
        chooser.explain()
    }

    /// A call, and a price by 4 KiB.
    fn linear_cost_ns(call_ns: f64, copied_ns: f64, mapped_ns: f64) -> impl Fn(ReceiveMethod, usize) -> f64 {
        move |way, count| {
            let each_ns = if way == ReceiveMethod::Mapped { mapped_ns } else { copied_ns };
            call_ns + each_ns * count as f64 / UNIT_BYTES as f64
        }
    }

    #[test]
    fn mapping_is_chosen_only_where_it_is_cheaper() {
        // 48 KiB: a sender that is slower than the receiver, so no chunk is ever filled.
        for queued in [48 << 10, 4 << 20] {
            let cheaper = explain_after_receiving(2 << 30, queued, linear_cost_ns(500.0, 400.0, 250.0));
            assert_eq!(method_in_use(&cheaper), Some(ReceiveMethod::Mapped), "{queued}: {cheaper}");
            let dearer = explain_after_receiving(2 << 30, queued, linear_cost_ns(500.0, 400.0, 500.0));
            assert_ne!(method_in_use(&dearer), Some(ReceiveMethod::Mapped), "{queued}: {dearer}");
        }
    }

    #[test]
    fn the_cheapest_chunk_length_is_chosen() {
        // What does not fit into a cache costs more.
        let cost = |way, count: usize| {
            linear_cost_ns(2000.0, if count > 256 << 10 { 400.0 } else { 200.0 }, 900.0)(way, count)
        };
        let explanation = explain_after_receiving(2 << 30, 4 << 20, cost);
        assert_eq!(
            method_in_use(&explanation),
            Some(ReceiveMethod::Recv { bytes: 256 << 10 }),
            "{explanation}"
        );
    }

    /// Has that many chunks received, each behind a wait, by the method in use.
    fn method_after_waits(
        chunks: u32,
        work_and_wait_ns: impl Fn(ReceiveMethod) -> (u64, u64),
    ) -> Option<ReceiveMethod> {
        let mut chooser = ReceiveMethodChooser::new(None, CHUNK_BYTES_MAX);
        let mut now = Instant::now();
        for _ in 0..chunks {
            let way = chooser.start_call_with_clock(|| now);
            let (work_ns, wait_ns) = work_and_wait_ns(way);
            chooser.note_empty_call();
            now += Duration::from_nanos(wait_ns);
            assert_eq!(chooser.start_call_with_clock(|| now), way, "the call goes on");
            now += Duration::from_nanos(work_ns);
            chooser.note_received(way, 64 << 10);
        }
        method_in_use(&chooser.explain())
    }

    #[test]
    fn waits_that_a_method_causes_count_and_those_for_a_slow_sender_do_not() {
        let short = ReceiveMethod::Recv { bytes: 16 << 10 };
        let held_up = method_after_waits(20_000, |way| (9000, if way == short { 1000 } else { 8000 }));
        assert_eq!(held_up, Some(short), "as much work, and less wait");
        // The slow sender's pause is as long as it is, less the work.
        for pause in [20_000, 2_000_000] {
            let paused = method_after_waits(20_000, |way| {
                let work = if way == ReceiveMethod::Mapped { 6000 } else { 9000 };
                (work, pause - work)
            });
            assert_eq!(paused, Some(ReceiveMethod::Mapped), "less work, and a pause of {pause} ns");
        }
    }

    #[test]
    fn deferred_unmapping_counts_as_cost() {
        let mut chooser = ReceiveMethodChooser::new(Some(ReceiveMethod::Mapped), CHUNK_BYTES_MAX);
        let start = Instant::now();
        chooser.start_call_with_clock(|| start);
        chooser.add_unmapping_cost(Duration::from_micros(16));
        chooser.note_received(ReceiveMethod::Mapped, 64 << 10);
        chooser.start_call_with_clock(|| start + Duration::from_micros(16));
        assert_eq!(chooser.explain().classes[0].cost_ns, Some(2000.0));
    }
}
