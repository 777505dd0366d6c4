//! Signals that ask the process to end: Ctrl-C, the end of a service, a terminal that is closed.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigSet, SigmaskHow};
use signal_hook::consts::{SIGHUP, TERM_SIGNALS};
use signal_hook::{flag, low_level};

use crate::Failure;

/// The longest time until [`Interrupt::sleep`] notices a signal.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Whether a signal has asked the process to end. Waits of ports end early when a signal arrives.
#[derive(Debug, Clone)]
pub struct Interrupt {
    is_requested: Arc<AtomicBool>,
    /// The last signal; 0: none.
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// Catches the signals that ask the process to end; a second signal ends it at once.
    ///
    /// A closed terminal (SIGHUP) also asks for the end, unless the command was started to survive it
    /// (nohup(1)). Shell and kernel may both send SIGHUP, so a second one does not end the process at once.
    pub fn catch() -> Result<Self, Failure> {
        let is_requested = Arc::new(AtomicBool::new(false));
        let last_signal = Arc::new(AtomicUsize::new(0));
        let caught = TERM_SIGNALS.iter().chain(Some(&SIGHUP).filter(|_| !is_signal_ignored(SIGHUP)));
        with_signals_blocked(|| {
            for &signal in caught {
                if signal != SIGHUP {
                    flag::register_conditional_default(signal, Arc::clone(&is_requested))?;
                }
                let number = usize::try_from(signal).unwrap_or_default();
                flag::register_usize(signal, Arc::clone(&last_signal), number)?;
                flag::register(signal, Arc::clone(&is_requested))?;
            }
            Ok(Self { is_requested, signal: last_signal })
        })
        .map_err(Failure::Signals)
    }

    /// Asks for the end as a signal does.
    pub fn request_end(&self) {
        self.is_requested.store(true, Ordering::Relaxed);
    }

    /// Ends the process by the signal that arrived, if one did, so that a waiting shell or process sees that
    /// it was interrupted.
    pub fn end_process(&self) {
        let signal = self.signal.load(Ordering::Relaxed);
        if let Some(signal) = i32::try_from(signal).ok().filter(|signal| *signal != 0) {
            let _ = low_level::emulate_default_handler(signal); // where it fails, an exit code says it
        }
    }

    /// Sleeps for this time, or until a signal asks the process to end; returns whether one has.
    pub fn sleep(&self, duration: Duration) -> bool {
        let start = Instant::now();
        while !self.was_interrupted() {
            let left = duration.saturating_sub(start.elapsed());
            if left.is_zero() {
                return false;
            }
            thread::sleep(left.min(CHECK_INTERVAL));
        }
        true
    }

    /// Whether a signal has arrived. Relaxed, because no other memory depends on it.
    pub fn was_interrupted(&self) -> bool {
        self.is_requested.load(Ordering::Relaxed)
    }
}

/// Sets up what catches signals, which wait meanwhile: one that came between its handler and what this is to
/// do would be lost.
pub fn with_signals_blocked<T>(set_up: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
    let result = set_up();
    before.thread_set_mask()?;
    result
}

/// Whether this process ignores a signal, as it does from the start under nohup(1); false if `/proc` cannot
/// be read.
pub fn is_signal_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 << (signal - 1) != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_ends_by_time_or_interrupt() {
        let interrupt = Interrupt::catch().unwrap();
        assert!(!interrupt.sleep(Duration::from_millis(1)));
        let other = interrupt.clone();
        let asking = thread::spawn(move || other.request_end());
        let hour = Duration::from_secs(60 * 60);
        assert!(interrupt.sleep(hour));
        asking.join().unwrap();
        assert!(interrupt.sleep(hour), "it stays asked for");
    }
}
