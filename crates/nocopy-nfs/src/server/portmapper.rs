//! The portmapper by UDP, which older clients ask first. Only calls that are well-formed are answered, from
//! the address that was asked, and by no more than a call of theirs is long (but the list of both programs,
//! by 28 bytes more): the source of a datagram may be forged.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::AsRawFd;

use nix::cmsg_space;
use nix::libc::{in_pktinfo, in6_pktinfo};
use nix::sys::socket::{
    ControlMessage, ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, sendmsg, setsockopt,
    sockopt as options,
};
use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, socket_with, sockopt};

use super::SharedState;

/// The longest call that is read: of GETPORT, with the longest credential and verifier.
const CALL_BYTES_MAX: usize = 1 << 10;

/// The most answers before others have their turn.
const ANSWERS_MAX: usize = 64;

#[derive(Debug)]
pub(super) struct Portmapper {
    pub(super) socket: UdpSocket,
}

/// The address that was asked.
#[derive(Debug, Clone, Copy)]
enum DestinationAddress {
    Ipv4(in_pktinfo),
    Ipv6(in6_pktinfo),
}

impl Portmapper {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
        if address.is_ipv4() {
            setsockopt(&socket, options::Ipv4PacketInfo, &true)?;
        } else {
            sockopt::set_ipv6_v6only(&socket, false)?;
            setsockopt(&socket, options::Ipv6RecvPacketInfo, &true)?;
        }
        bind(&socket, &address)?;
        Ok(Self { socket: socket.into() })
    }

    /// Answers what has arrived.
    pub(super) fn answer_calls(&self, shared: &SharedState) {
        let mut buffer = [0; CALL_BYTES_MAX];
        for _ in 0..ANSWERS_MAX {
            // Errors: nothing has arrived, or an earlier answer did not.
            let Ok(received) = self.receive_call(&mut buffer) else { break };
            let Some((call, from, asked)) = received else { continue };
            let allow = &shared.settings.allow;
            if !allow.is_empty() && !allow.iter().any(|allow| allow.allows(from)) {
                continue;
            }
            if let Some(reply) = shared.core.answer_datagram(call) {
                // An answer for which there is no room is lost, as any datagram may be.
                let _ = self.send_reply(&reply, from, asked);
            }
        }
    }

    /// A datagram, its source, and the address that was asked; `None` if it is not to be answered.
    fn receive_call<'a>(
        &self,
        buffer: &'a mut [u8],
    ) -> nix::Result<Option<(&'a [u8], SocketAddr, DestinationAddress)>> {
        let mut control = cmsg_space!(in_pktinfo, in6_pktinfo);
        let (bytes, from, asked) = {
            let mut into = [IoSliceMut::new(buffer)];
            let flags = MsgFlags::MSG_DONTWAIT;
            let socket = self.socket.as_raw_fd();
            let message = recvmsg::<SockaddrStorage>(socket, &mut into, Some(&mut control), flags)?;
            let is_whole = !message.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC);
            let asked = message.cmsgs()?.find_map(DestinationAddress::from_message).filter(|_| is_whole);
            (message.bytes, message.address.as_ref().and_then(to_socket_address), asked)
        };
        let both = from.filter(|from| from.port() != 0).zip(asked);
        Ok(both.map(|(from, asked)| (&buffer[..bytes], from, asked)))
    }

    fn send_reply(&self, reply: &[u8], to: SocketAddr, from: DestinationAddress) -> nix::Result<usize> {
        let control = match &from {
            DestinationAddress::Ipv4(asked) => ControlMessage::Ipv4PacketInfo(asked),
            DestinationAddress::Ipv6(asked) => ControlMessage::Ipv6PacketInfo(asked),
        };
        let (socket, to) = (self.socket.as_raw_fd(), SockaddrStorage::from(to));
        sendmsg(socket, &[IoSlice::new(reply)], &[control], MsgFlags::MSG_DONTWAIT, Some(&to))
    }
}

impl DestinationAddress {
    /// Of a datagram to one host: what was sent to all hosts of a network is not answered.
    fn from_message(message: ControlMessageOwned) -> Option<Self> {
        match message {
            ControlMessageOwned::Ipv4PacketInfo(asked) => {
                let is_own = asked.ipi_spec_dst.s_addr == asked.ipi_addr.s_addr;
                is_own.then_some(Self::Ipv4(in_pktinfo { ipi_ifindex: 0, ..asked }))
            }
            ControlMessageOwned::Ipv6PacketInfo(asked) => {
                let address = Ipv6Addr::from(asked.ipi6_addr.s6_addr);
                // Of an interface are only the addresses of its link.
                let interface = if address.is_unicast_link_local() { asked.ipi6_ifindex } else { 0 };
                let is_one = !address.is_multicast();
                is_one.then_some(Self::Ipv6(in6_pktinfo { ipi6_ifindex: interface, ..asked }))
            }
            _ => None,
        }
    }
}

fn to_socket_address(of: &SockaddrStorage) -> Option<SocketAddr> {
    let ipv4 = of.as_sockaddr_in().map(|one| SocketAddr::from(std::net::SocketAddrV4::from(*one)));
    ipv4.or_else(|| of.as_sockaddr_in6().map(|one| std::net::SocketAddrV6::from(*one).into()))
}
