//! Memory that the kernel still reads when its socket is dropped.
//!
//! Completions come by the descriptor, and none after it is closed. So one thread of the process keeps such descriptors until the
//! kernel has done; it ends when there are none left.
//!
//! A sender that is closed by force gives its memory up at once. Pages of a pool are replaced (`MADV_DONTNEED`; the kernel keeps the
//! old ones; locked pages, too). If rings have registered the pool, they are replaced when the last of these rings ends. Other memory
//! is leaked and counted if it carried datagrams, and left to the reaper if it belongs to a stream.

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
use crate::memory::in_flight::kernel_socket::KernelSocket;
use crate::memory::in_flight::{Kept, Load};
use crate::memory::pool;
use crate::stats::Stats;
use crate::sys::fork::OfProcess;
use crate::sys::udp_send::unsent_bytes;

/// How long to sleep between two looks: at first, and at most. A peer that stalls may do so for long.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// How long packets that are under way on this machine may keep memory that is cut off from its socket: in a queue of the device, or of a
/// receiver on this host.
const GRACE: Duration = Duration::from_secs(1);

/// The most bytes that sockets are waited for with: of more, those are cut off whose peers acknowledged nothing for the longest time.
const BYTES_MAX: usize = 256 << 20;

/// How long each is waited for, also where there are too many: several round trips of the longest ways, with losses.
const TIME_MIN: Duration = Duration::from_secs(10);

/// The same of their number, as a part of the descriptors that the process may have: the program needs the rest.
const SHARE_OF_DESCRIPTORS: u64 = 4;

/// What is left of a socket that nobody has any more: its descriptor, and what the kernel reads.
trait Orphan: Send {
    /// Lets go of what the kernel has done with.
    fn reap(&mut self);

    /// Whether the kernel still reads any of it.
    fn is_read(&self) -> bool;

    /// Bytes that it reads.
    fn bytes(&self) -> usize;

    /// Bytes that its peer has not acknowledged, or that are on their way.
    fn outstanding_bytes(&self) -> usize;

    /// How long nothing may be acknowledged before the socket is [cut off](Self::cut_off).
    fn patience(&self) -> Duration;

    /// Makes the kernel let go of as much as it can, at the cost of what was not delivered: streams are reset.
    fn cut_off(&mut self);

    /// Gives up what the kernel still reads, and returns how many bytes are lost to the program.
    fn abandon(self: Box<Self>) -> usize;
}

/// What becomes of a socket that is dropped while the kernel reads memory for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Parting {
    /// How long nothing may be acknowledged before it is cut off.
    pub(crate) patience: Duration,
    /// Makes the kernel drop what it has not sent, or may have to send again; `None` for datagrams, which are sent once, and soon.
    pub(crate) cut_off: Option<fn(BorrowedFd<'_>)>,
}

/// Leaves what the kernel still reads of a sender that is dropped to the reaper.
pub(crate) fn leave<M, T, C>(kept: &mut Kept<M, T, C>, parting: Parting)
where
    M: Load + 'static,
    T: Send + 'static,
    C: Send + 'static,
{
    if kept.in_flight() > 0 && !kept.is_inherited() {
        adopt(Box::new(Left { kept: kept.take(), parting }));
    }
}

/// What is left of a sender.
struct Left<M, T, C> {
    kept: Kept<M, T, C>,
    parting: Parting,
}

impl<M: Load, T: Send, C: Send> Orphan for Left<M, T, C> {
    fn reap(&mut self) {
        self.kept.reap_unseen();
    }

    fn is_read(&self) -> bool {
        self.kept.in_flight() > 0 && !self.kept.is_inherited()
    }

    fn bytes(&self) -> usize {
        self.kept.read_bytes()
    }

    fn outstanding_bytes(&self) -> usize {
        unsent_bytes(&self.kept.socket()).unwrap_or(0)
    }

    fn patience(&self) -> Duration {
        self.parting.patience
    }

    /// Not where the program may still receive on the socket.
    fn cut_off(&mut self) {
        let is_ours = !self.kept.is_inherited() && !KernelSocket::is_shared(self.kept.kernel_socket());
        if let Some(cut_off) = self.parting.cut_off.filter(|_| is_ours) {
            cut_off(self.kept.socket());
        }
    }

