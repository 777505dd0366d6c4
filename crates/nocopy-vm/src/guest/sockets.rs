//! The kernel's own sockets, as ordinary programs use them.

use std::io;
use std::net::UdpSocket;

use nocopy_lab::{End, Lab};
use rustix::fd::OwnedFd;
use rustix::net::{AddressFamily, SocketFlags, SocketType, eth, socket_with};

use super::patience::ARRIVAL_MAX;
use crate::failure::Failure;

/// Checks that datagrams of the kernel's UDP reach across, both ways, once the interfaces have carrier.
pub(crate) fn check_udp_both_ways(lab: &Lab) -> Result<(), Failure> {
    lab.wait_for_carrier()?;
    let (left, right) = (bind_udp(lab.left())?, bind_udp(lab.right())?);
    let mut bytes = [0; 16];
    left.send_to(b"ping", right.local_addr()?)?;
    let (length, from) = right.recv_from(&mut bytes).map_err(not_arrived("left", "right"))?;
    assert_eq!((&bytes[..length], from), (&b"ping"[..], left.local_addr()?));
    right.send_to(b"pong", from)?;
    let length = left.recv(&mut bytes).map_err(not_arrived("right", "left"))?;
    assert_eq!(&bytes[..length], b"pong");
    Ok(())
}

fn bind_udp(end: &End) -> io::Result<UdpSocket> {
    let socket = end.namespace().run(|| UdpSocket::bind((end.ipv4(), 7000)))?;
    socket.set_read_timeout(Some(ARRIVAL_MAX))?;
    Ok(socket)
}

fn not_arrived(from: &str, to: &str) -> impl FnOnce(io::Error) -> Failure {
    move |error| Failure(format!("a datagram from the {from} to the {to} end: {error}"))
}

/// A packet socket for all packets of the interface, as tcpdump opens it.
pub(crate) fn open_packet_socket(end: &End) -> Result<OwnedFd, Failure> {
    let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
    Ok(end.namespace().run(|| socket_with(family, kind, SocketFlags::CLOEXEC, Some(eth::ALL)))?)
}
