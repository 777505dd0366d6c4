//! Sending packets as they are: `pcap_inject`, `pcap_sendpacket`.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Sends packets on an interface.
#[derive(Debug)]
pub(crate) struct Injector {
    socket: OwnedFd,
}

impl Injector {
    /// For an interface; `capture` is the packet socket of the capture, if it has one: what is sent on it does not come back to it.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub(crate) fn open(interface: &str, capture: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        let socket = match capture {
            Some(capture) => capture.try_clone_to_owned()?,
            None => bound(interface)?,
        };
        Ok(Self { socket })
    }

    /// Sends a packet; the number of its bytes.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn inject(&mut self, packet: &[u8]) -> io::Result<usize> {
        // SAFETY: the pointer and length are the packet's.
        let sent = unsafe { libc::send(self.socket.as_raw_fd(), packet.as_ptr().cast(), packet.len(), 0) };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Sends what waits: nothing does, each packet is its own call.
    ///
    /// # Errors
    /// What the kernel said.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    /// Ends without sending anything more.
    pub(crate) fn leave(self) {}
}

/// A packet socket that sends on an interface and hears nothing.
fn bound(interface: &str) -> io::Result<OwnedFd> {
    let name = CString::new(interface)?;
    // SAFETY: the name ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: takes numbers.
    let socket = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: opened above, and owned by nobody else.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    (address.sll_family, address.sll_ifindex) = (libc::AF_PACKET as u16, index.cast_signed());
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length describe `address`.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}
