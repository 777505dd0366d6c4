//! Memory that the kernel still reads when its socket is dropped.
//!
//! Completions come by the descriptor, and none after it is closed. So one thread of the process keeps such descriptors until the
//! kernel has done; it ends when there are none left.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How long to sleep between two looks: at first, and at most. A peer that stalls may do so for long.
const PAUSE: Duration = Duration::from_millis(5);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// What is left of a socket that nobody has any more: its descriptor, and what the kernel reads.
pub(super) trait Orphan: Send {
    /// Lets go of what the kernel has done with.
    fn reap(&mut self);

    /// Whether the kernel still reads any of it.
    fn is_read(&self) -> bool;

    /// How long the kernel may take.
    fn patience(&self) -> Duration;

    /// Gives up what the kernel still reads, and returns how many bytes are lost to the program.
    fn abandon(self: Box<Self>) -> usize;
}

struct Waiting {
    orphan: Box<dyn Orphan>,
    since: Instant,
}

#[derive(Default)]
struct Home {
    orphans: Vec<Waiting>,
    is_running: bool,
}

static HOME: Mutex<Home> = Mutex::new(Home { orphans: Vec::new(), is_running: false });
static LEAKED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of this process that the kernel never gave back, and that could not be replaced by others: foreign memory and frames of
/// sockets that were closed by force, or dropped and not completed in time (10 s for datagrams, two minutes for streams).
pub fn leaked_bytes() -> u64 {
    LEAKED_BYTES.load(Relaxed)
}

/// Adds to the count of [`leaked_bytes`].
pub(super) fn leaked(bytes: usize) {
    LEAKED_BYTES.fetch_add(bytes as u64, Relaxed);
}

/// Takes over what the kernel still reads.
pub(super) fn adopt(orphan: Box<dyn Orphan>) {
    let mut home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
    home.orphans.push(Waiting { orphan, since: Instant::now() });
    if !home.is_running {
        let spawned = thread::Builder::new().name("nocopy-reaper".into()).spawn(run);
        match spawned {
            Ok(_) => home.is_running = true,
            // Without a thread to wait for it, the memory is given up at once.
            Err(_) => home.orphans.drain(..).for_each(Waiting::abandon),
        }
    }
}

fn run() {
    let mut pause = PAUSE;
    loop {
        thread::sleep(pause);
        let mut orphans = std::mem::take(&mut HOME.lock().unwrap_or_else(PoisonError::into_inner).orphans);
        orphans.iter_mut().for_each(|waiting| waiting.orphan.reap());
        let (late, waiting): (Vec<_>, Vec<_>) =
            orphans.into_iter().filter(|waiting| waiting.orphan.is_read()).partition(Waiting::is_late);
        late.into_iter().for_each(Waiting::abandon);
        let mut home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
        home.orphans.extend(waiting);
        let Some(youngest) = home.orphans.iter().map(|waiting| waiting.since.elapsed()).min() else {
            home.is_running = false;
            return;
        };
        pause = (youngest / 8).clamp(PAUSE, PAUSE_MAX);
    }
}

impl Waiting {
    fn is_late(&self) -> bool {
        self.since.elapsed() >= self.orphan.patience()
    }

    fn abandon(self) {
        leaked(self.orphan.abandon());
    }
}
