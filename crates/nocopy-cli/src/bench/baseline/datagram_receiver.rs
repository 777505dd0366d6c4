//! UDP sockets that receive: datagram by datagram, or as the kernel joined them (`UDP_GRO`).
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::datagram_sender::PORT;
use super::packet_socket::{PATIENCE, set_option_of};
use crate::bench::frame;
use crate::bench::stage::Site;
use crate::bench::window::Gauge;

/// Longer bursts than the default 208 KiB holds are normal at a million datagrams a second.
const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// Bytes of a read: the most the kernel joins.
const READ_BYTES: usize = 64 << 10;

/// For [`super::packet_socket::receive_batches`], or for [`receive_joined`] once it was set to join.
pub(crate) fn open(site: &Site) -> io::Result<UdpSocket> {
    let socket = site.run(|| UdpSocket::bind((site.ipv4, PORT)))?;
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// One that is given datagrams of one length as the sender's kernel had joined them.
pub(crate) fn open_joining(site: &Site) -> io::Result<UdpSocket> {
    let socket = open(site)?;
    set_option_of(&socket, libc::SOL_UDP, libc::UDP_GRO, &1_i32)?;
    Ok(socket)
}

/// Receives joined datagrams, reads every byte and counts what they were.
pub(crate) fn receive_joined(socket: &UdpSocket, gauge: &mut Gauge<'_>) -> io::Result<()> {
    let mut buffer = vec![0; READ_BYTES];
    while gauge.receiving() {
        match receive(socket, &mut buffer) {
            Ok((bytes, datagram_bytes)) => {
                frame::read(&buffer[..bytes]);
                gauge.count(bytes.div_ceil(datagram_bytes.max(1)).max(1) as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => gauge.count(0),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Room for the one control message there is, an `int`; aligned as its header must be.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Receives once: how many bytes, and how many of them are a datagram.
fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> io::Result<(usize, usize)> {
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    let mut control = Control([0; 64]);
    // SAFETY: msghdr is plain data for which all zeros means no name, no parts and no control.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &raw mut part;
    message.msg_iovlen = 1;
    message.msg_control = (&raw mut control).cast();
    message.msg_controllen = size_of::<Control>();
    // SAFETY: the message points to one part, which points to `buffer`, and to `control`, each with its length; all
    // outlive the call.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, 0) };
    let bytes = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    Ok((bytes, datagram_bytes(&message).unwrap_or(bytes)))
}

/// What the kernel says joined datagrams were; nothing of one that is alone.
fn datagram_bytes(message: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel filled in the control part of `message` and its length; the macros stay within it, and an `int` is
    // there where the header says that the message is one of UDP_GRO.
    unsafe {
        let header = libc::CMSG_FIRSTHDR(message).as_ref()?;
        let joined = header.cmsg_level == libc::SOL_UDP && header.cmsg_type == libc::UDP_GRO;
        joined.then(|| libc::CMSG_DATA(header).cast::<i32>().read_unaligned())
    }
    .and_then(|bytes| usize::try_from(bytes).ok())
}
