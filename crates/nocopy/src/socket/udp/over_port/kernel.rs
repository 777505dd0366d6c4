//! The ordinary sockets behind a socket over a port: they hold its port number, join its groups, and carry what the port cannot.

use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;
use socket2::{Domain, Protocol, SockAddr, SockRef, Type};

use super::super::multicast::join;
use super::super::peer_error::{PeerError, PeerErrors};
use super::{OpenError, Settings};
use crate::port::{Mode, Port};
use crate::sys::error_queue::{Notice, next_notice};
use crate::sys::interface::Interface;
use crate::sys::option;
use crate::sys::packet::{Share, deaf_to};
use crate::sys::udp_receive::{Message, Messages, dropped_packets, use_congestion_marks};
use crate::sys::udp_send::{report_errors, send_groups_by};

/// How often a call may meet errors of the network that were waiting at the socket.
const PENDING_ERRORS_MAX: usize = 16;

/// Ordinary sockets, none of which ever waits.
#[derive(Debug)]
pub(super) struct Kernel {
    /// The socket's own address, then its groups.
    sockets: Vec<(SocketAddr, UdpSocket)>,
    pub(super) hop_limit: u8,
    pub(super) multicast_hop_limit: u8,
    errors: Mutex<Errors>,
}

/// What the network said (ICMP) of datagrams from the socket's address, whichever way they went.
#[derive(Debug, Default)]
struct Errors {
    kept: PeerErrors,
    told: u64,
    /// Everything that was read, for a sender that shares the socket, and waits for its completions.
    shared: Option<Vec<Notice>>,
}

impl Kernel {
    /// Binds a socket to the address: nobody else gets it, and what the kernel receives for it waits there.
    pub(super) fn reserve(local: SocketAddr, settings: &Settings) -> Result<Self, OpenError> {
        let refused = |operation| move |source| OpenError::Reserve { address: local, operation, source };
        let socket = bound(local, false).map_err(refused("reserve the port number"))?;
        let local = socket.local_addr().map_err(refused("ask for the port number"))?;
        let (hop_limit, multicast_hop_limit) = hop_limits(&SockRef::from(&socket), local.is_ipv4(), settings)
            .map_err(refused("set the hop limit"))?;
        report_errors(&socket, local.is_ipv6()).map_err(refused("ask for errors of the network"))?;
        if settings.congestion_marks {
            use_congestion_marks(&socket, local.is_ipv6()).map_err(refused("use congestion marks"))?;
        }
        let sockets = vec![(local, socket)];
        Ok(Self { sockets, hop_limit, multicast_hop_limit, errors: Mutex::default() })
    }

    /// Joins the groups on the interface, and makes the sockets deaf to what a port, or ports on all its queues, bring as well.
    pub(super) fn join(
        &mut self,
        ports: &[Port],
        interface: &Interface,
        settings: &Settings,
    ) -> Result<(), OpenError> {
        let local = self.local();
        let refused = |address, operation| move |source| OpenError::Reserve { address, operation, source };
        let own = &self.sockets[0].1;
        let chosen = match local {
            SocketAddr::V4(_) => send_groups_by(own, interface.index),
            SocketAddr::V6(_) => SockRef::from(own).set_multicast_if_v6(interface.index),
        };
        chosen.map_err(refused(local, "choose the interface for groups"))?;
        for group in &settings.groups {
            let address = match group {
                IpAddr::V4(_) => SocketAddr::new(*group, local.port()),
                IpAddr::V6(group) => SocketAddrV6::new(*group, local.port(), 0, interface.index).into(),
            };
            // Bound to the group, so that it hears that alone; others may, too.
            let socket = bound(address, true).map_err(refused(address, "bind a socket to the group"))?;
            join(&SockRef::from(&socket), *group, interface.index)
                .map_err(refused(address, "join the group"))?;
            if settings.congestion_marks {
                use_congestion_marks(&socket, group.is_ipv6())
                    .map_err(refused(address, "use congestion marks"))?;
            }
            self.sockets.push((address, socket));
        }
        if ports.iter().any(|port| port.mode() == Mode::PacketRing) {
            let share = match ports {
                [port] => Share { queue: port.queue(), queues: interface.rx_queues },
                _ => Share { queue: 0, queues: 1 },
            };
            let filter = deaf_to(interface.index, interface.mtu_bytes, share, local.is_ipv4());
            for (address, socket) in &self.sockets {
                option::filter(socket, &filter).map_err(refused(*address, "filter what the port brings"))?;
            }
        }
        Ok(())
    }

