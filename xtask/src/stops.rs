//! A machine that stalls, on purpose: processes of the tests are stopped for a while, or compete with busy ones.

use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Signal, kill_process};

use crate::processes;
use crate::suite::processors;

/// How long a process stands still.
const STOP_MS: std::ops::Range<u64> = 100..280;

/// How long all run between two stops.
const GAP_MS: std::ops::Range<u64> = 50..200;

/// Stops processes below this one, one at a time for each processor, until it is dropped.
pub(crate) struct Stops {
    ended: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Stops {
    pub(crate) fn begin() -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let stop = || {
            let ended = Arc::clone(&ended);
            thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    stop_one();
                }
            })
        };
        let threads = (0..processors()).map(|_| stop()).collect();
        Self { ended, threads }
    }
}

impl Drop for Stops {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed); // ordering: nothing else is handed over by it
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // one that panicked has printed why
        }
    }
}

fn stop_one() {
    thread::sleep(Duration::from_millis(fastrand::u64(GAP_MS)));
    let processes = processes::below(rustix::process::getpid());
    if let Some(process) = fastrand::choice(processes) {
        // It may end at any moment, which is no error.
        let _ = kill_process(process, Signal::STOP);
        thread::sleep(Duration::from_millis(fastrand::u64(STOP_MS)));
        let _ = kill_process(process, Signal::CONT);
    }
}

/// A process on each processor that does nothing but run, until this is dropped.
pub(crate) struct Busy(Vec<Child>);

impl Busy {
    pub(crate) fn begin() -> Self {
        let spin = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Self((0..processors()).filter_map(|_| spin().ok()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
