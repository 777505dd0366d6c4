//! UDP over a port: datagrams are sent and received as whole frames, bypassing the host's network stack.
//!
//! A [`Socket`] writes the headers itself, in front of payloads that are already in frames, and selects its
//! own datagrams among the interface's packets by a filter. It asks the host for routes, the next hop's
//! hardware address and the MTU, and is notified of changes. Everything else goes through an ordinary socket
//! bound to the same address and port; the documentation of [`udp`](super) lists the cases.
//!
//! Datagrams sent this way bypass the host's packet filter (netfilter) and its IPsec policies. If ICMP
//! reports that a packet was too long, the host updates its route, which is looked up again each second.
//!
//! In packet ring mode the host gets every packet, too: the ordinary socket ignores those that the port
//! receives. It cannot distinguish them from datagrams that arrived in fragments although they are no longer
//! than the MTU, so such datagrams are lost, counted as `sk_drops`. This uses the MTU at opening: if it is
//! raised later, longer datagrams are received twice.

mod kernel;
mod receiver;
mod route_cache;
mod sender;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

#[cfg(feature = "message")]
pub(crate) use receiver::ReceivedPayload;
pub(crate) use receiver::{Batch, Datagram, Receiver};
pub(crate) use sender::Sender;

use super::open_error::OpenError;
use super::settings::SocketSettings;
use crate::engine::route::RouteError;
use crate::port::filter::Program;
use crate::port::{self, Port, PortBuilder};
use crate::sys::interface::Interface;
use kernel::KernelSockets;
use route_cache::RouteCache;

#[derive(Debug)]
pub(crate) struct Socket {
    receiver: Receiver,
    sender: Sender,
}

fn socket_filter(local: SocketAddr, settings: &SocketSettings) -> Program {
    let addresses: Vec<IpAddr> = std::iter::once(local.ip()).chain(settings.groups.iter().copied()).collect();
    Program::udp_to(&addresses, local.port())
}

impl Socket {
    /// Reserves an address of the host and opens a port with its filter. With port number 0 the kernel
    /// chooses one.
    pub(super) fn open(
        port: PortBuilder,
        local: SocketAddr,
        settings: &SocketSettings,
    ) -> Result<Self, OpenError> {
        settings.check_over_port(local)?;
        let kernel = KernelSockets::bind_address(local, settings)?;
        let port = port.filter(&socket_filter(kernel.local_addr(), settings)).open()?;
        Ok(Self::from_ports(vec![port], kernel, settings)?.pop().expect("a socket for the port"))
    }

    /// Like [`Socket::open`], over all queues of the interface: one socket for each, in their order, over one
    /// area, with one address. If one cannot be opened, all are closed.
    pub(super) fn open_queues(
        port: PortBuilder,
        local: SocketAddr,
        settings: &SocketSettings,
    ) -> Result<Vec<Self>, OpenError> {
        settings.check_over_port(local)?;
        let kernel = KernelSockets::bind_address(local, settings)?;
        let ports = port.filter(&socket_filter(kernel.local_addr(), settings)).open_queues(..)?.into();
        Self::from_ports(ports, kernel, settings)
    }

    /// Sockets over one port, or over ports on all queues of an interface.
    fn from_ports(
        ports: Vec<Port>,
        mut kernel: KernelSockets,
        settings: &SocketSettings,
    ) -> Result<Vec<Self>, OpenError> {
        let name = ports[0].interface_name().to_owned();
        let interface =
            Interface::look_up(&name).map_err(|source| OpenError::Interface { interface: name, source })?;
        kernel.join_groups_and_exclude_ports(&ports, &interface, settings)?;
        let kernel = Arc::new(kernel);
        let sockets = ports.into_iter().enumerate().map(|(place, port)| {
            let (port::Receiver(receiver), port::Sender(sender)) = port.split();
            let route_cache = RouteCache::open(&interface, &sender, &kernel, settings)?;
            let counts_elsewhere = place > 0;
            let receiver = Receiver::new(receiver, Arc::clone(&kernel), &interface, counts_elsewhere)?;
            let sender = Sender::new(sender, Arc::clone(&kernel), route_cache, counts_elsewhere);
            Ok(Self { receiver, sender })
        });
        sockets.collect()
    }

    pub(crate) fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }

    /// Its address, with the port number that the kernel chose if that was 0.
    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.sender.local_addr()
    }

    #[cfg(feature = "message")]
    pub(crate) fn area(&self) -> &crate::memory::area::Area {
        self.sender.port().area()
    }
}

/// The reason why there is no route, as a system error.
fn route_socket_error(error: RouteError) -> io::Error {
    let (RouteError::Unreachable { source, .. }
    | RouteError::Unreadable { source, .. }
    | RouteError::System { source, .. }) = &error;
    io::Error::new(source.kind(), error)
}

#[cfg(test)]
mod tests;
