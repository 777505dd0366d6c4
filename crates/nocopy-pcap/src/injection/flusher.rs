//! The thread that sends frames left in a batch.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Injector, LOOK_AGAIN, Way};

/// The interval of checks; a frame waits for two of them at most.
const TICK: Duration = Duration::from_micros(500);

/// A program that sent nothing for this long needs no batches: other programs may want the queue.
const QUIET_MAX: Duration = Duration::from_millis(250);

const STACK_BYTES: usize = 256 << 10;

/// The state at the last tick.
struct Seen {
    frames: u64,
    flushes: u64,
    /// When a frame was sent, and when the interface was looked at.
    active: Instant,
    examined: Instant,
}

/// Starts a thread for the batches of that epoch; it ends with them.
pub(super) fn start(injector: &Arc<Injector>, epoch: u64) -> io::Result<()> {
    let injector = Arc::downgrade(injector);
    without_signals(|| {
        let thread = std::thread::Builder::new().name("nocopy-flusher".into()).stack_size(STACK_BYTES);
        thread.spawn(move || run(&injector, epoch)).map(drop)
    })
}

fn run(injector: &Weak<Injector>, epoch: u64) {
    let now = Instant::now();
    let mut seen = Seen { frames: 0, flushes: 0, active: now, examined: now };
    loop {
        std::thread::sleep(TICK);
        // Upgraded for one tick: the thread does not keep the batches of a closed handle.
        let Some(injector) = injector.upgrade() else { return };
        if injector.is_stuck.load(Relaxed) {
            std::thread::sleep(LOOK_AGAIN);
        }
        if injector.tick(epoch, &mut seen).is_break() {
            return;
        }
    }
}

impl Injector {
    fn tick(&self, epoch: u64, seen: &mut Seen) -> ControlFlow<()> {
        let now = Instant::now();
        let examined = (now - seen.examined >= LOOK_AGAIN).then(|| self.examine());
        if examined.is_some() {
            seen.examined = now;
        }
        let Some(mut state) = self.state() else { return ControlFlow::Continue(()) };
        self.is_stuck.store(false, Relaxed); // it was slow, and is not left: a flag alone
        if state.epoch != epoch {
            return ControlFlow::Break(());
        }
        let Way::Batches(batches) = &mut state.way else { return ControlFlow::Break(()) };
        if batches.frames != seen.frames {
            (seen.frames, seen.active) = (batches.frames, now);
        }
        let is_left = batches.queued() > 0;
        let was_flushed = batches.flushes != seen.flushes;
        batches.is_lone = !is_left && !was_flushed;
        let mut ended = None;
        if is_left && !was_flushed {
            ended = state.flush();
        }
        match examined {
            Some(Ok(interface)) => {
                if let Way::Batches(batches) = &mut state.way {
                    batches.heed(&interface);
                }
            }
            Some(Err(objection)) => {
                ended = ended.or(state.give_up(LOOK_AGAIN));
                state.objection = Some(objection);
            }
            None => {}
        }
        if now - seen.active >= QUIET_MAX {
            ended = ended.or(state.give_up(Duration::ZERO));
        }
        let goes_on = match &state.way {
            Way::Batches(batches) => {
                seen.flushes = batches.flushes;
                ControlFlow::Continue(())
            }
            Way::Singly => ControlFlow::Break(()),
        };
        drop(state);
        drop(ended); // may wait for frames to come back
        goes_on
    }
}

/// Runs with all signals blocked, so that a started thread has them blocked, too, and the program's handlers
/// run only on its own threads.
fn without_signals<T>(run: impl FnOnce() -> T) -> T {
    // SAFETY: all-zero is a valid set; the calls read and write live ones.
    let before = unsafe {
        let (mut all, mut before): (libc::sigset_t, libc::sigset_t) = std::mem::zeroed();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const all, &raw mut before);
        before
    };
    let result = run();
    // SAFETY: the set that was there before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    result
}
