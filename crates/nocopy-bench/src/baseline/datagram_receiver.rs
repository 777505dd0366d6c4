//! Ordinary UDP sockets to receive by: datagram by datagram, for
//! [`receive_batches`](super::packet_socket::receive_batches), or as the kernel joined them.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::datagram_sender::PORT;
use super::packet_socket::{PATIENCE, set_socket_option};
use crate::stage::NetworkSite;
use crate::window::WindowGauge;

/// The receive buffer of every socket: at a million datagrams a second, bursts exceed the default of 208 KiB.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

/// The most bytes of joined datagrams.
const JOINED_BYTES_MAX: usize = 64 << 10;

/// Room for the length of the joined datagrams, which the kernel writes beside them.
const CONTROL_BYTES: usize = 64;

pub(crate) fn open_receiver_socket(site: &NetworkSite) -> io::Result<UdpSocket> {
    let socket = site.run(|| UdpSocket::bind((site.ipv4, PORT)))?;
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

/// A socket that gets datagrams of equal length as the kernel joined them.
pub(crate) fn open_gro_socket(site: &NetworkSite) -> io::Result<UdpSocket> {
    let socket = open_receiver_socket(site)?;
    enable_gro(&socket)?;
    Ok(socket)
}

fn enable_gro(socket: &UdpSocket) -> io::Result<()> {
    set_socket_option(socket, libc::SOL_UDP, libc::UDP_GRO, &1_i32)
}

/// Receives by one `recvmsg` for the datagrams that were joined.
pub(crate) fn receive_joined(
    socket: &UdpSocket,
    gauge: &mut WindowGauge<'_>,
    look: impl Fn(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut memory = vec![0; JOINED_BYTES_MAX];
    while gauge.may_receive() {
        let joined = match recv_joined_datagrams(socket, &mut memory) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                gauge.count_packets(0);
                continue;
            }
            joined => joined?,
        };
        let mut count = 0;
        for datagram in joined {
            look(datagram)?;
            count += 1;
        }
        gauge.count_packets(count);
    }
    Ok(())
}

/// The datagrams of one call. An empty one is left out.
fn recv_joined_datagrams<'a>(
    socket: &UdpSocket,
    memory: &'a mut [u8],
) -> io::Result<std::slice::Chunks<'a, u8>> {
    let mut part = libc::iovec { iov_base: memory.as_mut_ptr().cast(), iov_len: memory.len() };
    let mut control = [0_usize; CONTROL_BYTES / size_of::<usize>()];
    // SAFETY: msghdr is plain data for which all zeros means no name, no parts and no control.
    let mut header: libc::msghdr = unsafe { zeroed() };
    header.msg_iov = &raw mut part;
    header.msg_iovlen = 1;
    header.msg_control = control.as_mut_ptr().cast();
    header.msg_controllen = CONTROL_BYTES as _;
    // SAFETY: the header points to one part and to control memory, both live and as long as it says.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut header, 0) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    let received = &memory[..received];
    let datagram_bytes = gro_segment_bytes(&header).unwrap_or(received.len());
    Ok(received.chunks(datagram_bytes.max(1)))
}

/// The length of each joined datagram but the last; `None`: it is a single one.
fn gro_segment_bytes(header: &libc::msghdr) -> Option<usize> {
    // SAFETY: the kernel has filled the control memory of the header, and stated its length.
    let mut control = unsafe { libc::CMSG_FIRSTHDR(header) };
    while !control.is_null() {
        // SAFETY: not null, so it is a whole control message inside of that memory, which is aligned for it.
        let found = unsafe { *control };
        if (found.cmsg_level, found.cmsg_type) == (libc::SOL_UDP, libc::UDP_GRO) {
            // SAFETY: the value of this message is an int.
            let bytes = unsafe { libc::CMSG_DATA(control).cast::<libc::c_int>().read_unaligned() };
            return usize::try_from(bytes).ok();
        }
        // SAFETY: both are of the same control memory.
        control = unsafe { libc::CMSG_NXTHDR(header, control) };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn joined_datagrams_are_split() {
        let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
        enable_gro(&receiver).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let mut memory = vec![0; JOINED_BYTES_MAX];
        let mut lengths =
            || recv_joined_datagrams(&receiver, &mut memory).unwrap().map(<[u8]>::len).collect::<Vec<_>>();
        sender.send(&[7; 1400]).unwrap();
        assert_eq!(lengths(), [1400]);
        set_socket_option(&sender, libc::SOL_UDP, libc::UDP_SEGMENT, &300_i32).unwrap();
        sender.send(&[7; 1000]).unwrap();
        let mut all = Vec::new();
        // How many the kernel joins is its own choice.
        while all.iter().sum::<usize>() < 1000 {
            all.extend(lengths());
        }
        assert_eq!(all, [300, 300, 300, 100]);
    }
}