    fn abandon(self: Box<Self>) -> usize {
        self.kept.abandon()
    }
}

struct Waiting {
    orphan: Box<dyn Orphan>,
    since: Instant,
    /// When its peer last acknowledged anything, and what it had not acknowledged then.
    progress: Instant,
    outstanding_bytes: usize,
    /// Its time is up before its patience is.
    is_hurried: bool,
    /// When it was cut off first.
    cut_off: Option<Instant>,
}

#[derive(Default)]
struct Home {
    orphans: Vec<Waiting>,
    is_running: bool,
}

/// A forked child has none of its parent's threads, and leaves its parent's orphans to the parent.
static HOME: OfProcess<Mutex<Home>> = OfProcess::new();
static LEAKED_BYTES: AtomicU64 = AtomicU64::new(0);
static SOCKETS_CUT_OFF: AtomicU64 = AtomicU64::new(0);

/// What dropped and closed sockets of this process gave up.
///
/// * `leaked_bytes`: memory that the kernel never gave back, and that could not be replaced: foreign memory and frames (and pages of pools, if
///   the kernel refuses to replace them) of UDP sockets that were closed by force, and of dropped sockets that were not completed in time
///   (10 s for datagrams; for streams two minutes, and a second after the connection was reset).
/// * `sockets_cut_off`: dropped sockets that were not waited for any longer: their peers acknowledged nothing for two minutes (streams) or
///   10 s (datagrams), or there were too many. Dropped sockets may be a quarter of the descriptors that the process may have (`ulimit -n`), and
///   hold 256 MiB; beyond that those go first whose peers acknowledged nothing for the longest time, none before 10 s. Streams are reset,
///   unless the program still has the receiving half.
///
/// ```
/// assert_eq!(nocopy::process_stats().get("leaked_bytes"), Some(0)); // nothing was given up
/// ```
pub fn process_stats() -> Stats {
    let counter = |name, meaning, value| Counter { name: Cow::Borrowed(name), meaning, value };
    let leaked_bytes = LEAKED_BYTES.load(Relaxed) + pool::not_replaced_bytes();
    let sockets_cut_off = SOCKETS_CUT_OFF.load(Relaxed);
    Stats::default().with([
        counter("leaked_bytes", "Bytes that the kernel never gave back", leaked_bytes),
        counter("sockets_cut_off", "Dropped sockets that were not waited for any longer", sockets_cut_off),
    ])
}

/// Adds to the `leaked_bytes` of [`process_stats`].
pub(crate) fn leaked(bytes: usize) {
    LEAKED_BYTES.fetch_add(bytes as u64, Relaxed);
}

fn home() -> MutexGuard<'static, Home> {
    HOME.get().lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes over what the kernel still reads.
fn adopt(orphan: Box<dyn Orphan>) {
    let mut home = home();
    home.orphans.push(Waiting::new(orphan, Instant::now()));
    if !home.is_running {
        match thread::Builder::new().name("nocopy-reaper".into()).spawn(run) {
            Ok(_) => home.is_running = true,
            Err(_) => {
                // Without a thread to wait for it, the memory is given up at once; what the program drops then may come here again.
                let orphans = std::mem::take(&mut home.orphans);
                drop(home);
                orphans.into_iter().for_each(Waiting::abandon);
            }
        }
    }
}

fn run() {
    let mut pause = PAUSE;
    loop {
        thread::sleep(pause);
        let mut orphans = std::mem::take(&mut home().orphans);
        hurry(&mut orphans, count_max(), BYTES_MAX);
        // A fault of ours costs that socket only: what is read while it is dropped stays where it is for good.
        let look = |waiting: Waiting| catch_unwind(AssertUnwindSafe(|| waiting.look())).ok().flatten();
        let waiting: Vec<_> = orphans.into_iter().filter_map(look).collect();
        let mut home = home();
        home.orphans.extend(waiting);
        let Some(youngest) = home.orphans.iter().map(|waiting| waiting.since.elapsed()).min() else {
            home.is_running = false;
            return;
        };
        pause = (youngest / 8).clamp(PAUSE, PAUSE_MAX);
    }
}

