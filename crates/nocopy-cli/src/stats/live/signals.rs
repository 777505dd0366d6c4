//! Signals, read between two drawings: none of them interrupts one, or ends the command before the terminal
//! is as it was.

use std::os::fd::{AsFd, BorrowedFd};

use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nocopy_report::Failure;
use nocopy_report::interrupt::is_signal_ignored;

const ENDING: [Signal; 4] = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT, Signal::SIGTERM];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SignalAction {
    End,
    /// Ctrl-Z.
    Suspend,
    /// The size of the terminal changed, or the command returned to the foreground.
    Draw,
}

#[derive(Debug)]
pub(super) struct BlockedSignals {
    descriptor: SignalFd,
}

impl BlockedSignals {
    /// From now on signals wait until they are read. SIGHUP and SIGTSTP are left alone where this process was
    /// started to ignore them (nohup(1), a shell without job control); the others are not, as for
    /// [`Interrupt`](nocopy_report::Interrupt).
    pub(super) fn block() -> Result<Self, Failure> {
        let others = [Signal::SIGTSTP, Signal::SIGWINCH, Signal::SIGCONT];
        let is_left_alone =
            |signal| matches!(signal, Signal::SIGHUP | Signal::SIGTSTP) && is_signal_ignored(signal as i32);
        let all: SigSet = ENDING.into_iter().chain(others).filter(|&signal| !is_left_alone(signal)).collect();
        let opened = all
            .thread_block()
            .and_then(|()| SignalFd::with_flags(&all, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC));
        Ok(Self { descriptor: opened.map_err(|errno| Failure::Signals(errno.into()))? })
    }

    pub(super) fn read_action(&self) -> Option<SignalAction> {
        let signal = self.descriptor.read_signal().ok()??.ssi_signo.cast_signed();
        match Signal::try_from(signal).ok()? {
            Signal::SIGTSTP => Some(SignalAction::Suspend),
            Signal::SIGWINCH | Signal::SIGCONT => Some(SignalAction::Draw),
            _ => Some(SignalAction::End),
        }
    }
}

impl AsFd for BlockedSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}
