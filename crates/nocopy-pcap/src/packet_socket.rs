//! Packet sockets, and the interfaces that they are bound to.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// A packet socket bound to an interface; it receives packets of a protocol, or none if that is 0.
pub(crate) fn open(device: &CStr, protocol: u16) -> io::Result<OwnedFd> {
    // SAFETY: the name ends with a zero.
    let index = unsafe { libc::if_nametoindex(device.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let socket = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    let mut address = zeroed_address();
    (address.sll_family, address.sll_protocol) = (libc::AF_PACKET as u16, protocol.to_be());
    address.sll_ifindex = index.cast_signed();
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length describe `address`, which outlives the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The index of the interface that a packet socket is bound to; -1 if the interface was removed.
pub(crate) fn bound_interface_index(socket: BorrowedFd<'_>) -> io::Result<i32> {
    let mut address = zeroed_address();
    let mut bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointers are to the address and to its length, which outlive the call.
    match unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut bytes) } {
        0 => Ok(address.sll_ifindex),
        _ => Err(io::Error::last_os_error()),
    }
}

fn zeroed_address() -> libc::sockaddr_ll {
    // SAFETY: all-zero is a valid `sockaddr_ll`.
    unsafe { std::mem::zeroed() }
}
