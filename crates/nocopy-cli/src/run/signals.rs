//! Signals, which are for the command.
//!
//! The command stays in the runner's process group, so the terminal's signals reach it directly. A signalfd
//! tells these from signals sent to the runner.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::{Pid, getpgid, getpgrp, kill_process};
use signal_hook::flag;

use super::Error;
use nocopy_report::interrupt::{is_signal_ignored, with_signals_blocked};

/// The signals by which users control programs.
const PASSED_ON: [Signal; 6] =
    [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM, Signal::SIGUSR1, Signal::SIGUSR2];

/// Signals that arrived while the command was being started. They are caught and not blocked, because a
/// program inherits blocked ones.
#[derive(Debug)]
pub(super) struct EarlySignals(Vec<(Signal, Arc<AtomicBool>)>);

impl EarlySignals {
    /// Catches signals, but for those ignored (nohup(1)): the command is to ignore these too.
    pub(super) fn catch_signals() -> Result<Self, Error> {
        let passed_on = PASSED_ON.into_iter().filter(|&signal| !is_signal_ignored(signal as i32));
        let caught = passed_on.map(|signal| {
            let was_raised = Arc::new(AtomicBool::new(false));
            flag::register(signal as i32, Arc::clone(&was_raised)).map(|_| (signal, was_raised))
        });
        with_signals_blocked(|| caught.collect()).map(Self).map_err(Error::Signals)
    }

    /// From now on signals wait until they are passed on.
    pub(super) fn block_signals(&self) -> Result<BlockedSignals, Error> {
        let all: SigSet = self.0.iter().map(|(signal, _)| *signal).collect();
        let opened = all
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&all, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC));
        let descriptor = opened.map_err(|errno| Error::Signals(errno.into()))?;
        Ok(BlockedSignals { descriptor })
    }

    /// Passes on these signals, which the command may have received too.
    pub(super) fn pass_on(&self, command: Pid) {
        for (signal, _) in self.0.iter().filter(|(_, was_raised)| was_raised.load(Ordering::Relaxed)) {
            send_signal(command, *signal as i32);
        }
    }
}

#[derive(Debug)]
pub(super) struct BlockedSignals {
    descriptor: SignalFd,
}

impl BlockedSignals {
    pub(super) fn pass_on(&self, command: Pid) {
        while let Ok(Some(signal)) = self.descriptor.read_signal() {
            // From the keyboard: the whole foreground group got it, and a second one could have another
            // effect. Or sent by this process itself.
            let from_terminal = signal.ssi_code == libc::SI_KERNEL && is_in_own_process_group(command);
            let from_command = signal.ssi_code == libc::SI_USER
                && signal.ssi_pid == command.as_raw_nonzero().get().unsigned_abs();
            if !from_terminal && !from_command {
                send_signal(command, signal.ssi_signo.cast_signed());
            }
        }
    }
}

impl AsFd for BlockedSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Whether the command is still in our process group.
fn is_in_own_process_group(command: Pid) -> bool {
    getpgid(Some(command)).is_ok_and(|group| group == getpgrp())
}

/// Sends a signal to the command. Its process number stays valid until it is waited for, even after its end.
fn send_signal(command: Pid, signal: i32) {
    if let Some(signal) = rustix::process::Signal::from_named_raw(signal) {
        let _ = kill_process(command, signal);
    }
}
