//! The ordinary sockets behind a socket over a port: they reserve its port number, join its groups, and send
//! and receive datagrams that the port cannot.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use smallvec::SmallVec;
use socket2::{Domain, MsgHdr, Protocol, SockAddr, SockRef, Type};

use super::super::drops::DropCounter;
use super::super::open_error::{OpenError, setting_error};
use super::super::peer_error::{PENDING_ERRORS_MAX, is_network_error};
use super::super::settings::{SocketSettings, join_group, set_multicast_interface};
use crate::engine::address;
use crate::memory::send_queue::KernelSocket;
use crate::port::{Mode, Port};
use crate::sys::interface::Interface;
use crate::sys::option;
use crate::sys::packet::{QueueShare, complement_filter};
use crate::sys::udp_receive::{MessageReport, RecvmmsgArguments};
use crate::sys::udp_send::{AddedControls, enable_error_queue};

/// Ordinary sockets, none of which ever blocks.
#[derive(Debug)]
pub(super) struct KernelSockets {
    /// The socket of this address, then the sockets of its groups.
    sockets: Vec<BoundSocket>,
    /// The first of the sockets, with the network's error reports (ICMP) for all datagrams from its address,
    /// however they were sent.
    own: Arc<KernelSocket>,
    pub(super) hop_limit: u8,
    pub(super) multicast_hop_limit: u8,
}

#[derive(Debug)]
struct BoundSocket {
    address: SocketAddr,
    descriptor: Arc<OwnedFd>,
    drops: DropCounter,
}

impl KernelSockets {
    /// Binds a socket to the address: no other program gets the address, and datagrams that the kernel
    /// receives for it wait at the socket.
    pub(super) fn bind_address(local: SocketAddr, settings: &SocketSettings) -> Result<Self, OpenError> {
        let socket = bind_kernel_socket(local, |socket| settings.apply_to_socket(socket, local.is_ipv6()))?;
        let local = address::local_addr(&socket).map_err(setting_error("port number"))?;
        let (hop_limit, multicast_hop_limit) =
            hop_limits(&SockRef::from(&socket), local.is_ipv4()).map_err(setting_error("hop limit"))?;
        enable_error_queue(&socket, local.is_ipv6()).map_err(setting_error("errors of the network"))?;
        let descriptor = Arc::new(OwnedFd::from(socket));
        let own = KernelSocket::new(Arc::clone(&descriptor));
        let sockets = vec![BoundSocket { address: local, descriptor, drops: DropCounter::default() }];
        Ok(Self { sockets, own, hop_limit, multicast_hop_limit })
    }

    /// Joins the groups on the interface, and makes the sockets ignore datagrams that a port, or ports on all
    /// its queues, also receive.
    pub(super) fn join_groups_and_exclude_ports(
        &mut self,
        ports: &[Port],
        interface: &Interface,
        settings: &SocketSettings,
    ) -> Result<(), OpenError> {
        let local = self.local_addr();
        set_multicast_interface(
            &SockRef::from(&self.sockets[0].descriptor),
            local.is_ipv6(),
            interface.index,
        )
        .map_err(setting_error("multicast interface"))?;
        for group in &settings.groups {
            let address = match group {
                IpAddr::V4(_) => SocketAddr::new(*group, local.port()),
                IpAddr::V6(group) => SocketAddrV6::new(*group, local.port(), 0, interface.index).into(),
            };
            // Bound to the group, so that it receives only its datagrams; other programs may do the same.
            let socket = bind_kernel_socket(address, |socket| {
                socket.set_reuse_address(true).map_err(setting_error("reuse address"))?;
                settings.set_reported_facts(socket, group.is_ipv6())
            })?;
            join_group(&socket, *group, interface.index)?;
            let descriptor = Arc::new(socket.into());
            self.sockets.push(BoundSocket { address, descriptor, drops: DropCounter::default() });
        }
        if ports.iter().any(|port| port.mode() == Mode::PacketRing) {
            let share = match ports {
                [port] => QueueShare { queue: port.queue(), queues: interface.rx_queues },
                _ => QueueShare { queue: 0, queues: 1 },
            };
            let filter = complement_filter(interface.index, interface.mtu_bytes, share, local.is_ipv4());
            for BoundSocket { descriptor, .. } in &self.sockets {
                option::attach_filter(descriptor, &filter)
                    .map_err(setting_error("filter of what the port brings"))?;
            }
        }
        Ok(())
    }

    /// The socket with the socket's own address.
    pub(super) fn socket(&self) -> &Arc<KernelSocket> {
        &self.own
    }

    pub(super) fn local_addr(&self) -> SocketAddr {
        self.sockets[0].address
    }

