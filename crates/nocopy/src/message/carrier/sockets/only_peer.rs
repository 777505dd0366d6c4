//! A second socket with the endpoint's address, connected to the peer to which all packets go: the kernel
//! keeps the route of such a socket, and finds it sooner.
//!
//! The peer's packets come to it from then on, those of all others to the first socket, which is looked at
//! now and then while nothing comes there. Whoever sleeps is woken by either of them.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nocopy_proto::message::{Local, Path};
use rustix::event::epoll;
use rustix::net::sockopt;

use super::super::add;
use super::outbox::send_lone;
use crate::engine::address;
use crate::sys::udp_receive::set_coalescing;
use crate::sys::udp_send::{allow_fragments, send_datagram};
use crate::udp::kernel;

/// It is opened after so many calls in a row that send to one address, and closed after so many that send to
/// others.
const IN_A_ROW: u32 = 256;
/// How much longer the row must be after it was closed: in closing it, what comes meanwhile is lost.
const MORE_EACH_TIME: u32 = 8;
/// The first socket is at rest after so many looks at it that found nothing.
const LOOKS_AWAKE: u32 = 256;
/// One in so many looks is at it then.
const LOOKS_AT_REST: u32 = 256;

const FIRST: Look = Look { connected: false, other: false };

/// No peer has this address.
const NOBODY: SocketAddr = SocketAddr::V4(SocketAddrV4::new(Ipv4Addr::UNSPECIFIED, 0));

