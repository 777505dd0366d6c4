//! How a receiver waits at an ordinary socket.

use std::io;
use std::os::fd::AsFd;
use std::time::Instant;

use clap::ValueEnum;
use nocopy::integration::{Wakeup, poll};
use nocopy::port::Wait;
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;

use super::{PATIENCE, SPIN};

/// Looks between two reads of the clock.
const LOOKS_A_CLOCK: u32 = 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum WaitMode {
    /// Poll all the time, which keeps a processor busy.
    #[value(name = "spin")]
    #[serde(rename = "spin")]
    Spinning,
    /// Sleep until the kernel reports data.
    #[value(name = "block")]
    #[serde(rename = "block")]
    Blocking,
    /// Poll for some time, then sleep.
    Adaptive,
}

impl WaitMode {
    pub const ALL: [Self; 3] = [Self::Spinning, Self::Blocking, Self::Adaptive];

    /// Its name in variants of methods.
    pub fn name(self) -> &'static str {
        match self {
            Self::Spinning => "spinning",
            Self::Blocking => "blocking",
            Self::Adaptive => "adaptive",
        }
    }

    pub fn port_wait(self) -> Wait {
        match self {
            Self::Spinning => Wait::Spin,
            Self::Blocking => Wait::Interrupt,
            Self::Adaptive => Wait::Adaptive { spin: SPIN },
        }
    }

    /// Whether the socket's calls may sleep; otherwise they return at once.
    pub fn sleeps_in_calls(self) -> bool {
        self == Self::Blocking
    }
}

/// Repeats a call until it returns something, as long as this kind of wait lasts; `None`: nothing arrived, or
/// a signal did.
pub fn retry_until_ready<T>(
    waiting: WaitMode,
    socket: impl AsFd,
    mut attempt: impl FnMut() -> io::Result<T>,
) -> io::Result<Option<T>> {
    if waiting != WaitMode::Adaptive {
        return none_if_would_block(attempt());
    }
    let start = Instant::now();
    while start.elapsed() < SPIN {
        for _ in 0..LOOKS_A_CLOCK {
            if let Some(given) = none_if_would_block(attempt())? {
                return Ok(Some(given));
            }
        }
    }
    match poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(PATIENCE))? {
        Wakeup::Ready => none_if_would_block(attempt()),
        Wakeup::TimedOut | Wakeup::Interrupted => Ok(None),
    }
}

fn none_if_would_block<T>(attempted: io::Result<T>) -> io::Result<Option<T>> {
    match attempted {
        Ok(given) => Ok(Some(given)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}
