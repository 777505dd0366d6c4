//! An ordinary UDP socket to receive by, for [`receive_batches`](super::packet_socket::receive_batches).

use std::io;
use std::net::UdpSocket;

use rustix::net::sockopt::set_socket_recv_buffer_size_force;

use super::datagram_sender::PORT;
use super::packet_socket::PATIENCE;
use crate::stage::Site;

/// The receive buffer of every socket: at a million datagrams a second, bursts exceed the default of 208 KiB.
pub(crate) const RECEIVE_BUFFER_BYTES: usize = 16 << 20;

pub(crate) fn open(site: &Site) -> io::Result<UdpSocket> {
    let socket = site.run(|| UdpSocket::bind((site.ipv4, PORT)))?;
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}