/// The most sockets that are waited for.
fn count_max() -> usize {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    usize::try_from(descriptors / SHARE_OF_DESCRIPTORS).unwrap_or(usize::MAX)
}

/// Of too many, those that stood still for the longest time are waited for no longer.
fn hurry(orphans: &mut [Waiting], count_max: usize, bytes_max: usize) {
    orphans.sort_by_key(|waiting| Reverse(waiting.progress));
    let mut bytes = 0_usize;
    for (livelier, waiting) in orphans.iter_mut().enumerate() {
        bytes = bytes.saturating_add(waiting.orphan.bytes());
        waiting.is_hurried = livelier >= count_max || (livelier > 0 && bytes > bytes_max);
    }
}

impl Waiting {
    fn new(orphan: Box<dyn Orphan>, since: Instant) -> Self {
        let outstanding_bytes = orphan.outstanding_bytes();
        Self { orphan, since, progress: since, outstanding_bytes, is_hurried: false, cut_off: None }
    }

    /// Whether it was waited for long enough.
    fn is_late(&mut self) -> bool {
        let outstanding_bytes = self.orphan.outstanding_bytes();
        if outstanding_bytes < self.outstanding_bytes {
            self.progress = Instant::now();
        }
        self.outstanding_bytes = outstanding_bytes;
        let patience = self.orphan.patience();
        self.cut_off.is_some()
            || self.progress.elapsed() >= patience
            || (self.is_hurried && self.since.elapsed() >= TIME_MIN.min(patience))
    }

    /// Lets go of what the kernel has done with, or of everything when it is late; `None` if there is nothing left to wait for.
    fn look(mut self) -> Option<Self> {
        self.orphan.reap();
        if !self.orphan.is_read() {
            return None;
        }
        if !self.is_late() {
            return Some(self);
        }
        if self.cut_off.is_some_and(|since| since.elapsed() > GRACE) {
            leaked(self.orphan.abandon());
            return None;
        }
        self.cut_off();
        self.orphan.is_read().then_some(self)
    }

    /// To be called again: while another thread receives on a stream the kernel may refuse (`EBUSY`).
    fn cut_off(&mut self) {
        if self.cut_off.is_none() {
            self.cut_off = Some(Instant::now());
            SOCKETS_CUT_OFF.fetch_add(1, Relaxed);
        }
        self.orphan.cut_off();
        self.orphan.reap();
    }