    /// The addresses at which the sockets receive.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.sockets.iter().map(|socket| socket.address.ip())
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|socket| socket.descriptor.as_fd())
    }

    /// Sends pieces as one datagram, with a copy, and with control messages if there are any. A call that
    /// returns an error that an earlier datagram left at the socket is repeated.
    pub(super) fn send_to(
        &self,
        pieces: &[&[u8]],
        to: SocketAddr,
        controls: Option<&AddedControls>,
    ) -> io::Result<()> {
        let pieces: SmallVec<[IoSlice<'_>; 8]> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let (socket, to) = (SockRef::from(&*self.own), SockAddr::from(to));
        let control = controls.map_or(&[][..], AddedControls::bytes);
        let message = MsgHdr::new().with_addr(&to).with_buffers(&pieces).with_control(control);
        let mut left = PENDING_ERRORS_MAX;
        loop {
            match socket.sendmsg(&message, 0) {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && left > 0 => {
                    // The kernel reports an error twice: in its queue, and by a call. Another thread may have
                    // read the queue, so a call that fails without an entry there is repeated once.
                    left = if self.own.read_error_queue() > 0 { left - 1 } else { 0 };
                }
                sent => return sent.map(drop),
            }
        }
    }

    /// Datagrams that the kernel dropped at the sockets: no room, or, in packet ring mode, received by the
    /// port.
    pub(super) fn drop_count(&self) -> io::Result<u64> {
        self.sockets.iter().map(|socket| socket.drops.read_total(&socket.descriptor)).sum()
    }

    /// The next datagram of any of the sockets: its metadata, and its destination. `None` if there is none.
    pub(super) fn receive(
        &self,
        call: &mut RecvmmsgArguments,
        buffer: &mut [u8],
    ) -> io::Result<Option<(MessageReport, IpAddr)>> {
        for socket in &self.sockets {
            if self.receive_at_socket(socket, call, buffer)? {
                return Ok(Some((call.message_report(0), socket.address.ip())));
            }
        }
        Ok(None)
    }

    /// Receives at one of the sockets. Error reports of the network for sent datagrams do not end receiving,
    /// because any host can forge them.
    fn receive_at_socket(
        &self,
        socket: &BoundSocket,
        call: &mut RecvmmsgArguments,
        buffer: &mut [u8],
    ) -> io::Result<bool> {
        for _ in 0..PENDING_ERRORS_MAX {
            match call.receive_one(socket.descriptor.as_fd(), buffer) {
                Ok(received) => return Ok(received),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if is_network_error(&error) => {
                    self.own.read_error_queue();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(false) // errors come faster than they are read: the next time
    }
}

fn bind_kernel_socket(
    address: SocketAddr,
    set: impl FnOnce(&socket2::Socket) -> Result<(), OpenError>,
) -> Result<socket2::Socket, OpenError> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))
        .map_err(OpenError::Socket)?;
    socket.set_nonblocking(true).map_err(setting_error("calls that do not wait"))?;
    if address.is_ipv6() {
        socket.set_only_v6(true).map_err(setting_error("IPv6 only"))?;
    }
    set(&socket)?;
    socket.bind(&address.into()).map_err(|source| OpenError::Bind { address, source })?;
    Ok(socket)
}

fn hop_limits(socket: &SockRef<'_>, is_ipv4: bool) -> io::Result<(u8, u8)> {
    let limits = match is_ipv4 {
        true => (socket.ttl_v4()?, socket.multicast_ttl_v4()?),
        false => (socket.unicast_hops_v6()?, socket.multicast_hops_v6()?),
    };
    Ok((limits.0.min(255) as u8, limits.1.min(255) as u8))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    use super::*;

    /// "Port unreachable", as a router would report it for a datagram from that port of this host (RFC 792).
    fn forged_port_unreachable(source_port: u16) -> [u8; 36] {
        let mut message = [0; 36];
        message[..2].copy_from_slice(&[3, 3]);
        // The headers of the datagram: from 127.0.0.1 to 127.0.0.2, port 9.
        message[8..18].copy_from_slice(&[0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17]);
        message[20..28].copy_from_slice(&[127, 0, 0, 1, 127, 0, 0, 2]);
        message[28..30].copy_from_slice(&source_port.to_be_bytes());
        message[31] = 9;
        let words = message.chunks(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum: u32 = words.sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        message[2..4].copy_from_slice(&(!sum as u16).to_be_bytes());
        message
    }

    #[test]
    fn forged_errors_do_not_stop_receiving() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (kernel, forger) = lab.left().namespace().run(|| {
            let kernel =
                KernelSockets::bind_address("127.0.0.1:0".parse().unwrap(), &SocketSettings::default())
                    .unwrap();
            (kernel, socket2::Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap())
        });
        let (forged, local) =
            (forged_port_unreachable(kernel.local_addr().port()), SockAddr::from(kernel.local_addr()));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    let _ = forger.send_to(&forged, &local);
                }
            });
            let mut call = RecvmmsgArguments::new(1);
            let mut receive = || {
                let _ = kernel.send_to(&[b"datagram"], kernel.local_addr(), None); // fails under such a flood, too
                kernel.receive(&mut call, &mut [0; 10])
            };
            // Many more times than needed to meet two errors without a notice.
            let ended = (0..60_000).map(|_| receive()).find(Result::is_err);
            is_over.store(true, Relaxed);
            assert!(ended.is_none(), "{ended:?}");
        });
        assert!(kernel.own.network_error_count() > 0);
        kernel.send_to(&[b"behind it"], kernel.local_addr(), None).unwrap();
        assert!(kernel.receive(&mut RecvmmsgArguments::new(1), &mut [0; 10]).unwrap().is_some());
    }
}
