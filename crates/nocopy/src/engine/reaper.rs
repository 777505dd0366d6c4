//! Memory that the kernel still reads when its socket is dropped.
//!
//! Completions arrive on the socket's descriptor, so none arrives after it is closed. One thread of the
//! process keeps such descriptors until the kernel reads no more; it ends when there are none left.
//!
//! A sender that is closed by force gives its memory up at once. Pages of a pool are replaced
//! (`MADV_DONTNEED`; the kernel keeps the old ones, even if they are locked). If rings have registered the
//! pool, pages are replaced when the last of these rings ends. Other memory is leaked and counted if it
//! carried datagrams, and left to the reaper if it belongs to a stream.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Resource, getrlimit};

use crate::counter::Counter;
use crate::memory::pool;
use crate::memory::send_queue::{CallNote, KernelSocket, Payload, SendQueue};
use crate::stats::Stats;
use crate::sys::fork::PerProcess;
use crate::sys::udp_send::unsent_bytes;

/// Shortest and longest sleep between two polls; a stalled peer may stall for long.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// How long packets under way on this machine may keep memory that is cut off from its socket: in a device's
/// queue, or at a local receiver.
const GRACE: Duration = Duration::from_secs(1);

/// The most bytes that waiting sockets may hold. Beyond it, the sockets whose peers acknowledged nothing for
/// the longest time are cut off.
const BYTES_MAX: usize = 256 << 20;

/// How long to wait for each socket even if there are too many: several long round trips with losses.
const TIME_MIN: Duration = Duration::from_secs(10);

/// The most sockets, as a fraction of the process's limit of descriptors: the program needs the rest.
const SHARE_OF_DESCRIPTORS: u64 = 4;

/// The rest of a dropped socket: its descriptor, and the memory that the kernel reads.
trait DetachedQueue: Send {
    /// Releases memory that the kernel no longer reads.
    fn reap(&mut self);

    fn is_read_by_kernel(&self) -> bool;

    /// Bytes that the kernel reads.
    fn bytes_read_by_kernel(&self) -> usize;

    /// Bytes that the peer has not acknowledged, or that are on their way.
    fn outstanding_bytes(&self) -> usize;

