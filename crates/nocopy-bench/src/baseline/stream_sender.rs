//! `MSG_ZEROCOPY` on a TCP socket, by hand.

use std::io::{self, IoSliceMut};
use std::net::TcpStream;

use nix::sys::socket::{MsgFlags, recvmsg};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, send};

use super::packet_socket::set_socket_option;

/// rustix has no name for it.
const ZERO_COPY: SendFlags = SendFlags::from_bits_retain(libc::MSG_ZEROCOPY as u32);

/// Completion notices per read of the error queue.
const NOTICE_BYTES: usize = 256;

pub(crate) fn allow_zero_copy(stream: &TcpStream) -> io::Result<()> {
    set_socket_option(stream, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1_i32)
}

/// Sends all bytes. They must not be written to while the kernel may read them: completions are only removed,
/// because they fill the socket's memory, and not evaluated.
pub(crate) fn send_by_reference(stream: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match send(stream, bytes, ZERO_COPY) {
            Ok(sent) => bytes = &bytes[sent..],
            // More calls are in flight than the socket's memory allows: some have completed.
            Err(Errno::NOBUFS) => {
                poll(&mut [PollFd::new(stream, PollFlags::empty())], None)?;
            }
            Err(error) => return Err(error.into()),
        }
        discard_completions(stream)?;
    }
    Ok(())
}

fn discard_completions(stream: &TcpStream) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mut control = nix::cmsg_space!([u8; NOTICE_BYTES]);
    let flags = MsgFlags::MSG_ERRQUEUE | MsgFlags::MSG_DONTWAIT;
    loop {
        let mut nothing: [IoSliceMut<'_>; 0] = [];
        match recvmsg::<()>(stream.as_raw_fd(), &mut nothing, Some(&mut control), flags) {
            Ok(_) => {}
            Err(nix::errno::Errno::EAGAIN) => return Ok(()),
            Err(error) => return Err(error.into()),
        }
    }
}
