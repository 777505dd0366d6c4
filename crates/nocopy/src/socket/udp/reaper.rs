//! Memory that the kernel still reads when its socket is dropped.
//!
//! Completions come by the descriptor, and none after it is closed. So one thread of the process keeps such descriptors until the
//! kernel has done; it ends when there are none left.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::message::Message;
use super::outbox::Kept;
use crate::evidence::Evidence;
use crate::sys::udp_send::{self, Notice};

/// How long the kernel may take: longer than a neighbour is looked for (3 s, arp(7)), or a queue stands.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to sleep between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// What is left of a socket that nobody has any more.
struct Orphan {
    kept: Kept,
    give_up: Instant,
}

#[derive(Default)]
struct Home {
    orphans: Vec<Orphan>,
    is_running: bool,
}

static HOME: Mutex<Home> = Mutex::new(Home { orphans: Vec::new(), is_running: false });
static LEAKED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Bytes of this process that the kernel never gave back, and that could not be replaced by others: foreign memory and frames of
/// sockets that were closed by force, or dropped and not completed within 10 s.
pub fn leaked_bytes() -> u64 {
    LEAKED_BYTES.load(Relaxed)
}

/// Adds to the count of [`leaked_bytes`].
pub(super) fn leaked(bytes: usize) {
    LEAKED_BYTES.fetch_add(bytes as u64, Relaxed);
}

/// Takes over what the kernel still reads.
pub(super) fn adopt(kept: Kept) {
    let orphan = Orphan { kept, give_up: Instant::now() + PATIENCE };
    let mut home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
    home.orphans.push(orphan);
    if !home.is_running {
        let spawned = thread::Builder::new().name("nocopy-reaper".into()).spawn(run);
        match spawned {
            Ok(_) => home.is_running = true,
            // Without a thread to wait for it, the memory is given up at once.
            Err(_) => home.orphans.drain(..).for_each(Orphan::abandon),
        }
    }
}

fn run() {
    loop {
        thread::sleep(PAUSE);
        let mut orphans = std::mem::take(&mut HOME.lock().unwrap_or_else(PoisonError::into_inner).orphans);
        orphans.iter_mut().for_each(Orphan::reap);
        let now = Instant::now();
        let (late, waiting): (Vec<_>, Vec<_>) = orphans
            .into_iter()
            .filter(|orphan| orphan.kept.in_flight() > 0)
            .partition(|orphan| orphan.give_up <= now);
        late.into_iter().for_each(Orphan::abandon);
        let mut home = HOME.lock().unwrap_or_else(PoisonError::into_inner);
        home.orphans.extend(waiting);
        if home.orphans.is_empty() {
            home.is_running = false;
            return;
        }
    }
}

impl Orphan {
    fn reap(&mut self) {
        let free = &mut |_, message: Message, _| drop(message);
        while let Ok(Some(notice)) = udp_send::next_notice(self.kept.socket()) {
            if let Notice::Done { first, last, .. } = notice {
                self.kept.done(first, last, |_| Evidence::Unknown, free);
            }
        }
        self.kept.done_by_ring(|_, _| Evidence::Unknown, free);
        self.kept.drop_failed();
    }

    fn abandon(self) {
        leaked(self.kept.abandon());
    }
}
