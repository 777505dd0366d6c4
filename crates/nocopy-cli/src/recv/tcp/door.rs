//! Connections that have not said yet what they are.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::control::{Control, Heard};
use crate::transfer::stream::Message;

/// The most that wait at a time; the one that has waited longest goes first.
const WAITING_MAX: usize = 256;

/// Takes connections in, and those away that do not say what they are.
#[derive(Debug)]
pub(super) struct Door {
    listener: TcpListener,
    waiting: Vec<Waiting>,
    patience: Duration,
    foreign: u64,
    /// There was nothing left to accept with: who polls for that again at once polls all the time.
    is_short: bool,
}

#[derive(Debug)]
struct Waiting {
    control: Control,
    from: SocketAddr,
    since: Instant,
}

/// Who has said what it is.
#[derive(Debug)]
pub(super) struct Visitor {
    pub(super) control: Control,
    pub(super) from: SocketAddr,
    pub(super) message: Message,
}

impl Door {
    /// The listener must not block.
    pub(super) fn new(listener: TcpListener, patience: Duration) -> Self {
        Self { listener, waiting: Vec::new(), patience, foreign: 0, is_short: false }
    }

    /// What to poll for input.
    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = (!self.is_short).then(|| self.listener.as_fd());
        listener.into_iter().chain(self.waiting.iter().map(|waiting| waiting.control.as_fd()))
    }

    /// The next connection, whatever it is.
    pub(super) fn accept(&mut self) -> Option<(TcpStream, SocketAddr)> {
        let accepted = self.listener.accept();
        self.is_short = matches!(
            accepted.as_ref().map_err(io::Error::raw_os_error),
            Err(Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
        );
        // Whatever is wrong with one connection, or for the moment, the next may be sound.
        accepted.ok()
    }

    /// Lets in who has come.
    pub(super) fn let_in(&mut self) {
        // Who knocks faster than anybody can look is not to keep those waiting who are in.
        for _ in 0..WAITING_MAX {
            let Some((stream, from)) = self.accept() else { return };
            if self.waiting.len() == WAITING_MAX {
                self.waiting.remove(0);
                self.foreign += 1;
            }
            match Control::new(stream) {
                Ok(control) => self.waiting.push(Waiting { control, from, since: Instant::now() }),
                Err(_) => self.foreign += 1,
            }
        }
    }

    /// Those that have said what they are.
    pub(super) fn visitors(&mut self) -> Vec<Visitor> {
        let mut visitors = Vec::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.control.hear() {
                Heard::Nothing if waiting.since.elapsed() < self.patience => self.waiting.push(waiting),
                Heard::Message(Ok(message)) => {
                    let Waiting { control, from, .. } = waiting;
                    visitors.push(Visitor { control, from, message });
                }
                Heard::Nothing | Heard::Message(Err(_)) | Heard::End => self.foreign += 1,
            }
        }
        visitors
    }

    pub(super) fn turn_away(&mut self) {
        self.foreign += 1;
    }

    pub(super) fn foreign(&self) -> u64 {
        self.foreign
    }
}
