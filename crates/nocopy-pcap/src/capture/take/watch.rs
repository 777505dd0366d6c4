//! Watches the interface by a packet socket, because AF_XDP sockets raise no event when it is set down or
//! removed.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;

use super::super::interface;
use super::super::receive_off::RESERVED_PROTOCOL;
use crate::{packet_socket, text};

/// Makes a descriptor readable when the interface is set down or removed.
#[derive(Debug)]
pub(super) struct InterfaceWatch {
    /// Has an error when the interface is set down or removed. It is bound to a protocol that no packet has;
    /// unbound it would get no error.
    socket: OwnedFd,
    device: CString,
}

impl InterfaceWatch {
    /// Watches an interface; makes the epoll descriptor readable.
    pub(super) fn open(device: &CStr, epoll: BorrowedFd<'_>) -> io::Result<Self> {
        let socket = packet_socket::open(device, RESERVED_PROTOCOL)?;
        // Errors are reported without being requested, and are not read here.
        epoll::add(epoll, &socket, epoll::EventData::new_u64(0), epoll::EventFlags::empty())?;
        Ok(Self { socket, device: device.to_owned() })
    }

    /// Clears the descriptor's readiness; called before the interface is checked.
    pub(super) fn clear_readiness(&self) {
        interface::take_socket_error(self.socket.as_fd());
    }

    /// The meaning of an error of the ports: whether the interface is down, and may come up again.
    /// The error is in libpcap's words: the interface was removed, or something else failed.
    pub(super) fn is_down_after_error(&self, error: &io::Error) -> Result<bool, String> {
        match error.kind() {
            io::ErrorKind::NetworkDown => {
                self.clear_readiness();
                // An interface that is being deleted is down before it is removed.
                interface::is_interface_up(self.socket.as_fd(), &self.device).map(|is_up| !is_up)
            }
            io::ErrorKind::NotConnected => Err("The interface disappeared".into()),
            _ => Err(text::errno_text("can't look for packets", error)),
        }
    }
}
