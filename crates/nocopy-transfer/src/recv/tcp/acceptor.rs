//! New connections, until their first message.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use crate::control::{ControlConnection, ControlReceiveResult};
use crate::transfer::stream::ControlMessage;

/// The most connections accepted at a time, or waiting; the one that has waited longest is closed first.
const WAITING_MAX: usize = 256;

/// Accepts connections, and closes those that send no message in time.
#[derive(Debug)]
pub(super) struct Acceptor {
    listener: TcpListener,
    waiting: Vec<PendingConnection>,
    timeout: Duration,
    foreign: u64,
    /// No descriptor or memory was left for accepting: polling the listener at once would spin.
    is_short: bool,
}

#[derive(Debug)]
struct PendingConnection {
    control: ControlConnection,
    from: SocketAddr,
    since: Instant,
}

#[derive(Debug)]
pub(super) struct FirstMessage {
    pub control: ControlConnection,
    pub from: SocketAddr,
    pub message: ControlMessage,
}

impl Acceptor {
    /// The listener must not block.
    pub(super) fn new(listener: TcpListener, timeout: Duration) -> Self {
        Self { listener, waiting: Vec::new(), timeout, foreign: 0, is_short: false }
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let listener = (!self.is_short).then(|| self.listener.as_fd());
        listener.into_iter().chain(self.waiting.iter().map(|waiting| waiting.control.as_fd()))
    }

    /// Accepts connections, and closes those of addresses that may not send. It accepts a limited number at a
    /// time, so that a flood of connections does not keep the receiver from reading others.
    pub(super) fn accept(&mut self, may_send: impl Fn(SocketAddr) -> bool) -> Vec<(TcpStream, SocketAddr)> {
        let mut accepted = Vec::new();
        for _ in 0..WAITING_MAX {
            let Some((stream, from)) = self.accept_next() else { break };
            match may_send(from) {
                true => accepted.push((stream, from)),
                false => self.count_foreign_connection(),
            }
        }
        accepted
    }

    /// The next connection, from any sender.
    fn accept_next(&mut self) -> Option<(TcpStream, SocketAddr)> {
        let accepted = self.listener.accept();
        self.is_short = matches!(
            accepted.as_ref().map_err(io::Error::raw_os_error),
            Err(Some(libc::EMFILE | libc::ENFILE | libc::ENOBUFS | libc::ENOMEM))
        );
        // If one connection fails, the next may work.
        accepted.ok()
    }

    pub(super) fn accept_and_hold(&mut self, may_send: impl Fn(SocketAddr) -> bool) {
        for (stream, from) in self.accept(may_send) {
            if self.waiting.len() == WAITING_MAX {
                self.waiting.remove(0);
                self.foreign += 1;
            }
            match ControlConnection::new(stream) {
                Ok(control) => self.waiting.push(PendingConnection { control, from, since: Instant::now() }),
                Err(_) => self.foreign += 1,
            }
        }
    }

    /// Connections whose first message has arrived.
    pub(super) fn take_first_messages(&mut self) -> Vec<FirstMessage> {
        let mut first_messages = Vec::new();
        for mut waiting in std::mem::take(&mut self.waiting) {
            match waiting.control.receive() {
                ControlReceiveResult::Nothing if waiting.since.elapsed() < self.timeout => {
                    self.waiting.push(waiting)
                }
                ControlReceiveResult::Message(Ok(message)) => {
                    let PendingConnection { control, from, .. } = waiting;
                    first_messages.push(FirstMessage { control, from, message });
                }
                ControlReceiveResult::Nothing
                | ControlReceiveResult::Message(Err(_))
                | ControlReceiveResult::End => self.foreign += 1,
            }
        }
        first_messages
    }

    pub(super) fn count_foreign_connection(&mut self) {
        self.foreign += 1;
    }

    pub(super) fn foreign_connections(&self) -> u64 {
        self.foreign
    }
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with};

    use super::*;

    #[test]
    fn a_flood_of_connections_is_accepted_in_batches() {
        if !nocopy_lab::descriptors_or_skip() {
            return;
        }
        let socket =
            socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
        bind(&socket, &SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
        listen(&socket, 512).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        let mut acceptor = Acceptor::new(listener, Duration::MAX);
        let waiting: Vec<_> = (0..WAITING_MAX + 3).map(|_| TcpStream::connect(address).unwrap()).collect();
        assert_eq!(acceptor.accept(|_| true).len(), WAITING_MAX);
        assert_eq!((acceptor.accept(|_| false).len(), acceptor.foreign_connections()), (0, 3));
        drop(waiting);
    }
}
