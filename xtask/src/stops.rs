//! A machine that stalls on purpose: processes of the tests are stopped for a while, or compete with busy
//! ones.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::processes;
use crate::suite::processor_count;

/// How long a process is stopped.
const STOP_MS: std::ops::Range<u64> = 100..280;

/// How long all run between two stops.
const GAP_MS: std::ops::Range<u64> = 50..200;

/// Threads that do the same thing again and again, until this is dropped.
struct RepeatingThreads {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl RepeatingThreads {
    fn begin(count: usize, work: fn()) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let worker = || {
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    work();
                }
            })
        };
        let threads = (0..count).map(|_| worker()).collect();
        Self { ended, threads }
    }
}

impl Drop for RepeatingThreads {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed); // ordering: nothing else is handed over by it
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // one that panicked has printed why
        }
    }
}

/// Stops descendants of this process, one at a time per processor, until it is dropped.
pub(crate) struct RandomProcessStops(
    #[expect(dead_code, reason = "ends them when dropped")] RepeatingThreads,
);

impl RandomProcessStops {
    pub(crate) fn begin() -> Self {
        Self(RepeatingThreads::begin(processor_count(), stop_random_process))
    }
}

fn stop_random_process() {
    thread::sleep(Duration::from_millis(fastrand::u64(GAP_MS)));
    let processes = processes::process_and_descendants(rustix::process::getpid());
    if let Some(process) = fastrand::choice(processes) {
        // The process may end at any moment, which is no error.
        let _ = kill_process(process, Signal::STOP);
        thread::sleep(Duration::from_millis(fastrand::u64(STOP_MS)));
        let _ = kill_process(process, Signal::CONT);
    }
}

/// Two busy threads per processor, until it is dropped.
pub(crate) struct BusyThreads(#[expect(dead_code, reason = "ends them when dropped")] RepeatingThreads);

impl BusyThreads {
    pub(crate) fn begin() -> Self {
        Self(RepeatingThreads::begin(2 * processor_count(), std::hint::spin_loop))
    }
}
