//! When a process may be interrupted.

use std::fs;
use std::process::Child;
use std::thread;
use std::time::{Duration, Instant};

/// Waits until a process catches the signal of Ctrl-C, and returns at once: a signal that is sent then comes
/// at its worst moment.
pub(crate) fn wait_for_signal_handlers(child: &Child, patience: Duration) {
    let (path, deadline) = (format!("/proc/{}/status", child.id()), Instant::now() + patience);
    loop {
        let status = fs::read_to_string(&path).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap().trim();
        if u64::from_str_radix(caught, 16).unwrap() & 1 << (libc::SIGINT - 1) != 0 {
            return;
        }
        assert!(Instant::now() < deadline, "{status}");
        thread::yield_now();
    }
}
