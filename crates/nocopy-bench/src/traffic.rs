//! Conducts one trial: starts its threads, opens and closes the window, reads the counters around it.

use std::ffi::CStr;
use std::io;
use std::thread::{self, ScopedJoinHandle, sleep};
use std::time::{Duration, Instant};

use super::cpu;
use super::stage::{NetworkSite, SitePair};
use super::window::{TrialPhase, TrialWindow, WindowGauge, WindowReading};
use nocopy_report::capability;

/// Long enough for the caches, the branch predictor and a sleeping receiver.
const WARM_UP: Duration = Duration::from_millis(25);
/// How long threads may take to begin, and the interval of checks.
const START_MAX: Duration = Duration::from_secs(5);
const START_POLL: Duration = Duration::from_millis(1);
/// Longer than any receiver sleeps.
const DRAIN: Duration = Duration::from_millis(25);

/// A thread's work: continues until its gauge says stop.
pub(crate) type ThreadWork<'a> = Box<dyn FnOnce(&mut WindowGauge<'_>) -> io::Result<()> + Send + 'a>;

/// A count kept by the kernel, such as the packets an XDP program dropped.
pub(crate) type SinkCounter<'a> = &'a dyn Fn() -> io::Result<u64>;

#[derive(Debug, Clone, Default)]
pub(crate) struct TrafficReadings {
    pub senders: Vec<WindowReading>,
    /// Empty if there is only a sink.
    pub receivers: Vec<WindowReading>,
    /// Packets the sink counted in the window, and how long that was.
    pub sink: Option<(u64, Duration)>,
    pub machine_busy: Duration,
    /// The share of the processors' time that another machine took, during the whole trial.
    pub stolen_percent: f64,
    /// For streams only.
    pub stream: StreamFacts,
}

#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StreamFacts {
    /// The times of the proxy's process.
    pub proxy: Option<WindowReading>,
    /// The fraction of received bytes that were mapped, not copied.
    pub mapped_fraction: Option<f64>,
    /// How often the receiver copied each byte in user space.
    pub receiver_user_copies: Option<f64>,
    /// The receiver's buffer, if it has a fixed length.
    pub buffer_bytes: Option<usize>,
    /// The most memory that the receiver's process had.
    pub memory_bytes: Option<u64>,
    /// TCP segments that were retransmitted, during the whole trial.
    pub segments_retransmitted: Option<u64>,
}

/// The counters around the window, read as close together as can be.
pub(crate) struct CounterProbe {
    at: Instant,
    idle: Duration,
    processors: u32,
    packets: u64,
}

impl CounterProbe {
    pub(crate) fn take(sink: Option<SinkCounter<'_>>) -> io::Result<Self> {
        let (idle, processors) = cpu::machine_idle_time()?;
        let packets = sink.map_or(Ok(0), |count| count())?;
        Ok(Self { at: Instant::now(), idle, processors, packets })
    }

    /// The time since `start`, and the sink's increase meanwhile.
    pub(crate) fn counted_since(&self, before: &CounterProbe) -> (Duration, u64) {
        (self.at - before.at, self.packets.saturating_sub(before.packets))
    }

    pub(crate) fn machine_busy_since(&self, before: &CounterProbe) -> Duration {
        let whole = (self.at - before.at) * self.processors;
        whole.saturating_sub(self.idle.saturating_sub(before.idle))
    }
}

/// The threads of each side start on their processors one after another.
pub(crate) fn run_trial(
    stage: &SitePair,
    duration: Duration,
    sink: Option<SinkCounter<'_>>,
    send: Vec<ThreadWork<'_>>,
    receive: Vec<ThreadWork<'_>>,
) -> io::Result<TrafficReadings> {
    let window = TrialWindow::new();
    thread::scope(|scope| {
        let window = &window;
        let start =
            |role, site, (place, work)| scope.spawn(move || run_worker(role, site, place, work, window));
        let receive = receive.into_iter().enumerate();
        let receivers: Vec<_> = receive.map(|work| start(c"receiver", &stage.receiver, work)).collect();
        let send = send.into_iter().enumerate();
        let senders: Vec<_> = send.map(|work| start(c"sender", &stage.sender, work)).collect();
        let all: Vec<_> = receivers.iter().chain(&senders).collect();
        wait_for_workers(window, &all);
        let probes = open_window(window, duration, sink);
        // No early return from here on: the threads wait for the stop, and the scope for the threads.
        let senders: Vec<_> = senders.into_iter().map(join_worker).collect();
        if !receivers.is_empty() {
            sleep(DRAIN);
        }
        window.advance(TrialPhase::Stop);
        // Its errors first: after a receiver has failed, its sender fails too.
        let receivers = receivers.into_iter().map(join_worker).collect::<Result<_, _>>()?;
        let (before, after) = probes?;
        Ok(TrafficReadings {
            senders: senders.into_iter().collect::<Result<_, _>>()?,
            receivers,
            sink: sink.map(|_| {
                let (elapsed, packets) = after.counted_since(&before);
                (packets, elapsed)
            }),
            machine_busy: after.machine_busy_since(&before),
            ..TrafficReadings::default()
        })
    })
}

/// Waits until every thread has done some work: on a busy machine the window could otherwise end before one
/// begins.
fn wait_for_workers<T>(window: &TrialWindow, threads: &[&ScopedJoinHandle<'_, T>]) {
    let start = Instant::now();
    while window.threads_under_way() < threads.len()
        && !threads.iter().any(|thread| thread.is_finished())
        && start.elapsed() < START_MAX
    {
        sleep(START_POLL);
    }
}

fn run_worker(
    role: &CStr,
    site: &NetworkSite,
    place: usize,
    work: ThreadWork<'_>,
    window: &TrialWindow,
) -> io::Result<WindowReading> {
    site.enter_thread(place)?;
    // Everything is open: reading packets needs no privileges any more.
    capability::drop_others(capability::NONE)?;
    rustix::thread::set_name(role)?; // as top(1) and the tests show it
    let mut gauge = window.gauge();
    work(&mut gauge)?;
    Ok(gauge.finish())
}

/// Opens the window for `duration`; leaves it in [`TrialPhase::Drain`] in every case.
fn open_window(
    window: &TrialWindow,
    duration: Duration,
    sink: Option<SinkCounter<'_>>,
) -> io::Result<(CounterProbe, CounterProbe)> {
    sleep(WARM_UP);
    window.advance(TrialPhase::Measure);
    let before = CounterProbe::take(sink);
    sleep(duration);
    let after = CounterProbe::take(sink);
    window.advance(TrialPhase::Drain);
    Ok((before?, after?))
}

fn join_worker(thread: ScopedJoinHandle<'_, io::Result<WindowReading>>) -> io::Result<WindowReading> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}
