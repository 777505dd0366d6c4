//! What becomes of the interface: AF_XDP sockets raise no event when it goes down or away, and packet sockets do.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::super::deaf::NOBODYS_PROTOCOL;
use super::super::interface;
use crate::text;

/// Makes a descriptor readable when the interface goes down or away.
#[derive(Debug)]
pub(super) struct Watch {
    /// Has an error to tell then. It hears a protocol, or it would not be told itself, but one that no packet has.
    socket: OwnedFd,
    device: CString,
}

impl Watch {
    /// For an interface and the epoll descriptor that is to become readable.
    pub(super) fn open(device: &CStr, epoll: BorrowedFd<'_>) -> io::Result<Self> {
        let socket = interface::packet_socket(device, NOBODYS_PROTOCOL)?;
        // Errors are told without being asked for, and nobody reads what is told of them.
        epoll::add(epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::empty())?;
        Ok(Self { socket, device: device.to_owned() })
    }

    /// Has the descriptor readable no longer for what became of the interface until now: to be called before it is looked at.
    pub(super) fn hear(&self) {
        interface::socket_error(self.socket.as_fd());
    }

    /// What an error of the ports means: whether the interface is down, and may come up again.
    ///
    /// # Errors
    /// In libpcap's words: it is gone, or something else is wrong.
    pub(super) fn explain(&self, error: &io::Error) -> Result<bool, String> {
        match error.kind() {
            io::ErrorKind::NetworkDown => {
                self.hear();
                // One that is being deleted is down before it is gone.
                interface::is_up(self.socket.as_fd(), &self.device).map(|is_up| !is_up)
            }
            io::ErrorKind::NotConnected => Err("The interface disappeared".into()),
            _ => Err(text::of_errno("can't look for packets", error)),
        }
    }
}
