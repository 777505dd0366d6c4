//! Memory that the kernel still reads when its socket is dropped.
//!
//! Completions come by the descriptor, and none after it is closed. So one thread of the process keeps such descriptors until the
//! kernel has done; it ends when there are none left.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::in_flight::{Calls, Messages};
use crate::evidence::Evidence;
use crate::sys::udp_send::{self, Notice};

/// How long the kernel may take: longer than a neighbour is looked for (3 s, arp(7)), or a queue stands.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long to sleep between two looks.
const PAUSE: Duration = Duration::from_millis(5);

/// A socket nobody has any more.
struct Orphan {
    socket: Arc<OwnedFd>,
    calls: Calls,
    messages: Messages,
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
pub(super) fn adopt(socket: Arc<OwnedFd>, calls: Calls, messages: Messages) {
    let orphan = Orphan { socket, calls, messages, give_up: Instant::now() + PATIENCE };
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
            .filter(|orphan| orphan.calls.open() > 0)
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
        while let Ok(Some(notice)) = self.next_notice() {
            let Notice::Done { first, last, .. } = notice else { continue };
            let count = u64::from(last.wrapping_sub(first)) + 1;
            let first = self.calls.number(first);
            for number in first..first.saturating_add(count).min(self.calls.end()) {
                let Some(call) = self.calls.take(number) else { continue };
                self.messages
                    .returned(call.first, call.last, Evidence::Unknown, &mut |_, message, _| drop(message));
            }
        }
    }

    fn next_notice(&self) -> io::Result<Option<Notice>> {
        udp_send::next_notice(self.socket.as_fd())
    }

    fn abandon(self) {
        leaked(self.messages.abandon());
    }
}
