//! The thread that sends frames left in a batch.

use std::io;
use std::ops::ControlFlow;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Injector, RECHECK_INTERVAL, SendMethod};

/// The interval of checks; a frame waits for two of them at most.
const TICK: Duration = Duration::from_micros(500);

/// A program that sent nothing for this long needs no batches: other programs may want the queue.
const QUIET_MAX: Duration = Duration::from_millis(250);

const STACK_BYTES: usize = 256 << 10;

/// The state at the last tick.
struct LastTick {
    frames: u64,
    flushes: u64,
    /// When a frame was sent, and when the interface was looked at.
    active: Instant,
    checked: Instant,
}

/// Starts a thread for the batches of that epoch; it ends with them.
pub(super) fn start_flusher(injector: &Arc<Injector>, epoch: u64) -> io::Result<()> {
    let injector = Arc::downgrade(injector);
    with_signals_blocked(|| {
        let thread = std::thread::Builder::new().name("nocopy-flusher".into()).stack_size(STACK_BYTES);
        thread.spawn(move || run_flusher(&injector, epoch)).map(drop)
    })
}

fn run_flusher(injector: &Weak<Injector>, epoch: u64) {
    let now = Instant::now();
    let mut last = LastTick { frames: 0, flushes: 0, active: now, checked: now };
    loop {
        std::thread::sleep(TICK);
        // Upgraded for one tick: the thread does not keep the batches of a closed handle.
        let Some(injector) = injector.upgrade() else { return };
        if injector.is_stuck.load(Relaxed) {
            std::thread::sleep(RECHECK_INTERVAL);
        }
        if injector.flusher_tick(epoch, &mut last).is_break() {
            return;
        }
    }
}

impl Injector {
    fn flusher_tick(&self, epoch: u64, last: &mut LastTick) -> ControlFlow<()> {
        let now = Instant::now();
        let checked = (now - last.checked >= RECHECK_INTERVAL).then(|| self.check_batching_allowed());
        if checked.is_some() {
            last.checked = now;
        }
        let Some(mut state) = self.lock_state() else { return ControlFlow::Continue(()) };
        self.is_stuck.store(false, Relaxed); // it was slow, and is not left: a flag alone
        if state.epoch != epoch {
            return ControlFlow::Break(());
        }
        let SendMethod::Batches(batches) = &mut state.method else { return ControlFlow::Break(()) };
        if batches.frames != last.frames {
            (last.frames, last.active) = (batches.frames, now);
        }
        let is_left = batches.queued_frames() > 0;
        let was_flushed = batches.flushes != last.flushes;
        batches.flush_next = !is_left && !was_flushed;
        let mut ended = None;
        if is_left && !was_flushed {
            ended = state.flush_batch();
        }
        match checked {
            Some(Ok(interface)) => {
                if let SendMethod::Batches(batches) = &mut state.method {
                    batches.set_mtu(&interface);
                }
            }
            Some(Err(refusal)) => {
                ended = ended.or(state.end_batches(RECHECK_INTERVAL));
                state.refusal = Some(refusal);
            }
            None => {}
        }
        if now - last.active >= QUIET_MAX {
            ended = ended.or(state.end_batches(Duration::ZERO));
        }
        let flow = match &state.method {
            SendMethod::Batches(batches) => {
                last.flushes = batches.flushes;
                ControlFlow::Continue(())
            }
            SendMethod::Singly => ControlFlow::Break(()),
        };
        drop(state);
        drop(ended); // may wait for frames to come back
        flow
    }
}

/// Runs with all signals blocked, so that a started thread has them blocked, too, and the program's handlers
/// run only on its own threads.
fn with_signals_blocked<T>(run: impl FnOnce() -> T) -> T {
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
