//! A second socket with the endpoint's address, connected to the peer to which all packets go: the kernel then looks for no route and no
//! socket for each of them, in either direction.
//!
//! The peer's packets come to it from then on, those of all others to the first socket, which is looked at now and then while nothing
//! comes there. Whoever sleeps is woken by either of them.

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::net::sockopt;

use super::super::CARRIER;
use crate::engine::address;
use crate::sys::udp_receive::set_coalescing;
use crate::sys::udp_send::{allow_fragments, send};
use crate::udp::kernel;

/// It is opened after so many packets in a row to one address, one at a time, and closed after so many to others.
const IN_A_ROW: u32 = 256;
/// How much longer the row must be after it was closed: in closing it, what comes meanwhile is lost.
const MORE_EACH_TIME: u32 = 8;
/// The first socket is looked at each time if something came there within so many looks,
const LOOKS_AWAKE: u32 = 256;
/// and otherwise once in so many.
const LOOKS_AT_REST: u32 = 16;

#[derive(Debug)]
pub(super) struct OnlyPeer {
    /// Where the last packets went, and how many of them. The number stays while there is a socket.
    to: Option<SocketAddr>,
    row: u32,
    row_needed: u32,
    /// Packets to others, since the last one to this peer.
    others: u32,
    is_connected: bool,
    /// It sends no more, and is closed when it is empty.
    is_leaving: bool,
    /// Looks since something came to the first socket.
    looks: u32,
    /// The epoll instances that have to watch it.
    polls: Vec<OwnedFd>,
}

/// Which socket to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) connected: bool,
    /// If nothing came there, at the other one.
    pub(super) other: bool,
}

impl OnlyPeer {
    pub(super) fn new() -> Self {
        Self {
            to: None,
            row: 0,
            row_needed: IN_A_ROW,
            others: 0,
            is_connected: false,
            is_leaving: false,
            looks: 0,
            polls: Vec::new(),
        }
    }

    /// The peer that has a socket of its own.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.to.filter(|_| self.is_connected)
    }

    /// Sends a packet by a call of its own; false: it was not sent.
    #[inline]
    pub(super) fn send(&mut self, receiver: &mut kernel::Receiver, to: SocketAddr, bytes: &[u8]) -> bool {
        if self.to == Some(to) {
            if let Some(socket) = receiver.connected().filter(|_| !self.is_leaving) {
                self.others = 0;
                return send(socket, bytes, None, libc::MSG_DONTWAIT).is_ok() || self.leave_after_error();
            }
            self.row += 1;
        }
        let sent = send(receiver.socket(), bytes, Some(&to.into()), libc::MSG_DONTWAIT).is_ok();
        if self.to != Some(to) || self.row == self.row_needed {
            self.change(receiver, to);
        }
        sent
    }

    /// The kernel refused it: the first socket is tried, which says why. That an address is gone, for example, concerns this socket alone.
    #[cold]
    fn leave_after_error(&mut self) -> bool {
        if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
            self.leave();
        }
        false
    }

    fn leave(&mut self) {
        (self.is_leaving, self.to, self.row) = (true, None, 0);
    }

    #[cold]
    fn change(&mut self, receiver: &mut kernel::Receiver, to: SocketAddr) {
        if self.is_leaving {
            return;
        }
        if self.is_connected {
            self.others += 1;
            if self.others == IN_A_ROW {
                self.leave();
            }
        } else if self.to != Some(to) {
            (self.to, self.row) = (Some(to), 0);
        } else {
            // Without such a socket everything works as before.
            match open(receiver, to).and_then(|socket| self.watch_all(socket)) {
                Ok(socket) => {
                    receiver.connect(Some(socket));
                    (self.is_connected, self.looks, self.others) = (true, 0, 0);
                }
                Err(_) => self.need_more(),
            }
        }
    }

    fn need_more(&mut self) {
        (self.row, self.row_needed) = (0, self.row_needed.saturating_mul(MORE_EACH_TIME));
    }

    /// Which of the sockets to look at now.
    #[inline]
    pub(super) fn look(&mut self) -> Look {
        if !self.is_connected {
            return Look { connected: false, other: false };
        }
        self.looks = self.looks.wrapping_add(1);
        let other = self.looks < LOOKS_AWAKE || self.looks.is_multiple_of(LOOKS_AT_REST);
        Look { connected: !other || !self.looks.is_multiple_of(2), other }
    }

    /// Both are looked at for a while.
    #[inline]
    pub(super) fn wake(&mut self) {
        self.looks &= 1;
    }

    /// Notes what a look has found.
    #[inline]
    pub(super) fn note(&mut self, receiver: &mut kernel::Receiver, connected: bool, datagrams: usize) {
        match (connected, datagrams) {
            (true, 0) if self.is_leaving => self.close(receiver),
            (false, 1..) => self.wake(),
            _ => {}
        }
    }

    #[cold]
    fn close(&mut self, receiver: &mut kernel::Receiver) {
        receiver.connect(None);
        (self.is_connected, self.is_leaving) = (false, false);
        self.need_more();
    }

    pub(super) fn watch(&mut self, receiver: &kernel::Receiver, poll: BorrowedFd<'_>) -> io::Result<()> {
        add(poll, receiver.socket())?;
        if let Some(socket) = receiver.connected() {
            add(poll, socket)?;
        }
        self.polls.push(poll.try_clone_to_owned()?);
        Ok(())
    }

    /// Closing it ends that, too.
    fn watch_all(&self, socket: OwnedFd) -> io::Result<OwnedFd> {
        self.polls.iter().try_for_each(|poll| add(poll.as_fd(), socket.as_fd()))?;
        Ok(socket)
    }
}

fn add(poll: BorrowedFd<'_>, socket: BorrowedFd<'_>) -> io::Result<()> {
    Ok(epoll::add(poll, socket, epoll::EventData::new_u64(CARRIER), epoll::EventFlags::IN)?)
}

/// What comes between the two calls goes to the new socket, whoever sent it: the kernel gives precedence to the newest one.
fn open(receiver: &kernel::Receiver, to: SocketAddr) -> io::Result<OwnedFd> {
    let first = receiver.socket();
    let local = address::local(&first)?;
    // Two sockets can have one address only if both allow it when the second one is bound.
    sockopt::set_socket_reuseaddr(first, true)?;
    let bound = super::settings().reuse_address(true).bound(local);
    sockopt::set_socket_reuseaddr(first, false)?;
    let socket = OwnedFd::from(bound.map_err(io::Error::other)?);
    sockopt::set_socket_reuseaddr(&socket, false)?;
    allow_fragments(&socket, local.is_ipv6(), false)?;
    set_coalescing(&socket, receiver.coalesces())?;
    rustix::net::connect(&socket, &to)?;
    Ok(socket)
}
