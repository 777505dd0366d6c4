//! Connections that have not said yet what they are.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::control::{Control, Heard};
use crate::transfer::stream::Message;

/// The most that are accepted, or wait, at a time; the one that has waited longest goes first.
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
    pub control: Control,
    pub from: SocketAddr,
    pub message: Message,
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

    /// Accepts connections, and closes those of addresses that may not send. At most so many at a time: a flood of connections must not
    /// keep the receiver from reading those it has.
    pub(super) fn accept(&mut self, may_send: impl Fn(IpAddr) -> bool) -> Vec<(TcpStream, SocketAddr)> {
        let mut accepted = Vec::new();
        for _ in 0..WAITING_MAX {
            let Some((stream, from)) = self.accept_next() else { break };
            match may_send(from.ip()) {
                true => accepted.push((stream, from)),
                false => self.turn_away(),
            }
        }
        accepted
    }

    /// The next connection, whatever it is.
    fn accept_next(&mut self) -> Option<(TcpStream, SocketAddr)> {
        let accepted = self.listener.accept();
        self.is_short = matches!(
            accepted.as_ref().map_err(io::Error::raw_os_error),
            Err(Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
        );
        // Whatever is wrong with one connection, or for the moment, the next may be sound.
        accepted.ok()
    }

    /// Lets in who has come.
    pub(super) fn let_in(&mut self, may_send: impl Fn(IpAddr) -> bool) {
        for (stream, from) in self.accept(may_send) {
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

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

    use super::*;

    /// Proves that a flood of connections is accepted in parts, and that addresses that may not send are turned away.
    #[test]
    fn a_flood_of_connections_is_accepted_in_parts() {
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&socket, 512).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let mut door = Door::new(listener, Duration::MAX);
        let waiting: Vec<_> = (0..WAITING_MAX + 3).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(door.accept(|_| true).len(), WAITING_MAX);
        assert_eq!((door.accept(|_| false).len(), door.foreign()), (0, 3));
        drop(waiting);
    }
}
