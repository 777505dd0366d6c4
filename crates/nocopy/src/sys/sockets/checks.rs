//! Zero-copy features of the kernel's own sockets, tested with sockets that are never used.

use std::io;
use std::os::fd::AsRawFd;

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::tcp_socket;
use crate::sys::option;

/// `TCP_ZEROCOPY_RECEIVE` of `linux/tcp.h`.
const TCP_ZEROCOPY_RECEIVE: i32 = 35;

/// Whether sockets accept `MSG_ZEROCOPY`. Errors: the kernel's refusal: `ENOPROTOOPT` if it does not know the
/// option.
pub(crate) fn check_zero_copy_send() -> io::Result<()> {
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(&tcp_socket()?, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1_i32) }
}

/// Whether TCP maps what it receives into the program's memory. Errors: the kernel's refusal: `ENOPROTOOPT`
/// if it does not know the option.
pub(crate) fn check_zero_copy_receive() -> io::Result<()> {
    /// The first members of `struct tcp_zerocopy_receive`: address, length, bytes to skip.
    #[repr(C)]
    struct ZeroCopyReceiveRequest(u64, u32, u32);
    let (socket, mut request) = (tcp_socket()?, ZeroCopyReceiveRequest(0, 0, 0));
    let mut length = libc::socklen_t::try_from(size_of::<ZeroCopyReceiveRequest>()).expect("small");
    // SAFETY: pointer and length describe `request`, which outlives the call; nothing was received, so
    // nothing is mapped.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_TCP,
            TCP_ZEROCOPY_RECEIVE,
            (&raw mut request).cast(),
            &raw mut length,
        )
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether this process may make packet sockets. The one made here, for no protocol, receives nothing.
pub(crate) fn check_packet_socket() -> io::Result<()> {
    rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
    Ok(())
}