#[derive(Debug)]
pub(super) struct OnlyPeer {
    /// Where the last packets went, or the peer to which the socket is connected.
    to: Path,
    /// How many calls in a row sent there, and how many must.
    row: u32,
    row_needed: u32,
    /// Calls that sent to others, since the last one to this peer.
    others: u32,
    is_connected: bool,
    /// The socket is used for sending. One that is not is closed when nothing is left in it.
    sends: bool,
    /// Looks at both since something came to the first socket.
    empty: u32,
    /// In how many looks the next one at the first socket is due; 0: in each.
    until_first: u32,
    /// The last look at both began with the first socket.
    starts_first: bool,
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
            to: NOBODY.into(),
            row: 0,
            row_needed: IN_A_ROW,
            others: 0,
            is_connected: false,
            sends: false,
            empty: 0,
            until_first: 0,
            starts_first: false,
            polls: Vec::new(),
        }
    }

    /// The peer that has a socket of its own.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.sends.then_some(self.to.remote)
    }

    /// The address of this host to which that peer sends; `None`: the one that the kernel chose.
    #[inline]
    pub(super) fn local(&self) -> Option<Local> {
        self.to.local
    }

    /// Sends a packet by a call of its own; false: it was not sent.
    #[inline(always)] // for each packet that goes alone
    pub(super) fn send(&mut self, receiver: &mut kernel::Receiver, to: &Path, bytes: &[u8]) -> bool {
        if self.to == *to && self.sends {
            self.others = 0;
            let sent = receiver
                .connected_socket()
                .is_some_and(|socket| send_datagram(socket, bytes, None, libc::MSG_DONTWAIT).is_ok());
            return sent || self.leave_after_error();
        }
        self.note(receiver, to);
        send_lone(to, receiver.socket(), bytes)
    }

    /// The socket that is connected to an address, if several packets that go there together are to be sent
    /// by it.
    #[inline]
    pub(super) fn socket_to<'r>(
        &mut self,
        receiver: &'r mut kernel::Receiver,
        to: &Path,
    ) -> Option<BorrowedFd<'r>> {
        if self.to == *to && self.sends {
            self.others = 0;
            return receiver.connected_socket();
        }
        self.note(receiver, to);
        None
    }

    /// Notes that packets go to several addresses together.
    #[inline]
    pub(super) fn note_several(&mut self) {
        match self.is_connected {
            true => self.note_other(),
            false => self.row = 0,
        }
    }

    /// Notes that something goes to an address by the first socket.
    #[inline(always)]
    fn note(&mut self, receiver: &mut kernel::Receiver, to: &Path) {
        if self.to == *to {
            self.row += 1;
            if self.row == self.row_needed {
                self.open(receiver);
            }
        } else if self.is_connected {
            self.note_other();
        } else {
            (self.to, self.row) = (*to, 0);
        }
    }

    /// The kernel refused it: the first socket is tried, which says why. That an address is gone, for
    /// example, concerns this socket alone.
    #[cold]
    fn leave_after_error(&mut self) -> bool {
        if io::Error::last_os_error().kind() != io::ErrorKind::WouldBlock {
            self.leave();
        }
        false
    }

    /// It is closed when nothing is left in it.
    pub(super) fn leave(&mut self) {
        (self.sends, self.to.remote) = (false, NOBODY);
    }

    #[cold]
    fn note_other(&mut self) {
        self.others += 1;
        if self.others == IN_A_ROW && self.sends {
            self.leave();
        }
    }

    #[cold]
    fn open(&mut self, receiver: &mut kernel::Receiver) {
        // Without such a socket everything works as before.
        match open(receiver, &self.to).and_then(|socket| self.watch_all(socket)) {
            Ok(socket) => {
                receiver.connect(Some(socket));
                (self.is_connected, self.sends, self.empty, self.others) = (true, true, 0, 0);
            }
            Err(_) => self.need_more(),
        }
    }

    fn need_more(&mut self) {
        (self.row, self.row_needed) = (0, self.row_needed.saturating_mul(MORE_EACH_TIME));
    }

    /// Which of the sockets to look at now.
    #[inline(always)] // for each look
    pub(super) fn look(&mut self) -> Look {
        if self.until_first > 1 {
            self.until_first -= 1;
            return Look { connected: true, other: false };
        }
        self.look_at_first()
    }

    fn look_at_first(&mut self) -> Look {
        if !self.is_connected {
            return FIRST;
        }
        self.empty = self.empty.saturating_add(1);
        self.until_first = if self.empty > LOOKS_AWAKE { LOOKS_AT_REST } else { 0 };
        // In turns, or one that always has something would keep the other from being read.
        self.starts_first = !self.starts_first;
        Look { connected: !self.starts_first, other: true }
    }

    /// Has both be looked at for a while. Returns whether the last look left one out.
    #[inline]
    pub(super) fn wake(&mut self) -> bool {
        self.empty = 0;
        (1..LOOKS_AT_REST).contains(&std::mem::take(&mut self.until_first))
    }

    /// Notes that something came.
    #[inline(always)]
    pub(super) fn note_some(&mut self, connected: bool) {
        if !connected {
            self.empty = 0;
        }
    }

    /// Returns where to look after a look that found nothing.
    #[inline(always)]
    pub(super) fn after_nothing(&mut self, receiver: &mut kernel::Receiver, look: Look) -> Option<Look> {
        if look.connected && !self.sends {
            self.close(receiver);
            return Some(FIRST);
        }
        look.other.then_some(Look { connected: !look.connected, other: false })
    }

    #[cold]
    fn close(&mut self, receiver: &mut kernel::Receiver) {
        if let Some(socket) = receiver.connected_socket() {
            // A forked child may keep it open: it must neither be watched nor get the peer's packets any
            // more.
            for poll in &self.polls {
                let _ = epoll::delete(poll, socket); // it is watched
            }
            // Nobody sends from there.
            let _ = address::local_addr(&socket).map(|own| rustix::net::connect(socket, &own));
        }
        receiver.connect(None);
        (self.is_connected, self.until_first) = (false, 0);
        self.need_more();
    }

    pub(super) fn watch(&mut self, receiver: &kernel::Receiver, poll: BorrowedFd<'_>) -> io::Result<()> {
        add(poll, receiver.socket())?;
        if let Some(socket) = receiver.connected_socket() {
            add(poll, socket)?;
        }
        self.polls.push(poll.try_clone_to_owned()?);
        Ok(())
    }

    fn watch_all(&self, socket: OwnedFd) -> io::Result<OwnedFd> {
        self.polls.iter().try_for_each(|poll| add(poll.as_fd(), socket.as_fd()))?;
        Ok(socket)
    }
}

/// What comes between `bind` and `connect` goes to the new socket, whoever sent it: the kernel gives
/// precedence to the newest one. While both sockets allow others with their address, for some microseconds,
/// another program that asks for the same could take it, too.
fn open(receiver: &kernel::Receiver, to: &Path) -> io::Result<OwnedFd> {
    let first = receiver.socket();
    let local = address::local_addr(&first)?;
    let local = to.local.map_or(local, |asked| asked.at(local.port()));
    // Two sockets can have one address only if both allow it when the second one is bound.
    sockopt::set_socket_reuseaddr(first, true)?;
    let bound = super::settings().reuse_address(true).bind_socket(local);
    sockopt::set_socket_reuseaddr(first, false)?;
    let socket = OwnedFd::from(bound?);
    sockopt::set_socket_reuseaddr(&socket, false)?;
    allow_fragments(&socket, local.is_ipv6(), false)?;
    set_coalescing(&socket, receiver.coalesces())?;
    rustix::net::connect(&socket, &to.remote)?;
    Ok(socket)
}

#[cfg(test)]
mod tests;