    fn abandon(mut self) {
        self.cut_off();
        leaked(self.orphan.abandon());
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use nocopy_lab::patience::wait_until;

    use super::*;
    use crate::sys::fork::tests::in_forked_child;

    /// Has been looked at once, and then nothing is left.
    struct Looked(Arc<AtomicBool>);

    impl Orphan for Looked {
        fn reap(&mut self) {
            self.0.store(true, Relaxed);
        }

        fn is_read(&self) -> bool {
            !self.0.load(Relaxed)
        }

        fn bytes(&self) -> usize {
            100
        }

        fn outstanding_bytes(&self) -> usize {
            0
        }

        fn patience(&self) -> Duration {
            Duration::MAX
        }

        fn cut_off(&mut self) {}

        fn abandon(self: Box<Self>) -> usize {
            0
        }
    }

    /// The kernel lets go of it when it is cut off; or never.
    struct Silent {
        obeys: bool,
        patience: Duration,
        is_cut_off: bool,
        end: Arc<Mutex<Option<&'static str>>>,
    }

    impl Orphan for Silent {
        fn reap(&mut self) {
            if self.obeys && self.is_cut_off {
                *self.end.lock().unwrap() = Some("reaped");
            }
        }

        fn is_read(&self) -> bool {
            self.end.lock().unwrap().is_none()
        }

        fn bytes(&self) -> usize {
            100
        }

        fn outstanding_bytes(&self) -> usize {
            0
        }

        fn patience(&self) -> Duration {
            self.patience
        }

        fn cut_off(&mut self) {
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
            let patience = Duration::ZERO;
            adopt(Box::new(Silent { obeys, patience, is_cut_off: false, end: Arc::clone(&end) }));
            wait_until("its end", || end.lock().unwrap().is_some());
            assert_eq!(*end.lock().unwrap(), Some(expected));
        }
    }

    #[test]
    fn a_child_forked_while_the_list_is_locked_reaps_its_own() {
        let locked = home();
        in_forked_child(|| {
            let looked = Arc::default();
            adopt(Box::new(Looked(Arc::clone(&looked))));
            wait_until("a look", || looked.load(Relaxed));
        });
        drop(locked);
    }

    #[test]
    fn of_too_many_sockets_those_without_progress_are_cut_off_first() {
        for (count_max, bytes_max, expected) in
            [(4, 400, 4), (2, 400, 2), (4, 300, 3), (4, 50, 1), (0, 400, 0)]
        {
            let first = Instant::now();
            // Not in order.
            let mut orphans: Vec<_> = [1, 3, 0, 2]
                .map(|age| Waiting::new(Box::new(Faulty), first + Duration::from_secs(3 - age)))
                .into();
            hurry(&mut orphans, count_max, bytes_max);
            let hurried: Vec<_> = orphans.iter().map(|waiting| waiting.is_hurried).collect();
            let kept = hurried.iter().take_while(|is_hurried| !**is_hurried).count();
            assert_eq!(kept, expected, "{hurried:?}");
            assert!(hurried[kept..].iter().all(|&is_hurried| is_hurried), "{hurried:?}");
            assert!(orphans.is_sorted_by_key(|waiting| Reverse(waiting.progress)));
        }
    }

    /// One whose cutting off has an effect, and that is waited for as long as it takes.
    fn patient(since: Instant, end: &Arc<Mutex<Option<&'static str>>>) -> Waiting {
        let (patience, end) = (Duration::MAX, Arc::clone(end));
        Waiting::new(Box::new(Silent { obeys: true, patience, is_cut_off: false, end }), since)
    }

    #[test]
    fn a_hurried_socket_has_its_time_and_is_then_cut_off() {
        let (before, end, start) = (process_stats()["sockets_cut_off"], Arc::default(), Instant::now());
        let mut waiting = patient(start + 3 * TIME_MIN, &end); // not yet begun
        waiting.is_hurried = true;
        let mut waiting = waiting.look().expect("it has time");
        assert!(end.lock().unwrap().is_none());
        waiting.since = start.checked_sub(TIME_MIN).expect("the machine runs for longer");
        assert!(waiting.look().is_none());
        assert_eq!(*end.lock().unwrap(), Some("reaped"));
        assert!(process_stats()["sockets_cut_off"] > before);
    }

    #[test]
    fn acknowledgements_are_progress() {
        let (end, long_ago) = (Arc::default(), Instant::now().checked_sub(TIME_MIN).unwrap());
        let waiting = patient(long_ago, &end).look().expect("it is waited for");
        assert_eq!(waiting.progress, long_ago);
        let waiting = Waiting { outstanding_bytes: 1, ..waiting }.look().expect("it is waited for");
        assert!(waiting.progress > long_ago, "a byte was acknowledged");
    }

    struct Faulty;

    impl Orphan for Faulty {
        fn reap(&mut self) {
            panic!("on purpose: a fault of the reaper's");
        }

        fn is_read(&self) -> bool {
            true
        }

        fn bytes(&self) -> usize {
            100
        }

        fn outstanding_bytes(&self) -> usize {
            0
        }

        fn patience(&self) -> Duration {
            Duration::MAX
        }

        fn cut_off(&mut self) {}

        fn abandon(self: Box<Self>) -> usize {
            0
        }
    }

    #[test]
    fn a_fault_of_one_socket_keeps_no_other_waiting() {
        for _ in 0..3 {
            let looked: [Arc<AtomicBool>; 2] = Default::default();
            adopt(Box::new(Looked(Arc::clone(&looked[0]))));
            adopt(Box::new(Faulty));
            adopt(Box::new(Looked(Arc::clone(&looked[1]))));
            wait_until("a look", || looked.iter().all(|looked| looked.load(Relaxed)));
        }
    }
}