    /// The socket with the socket's own address.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.sockets[0].1.as_fd()
    }

    /// The socket's own address.
    pub(super) fn local(&self) -> SocketAddr {
        self.sockets[0].0
    }

    /// The addresses it receives at.
    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.sockets.iter().map(|(address, _)| address.ip())
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sockets.iter().map(|(_, socket)| socket.as_fd())
    }

    /// Sends pieces as one datagram, with a copy.
    pub(super) fn send(&self, to: SocketAddr, pieces: &[&[u8]]) -> io::Result<()> {
        let pieces: SmallVec<[IoSlice<'_>; 8]> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
        let (socket, to) = (SockRef::from(&self.sockets[0].1), SockAddr::from(to));
        self.past_errors(|| socket.send_to_vectored(&pieces, &to)).map(drop)
    }

    /// Makes a call, again if it fails by an error that was waiting at the socket because of an earlier datagram.
    fn past_errors<T>(&self, mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
        let mut left = PENDING_ERRORS_MAX;
        loop {
            match call() {
                Err(error) if error.kind() != io::ErrorKind::WouldBlock && left > 0 => {
                    // The kernel tells an error twice: in its queue, and then by a call. Another thread may have found the first,
                    // so a call that fails without one is made once more.
                    left = if self.hear() > 0 { left - 1 } else { 0 };
                }
                done => return done,
            }
        }
    }

    /// Takes what the network said since the last time, and returns how much.
    fn hear(&self) -> u64 {
        let mut errors = self.errors();
        let before = errors.told;
        while let Ok(Some(notice)) = next_notice(self.sockets[0].1.as_fd()) {
            if let Some(shared) = &mut errors.shared {
                shared.push(notice);
            }
            if let Notice::Refused { errno, to, from } = notice {
                errors.told += 1;
                errors.kept.keep(errno, to, from);
            }
        }
        errors.told - before
    }

    /// From now on what is read of the error queue is kept for who shares the socket.
    pub(super) fn share_notices(&self) {
        self.errors().shared.get_or_insert_default();
    }

    /// What was read since the last time.
    pub(super) fn shared_notices(&self) -> Vec<Notice> {
        self.errors().shared.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What the network said, as far as it was kept.
    pub(super) fn heard(&self) -> Vec<PeerError> {
        self.hear();
        self.errors().kept.drain().collect()
    }

    /// How often the network said something.
    pub(super) fn told(&self) -> u64 {
        self.errors().told
    }

    fn errors(&self) -> MutexGuard<'_, Errors> {
        self.errors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Datagrams that the kernel dropped at the sockets: no room, or, in packet ring mode, brought by the port.
    pub(super) fn dropped(&self) -> io::Result<u64> {
        self.sockets.iter().map(|(_, socket)| dropped_packets(socket).map(u64::from)).sum()
    }

    /// The next datagram that came to any of the sockets: what is told of it, and the address it was for. `None` if there is none.
    pub(super) fn receive(
        &self,
        call: &mut Messages,
        buffer: &mut [u8],
    ) -> io::Result<Option<(Message, IpAddr)>> {
        for (address, socket) in &self.sockets {
            let received = self.past_errors(|| {
                let buffer = std::iter::once(&mut *buffer);
                call.receive(socket.as_fd(), buffer, false)
            });
            match received {
                Ok(0) => {}
                Ok(_) => return Ok(Some((call.message(0), address.ip()))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

fn bound(address: SocketAddr, shared: bool) -> io::Result<UdpSocket> {
    let socket = socket2::Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    socket.set_nonblocking(true)?;
    socket.set_reuse_address(shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&address.into())?;
    Ok(socket.into())
}

/// Sets what was asked for and reads what holds then: to one host, to groups.
fn hop_limits(socket: &SockRef<'_>, is_ipv4: bool, settings: &Settings) -> io::Result<(u8, u8)> {
    let (one, group) = (settings.hop_limit.map(u32::from), settings.multicast_hop_limit.map(u32::from));
    let limits = if is_ipv4 {
        one.map_or(Ok(()), |hops| socket.set_ttl_v4(hops))?;
        group.map_or(Ok(()), |hops| socket.set_multicast_ttl_v4(hops))?;
        (socket.ttl_v4()?, socket.multicast_ttl_v4()?)
    } else {
        one.map_or(Ok(()), |hops| socket.set_unicast_hops_v6(hops))?;
        group.map_or(Ok(()), |hops| socket.set_multicast_hops_v6(hops))?;
        (socket.unicast_hops_v6()?, socket.multicast_hops_v6()?)
    };
    Ok((limits.0.min(255) as u8, limits.1.min(255) as u8))
}