    /// Makes the kernel release as much as it can, if the program cannot receive on the socket any more.
    fn cut_off(&mut self, by: fn(BorrowedFd<'_>));

    /// Gives up the memory that the kernel still reads, and returns how many bytes the program cannot use
    /// again.
    fn abandon(self: Box<Self>) -> usize;
}

/// The settings for closing a socket whose memory the kernel still reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct CloseTimeouts {
    /// How long a socket may make no progress before its connection is reset.
    pub(crate) patience: Duration,
    /// Makes the kernel drop unsent and unacknowledged data; `None` for datagrams, which are sent once, and
    /// soon.
    pub(crate) cut_off: Option<fn(BorrowedFd<'_>)>,
}

/// Leaves the memory that the kernel still reads for a dropped sender to the reaper.
pub(crate) fn hand_over_to_reaper<P: Payload, C: CallNote>(
    queue: &mut SendQueue<P, C>,
    timeouts: CloseTimeouts,
) {
    if queue.in_flight() > 0 && !queue.is_inherited() {
        adopt(Box::new(queue.detach()), timeouts);
    }
}

impl<P: Payload, C: CallNote> DetachedQueue for SendQueue<P, C> {
    fn reap(&mut self) {
        self.collect();
        self.settle_without_evidence();
    }

    fn is_read_by_kernel(&self) -> bool {
        self.in_flight() > 0 && !self.is_inherited()
    }

    fn bytes_read_by_kernel(&self) -> usize {
        self.read_bytes()
    }

    fn outstanding_bytes(&self) -> usize {
        unsent_bytes(&self.socket()).unwrap_or(0)
    }

    fn cut_off(&mut self, by: fn(BorrowedFd<'_>)) {
        if !self.is_inherited() && !KernelSocket::is_shared(self.kernel_socket()) {
            by(self.socket());
        }
    }

    fn abandon(self: Box<Self>) -> usize {
        (*self).abandon()
    }
}

struct DetachedSocket {
    queue: Box<dyn DetachedQueue>,
    timeouts: CloseTimeouts,
    since: Instant,
    /// When the peer last acknowledged anything; below, the bytes not acknowledged then.
    progress: Instant,
    outstanding_bytes: usize,
    has_short_timeout: bool,
    cut_off: Option<Instant>,
}

#[derive(Default)]
struct Reaper {
    detached: Vec<DetachedSocket>,
    is_running: bool,
}

/// A forked child has none of its parent's threads, and leaves its parent's sockets to the parent.
static REAPER: PerProcess<Mutex<Reaper>> = PerProcess::new();
static LEAKED_BYTES: AtomicU64 = AtomicU64::new(0);
static SOCKETS_CUT_OFF: AtomicU64 = AtomicU64::new(0);

/// Counters of the memory and sockets that this process gave up after sockets were dropped or closed.
///
/// * `leaked_bytes`: memory that the kernel never released, and that could not be replaced: memory not from a
///   pool and frames (and pages of pools, if the kernel refuses to replace them) of UDP sockets that were
///   closed by force, and of dropped sockets that were not completed in time (10 s for datagrams; for streams
///   two minutes, and a second after the connection was reset).
/// * `sockets_cut_off`: dropped sockets whose completions are no longer waited for: their peers acknowledged
///   nothing for two minutes (streams) or 10 s (datagrams), or there were too many. Dropped sockets may be a
///   quarter of the process's limit of descriptors (`ulimit -n`), and hold 256 MiB; beyond that, those whose
///   peers were silent for the longest time are cut off, none before 10 s. Streams are reset, unless the
///   program still has the receiving half.
///
/// ```
/// assert_eq!(nocopy::process_stats().get("leaked_bytes"), Some(0)); // nothing was given up
/// ```
pub fn process_stats() -> Stats {
    let counter = |name, meaning, value| Counter { name: Cow::Borrowed(name), meaning, value };
    let leaked_bytes = LEAKED_BYTES.load(Relaxed) + pool::not_replaced_bytes();
    let sockets_cut_off = SOCKETS_CUT_OFF.load(Relaxed);
    Stats::default().with_counters([
        counter("leaked_bytes", "Bytes that the kernel never gave back", leaked_bytes),
        counter("sockets_cut_off", "Dropped sockets that were not waited for any longer", sockets_cut_off),
    ])
}

pub(crate) fn count_leaked(bytes: usize) {
    LEAKED_BYTES.fetch_add(bytes as u64, Relaxed);
}

fn lock_reaper() -> MutexGuard<'static, Reaper> {
    REAPER.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes over memory that the kernel still reads.
fn adopt(queue: Box<dyn DetachedQueue>, timeouts: CloseTimeouts) {
    let mut reaper = lock_reaper();
    reaper.detached.push(DetachedSocket::new(queue, timeouts, Instant::now()));
    // `run_reaper` clears the flag under this lock, and only if nothing is left, so it sees what was just
    // pushed.
    if !reaper.is_running {
        reaper.is_running = thread::Builder::new().name("nocopy-reaper".into()).spawn(run_reaper).is_ok();
    }
    if !reaper.is_running {
        // Without a thread, the memory is given up at once; values that the program drops then may lead here
        // again.
        let detached = std::mem::take(&mut reaper.detached);
        drop(reaper);
        detached.into_iter().for_each(DetachedSocket::abandon);
    }
}

fn run_reaper() {
    let mut pause = PAUSE;
    loop {
        thread::sleep(pause);
        // The lock is not held below: a value of the program that is dropped there may call `adopt`.
        let mut detached = std::mem::take(&mut lock_reaper().detached);
        shorten_timeouts(&mut detached, detached_count_max(), BYTES_MAX);
        // A panic here costs one socket only: the memory being dropped then is leaked.
        let poll = |waiting: DetachedSocket| {
            catch_unwind(AssertUnwindSafe(|| waiting.release_or_keep())).ok().flatten()
        };
        let waiting: Vec<_> = detached.into_iter().filter_map(poll).collect();
        let mut reaper = lock_reaper();
        reaper.detached.extend(waiting);
        let Some(youngest) = reaper.detached.iter().map(|waiting| waiting.since.elapsed()).min() else {
            reaper.is_running = false;
            return;
        };
        pause = (youngest / 8).clamp(PAUSE, PAUSE_MAX);
    }
}

/// The most dropped sockets to wait for.
fn detached_count_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(usize::MAX)
}

/// If there are too many, shortens the wait for those whose peers were silent for the longest time.
fn shorten_timeouts(detached: &mut [DetachedSocket], count_max: usize, bytes_max: usize) {
    detached.sort_by_key(|waiting| Reverse(waiting.progress));
    let mut bytes = 0_usize;
    for (livelier, waiting) in detached.iter_mut().enumerate() {
        bytes = bytes.saturating_add(waiting.queue.bytes_read_by_kernel());
        waiting.has_short_timeout = livelier >= count_max || (livelier > 0 && bytes > bytes_max);
    }
}

impl DetachedSocket {
    fn new(queue: Box<dyn DetachedQueue>, timeouts: CloseTimeouts, since: Instant) -> Self {
        let outstanding_bytes = queue.outstanding_bytes();
        Self {
            queue,
            timeouts,
            since,
            progress: since,
            outstanding_bytes,
            has_short_timeout: false,
            cut_off: None,
        }
    }

    /// Whether the wait has lasted long enough.
    fn is_overdue(&mut self) -> bool {
        let outstanding_bytes = self.queue.outstanding_bytes();
        if outstanding_bytes < self.outstanding_bytes {
            self.progress = Instant::now();
        }
        self.outstanding_bytes = outstanding_bytes;
        let patience = self.timeouts.patience;
        self.cut_off.is_some()
            || self.progress.elapsed() >= patience
            || (self.has_short_timeout && self.since.elapsed() >= TIME_MIN.min(patience))
    }

    /// Releases what the kernel no longer reads, or everything if it is late; `None` if there is nothing left
    /// to wait for.
    fn release_or_keep(mut self) -> Option<Self> {
        self.queue.reap();
        if !self.queue.is_read_by_kernel() {
            return None;
        }
        if !self.is_overdue() {
            return Some(self);
        }
        if self.cut_off.is_some_and(|since| since.elapsed() > GRACE) {
            count_leaked(self.queue.abandon());
            return None;
        }
        self.cut_off();
        self.queue.is_read_by_kernel().then_some(self)
    }

    /// To be repeated: while another thread receives on a stream the kernel may refuse (`EBUSY`).
    fn cut_off(&mut self) {
        if self.cut_off.is_none() {
            self.cut_off = Some(Instant::now());
            SOCKETS_CUT_OFF.fetch_add(1, Relaxed);
        }
        if let Some(cut_off) = self.timeouts.cut_off {
            self.queue.cut_off(cut_off);
        }
        self.queue.reap();
    }

    fn abandon(mut self) {
        self.cut_off();
        count_leaked(self.queue.abandon());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use nocopy_lab::patience::wait_until;

    use super::*;
    use crate::sys::fork::tests::in_forked_child;

    fn timeouts_with_patience(patience: Duration) -> CloseTimeouts {
        CloseTimeouts { patience, cut_off: Some(|_| {}) }
    }

    /// A queue that is finished after the first reap.
    struct ReapRecordingQueue(Arc<AtomicBool>);

    impl DetachedQueue for ReapRecordingQueue {
        fn reap(&mut self) {
            self.0.store(true, Relaxed);
        }

        fn is_read_by_kernel(&self) -> bool {
            !self.0.load(Relaxed)
        }

        fn bytes_read_by_kernel(&self) -> usize {
            100
        }

        fn outstanding_bytes(&self) -> usize {
            0
        }

        fn cut_off(&mut self, _: fn(BorrowedFd<'_>)) {}

        fn abandon(self: Box<Self>) -> usize {
            0
        }
    }

    /// Completes when it is cut off, or never.
    struct SilentQueue {
        obeys: bool,
        is_cut_off: bool,
        end: Arc<Mutex<Option<&'static str>>>,
    }

    impl DetachedQueue for SilentQueue {
        fn reap(&mut self) {
            if self.obeys && self.is_cut_off {
                *self.end.lock().unwrap() = Some("reaped");
            }
        }

        fn is_read_by_kernel(&self) -> bool {
            self.end.lock().unwrap().is_none()
        }

        fn bytes_read_by_kernel(&self) -> usize {
            100
        }

        fn outstanding_bytes(&self) -> usize {
            0
        }

        fn cut_off(&mut self, _: fn(BorrowedFd<'_>)) {
            self.is_cut_off = true;
        }

        fn abandon(self: Box<Self>) -> usize {
            *self.end.lock().unwrap() = Some(if self.is_cut_off { "abandoned" } else { "abandoned at once" });
            0
        }
    }

    #[test]
    fn a_silent_socket_is_cut_off_before_its_memory_is_abandoned() {
        for (obeys, expected) in [(true, "reaped"), (false, "abandoned")] {
            let end = Arc::default();
            let queue = SilentQueue { obeys, is_cut_off: false, end: Arc::clone(&end) };
            adopt(Box::new(queue), timeouts_with_patience(Duration::ZERO));
            wait_until("its end", || end.lock().unwrap().is_some());
            assert_eq!(*end.lock().unwrap(), Some(expected));
        }
    }

    #[test]
    fn a_child_forked_while_the_reaper_is_locked_has_its_own() {
        let locked = lock_reaper();
        in_forked_child(|| {
            let reaped = Arc::default();
            adopt(Box::new(ReapRecordingQueue(Arc::clone(&reaped))), timeouts_with_patience(Duration::MAX));
            wait_until("a look", || reaped.load(Relaxed));
        });
        drop(locked);
    }

    #[test]
    fn sockets_without_progress_get_the_short_timeout_first() {
        for (count_max, bytes_max, expected) in
            [(4, 400, 4), (2, 400, 2), (4, 300, 3), (4, 50, 1), (0, 400, 0)]
        {
            let first = Instant::now();
            // Not in the order of their deadlines.
            let mut detached: Vec<_> = [1, 3, 0, 2]
                .map(|age| first + Duration::from_secs(3 - age))
                .map(|since| {
                    DetachedSocket::new(
                        Box::new(PanickingQueue),
                        timeouts_with_patience(Duration::MAX),
                        since,
                    )
                })
                .into();
            shorten_timeouts(&mut detached, count_max, bytes_max);
            let short: Vec<_> = detached.iter().map(|waiting| waiting.has_short_timeout).collect();
            let kept = short.iter().take_while(|has_short_timeout| !**has_short_timeout).count();
            assert_eq!(kept, expected, "{short:?}");
            assert!(short[kept..].iter().all(|&has_short_timeout| has_short_timeout), "{short:?}");
            assert!(detached.is_sorted_by_key(|waiting| Reverse(waiting.progress)));
        }
    }

    /// A socket that only a cut-off ends, with unlimited patience.
    fn patient_socket(since: Instant, end: &Arc<Mutex<Option<&'static str>>>) -> DetachedSocket {
        let queue = SilentQueue { obeys: true, is_cut_off: false, end: Arc::clone(end) };
        DetachedSocket::new(Box::new(queue), timeouts_with_patience(Duration::MAX), since)
    }

    #[test]
    fn a_socket_with_short_timeout_is_cut_off_after_the_minimum_time() {
        let (before, end, start) =
            (process_stats().get("sockets_cut_off").unwrap(), Arc::default(), Instant::now());
        let mut waiting = patient_socket(start + 3 * TIME_MIN, &end); // not yet begun
        waiting.has_short_timeout = true;
        let mut waiting = waiting.release_or_keep().expect("it has time");
        assert!(end.lock().unwrap().is_none());
        waiting.since = start.checked_sub(TIME_MIN).expect("the machine runs for longer");
        assert!(waiting.release_or_keep().is_none());
        assert_eq!(*end.lock().unwrap(), Some("reaped"));
        assert!(process_stats().get("sockets_cut_off").unwrap() > before);
    }

    #[test]
    fn acknowledgements_count_as_progress() {
        let (end, long_ago) = (Arc::default(), Instant::now().checked_sub(TIME_MIN).unwrap());
        let waiting = patient_socket(long_ago, &end).release_or_keep().expect("it is waited for");
        assert_eq!(waiting.progress, long_ago);
        let waiting =
            DetachedSocket { outstanding_bytes: 1, ..waiting }.release_or_keep().expect("it is waited for");
        assert!(waiting.progress > long_ago, "a byte was acknowledged");
    }

    struct PanickingQueue;

    impl DetachedQueue for PanickingQueue {
        fn reap(&mut self) {
            panic!("on purpose: a fault of the reaper's");
        }

        fn is_read_by_kernel(&self) -> bool {
            true
        }

        fn bytes_read_by_kernel(&self) -> usize {
            100
        }

        fn outstanding_bytes(&self) -> usize {
            0
        }

        fn cut_off(&mut self, _: fn(BorrowedFd<'_>)) {}

        fn abandon(self: Box<Self>) -> usize {
            0
        }
    }

    #[test]
    fn a_panic_in_one_queue_does_not_stop_the_reaper() {
        for _ in 0..3 {
            let reaped: [Arc<AtomicBool>; 2] = Default::default();
            adopt(
                Box::new(ReapRecordingQueue(Arc::clone(&reaped[0]))),
                timeouts_with_patience(Duration::MAX),
            );
            adopt(Box::new(PanickingQueue), timeouts_with_patience(Duration::MAX));
            adopt(
                Box::new(ReapRecordingQueue(Arc::clone(&reaped[1]))),
                timeouts_with_patience(Duration::MAX),
            );
            wait_until("a look", || reaped.iter().all(|reaped| reaped.load(Relaxed)));
        }
    }
}
