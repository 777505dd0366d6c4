//! UDP over a port: datagrams go out and come in as whole frames, past the host's network stack.
//!
//! A [`Socket`] writes the headers itself, in front of payloads that already lie in frames, and takes its own datagrams out of the
//! interface's by a filter. What it needs to know for that it asks the host, and stays informed: the route, the next station's
//! hardware address, the MTU. The rest is the host's, by an ordinary socket that is bound to the same address and port; the documentation
//! of [`udp`](super) has the cases.
//!
//! What is sent this way passes neither the host's packet filter (netfilter) nor its IPsec policies. ICMP's word that a packet was too
//! long reaches the host's routes, which are looked at again each second.
//!
//! In packet ring mode the host has every packet, too: the ordinary socket is made deaf to those that the port brings. It cannot
//! tell them from datagrams that came in fragments but are no longer than the MTU, so those are lost there, counted as `sk_drops`. The MTU
//! is that at opening: if it is raised later, longer datagrams come twice.

mod kernel;
mod receiver;
mod sender;
mod way;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

pub(crate) use receiver::{Batch, Datagram, Payload, Receiver};
pub(crate) use sender::Sender;

use super::open_error::OpenError;
use super::settings::Settings;
use crate::engine::route::RouteError;
use crate::memory::area::Area;
use crate::port::filter::Program;
use crate::port::{Port, PortBuilder};
use crate::sys::interface::Interface;
use kernel::Kernel;
use way::Ways;

/// A UDP socket over a [`Port`].
#[derive(Debug)]
pub(crate) struct Socket {
    receiver: Receiver,
    sender: Sender,
    local: SocketAddr,
}

/// The filter of a port under a socket.
fn filter(local: SocketAddr, settings: &Settings) -> Program {
    let addresses: Vec<IpAddr> = std::iter::once(local.ip()).chain(settings.groups.iter().copied()).collect();
    Program::udp_to(&addresses, local.port())
}

impl Socket {
    /// Reserves an address of the host and opens a port with the filter that goes with it. With port number 0 the kernel chooses one.
    pub(super) fn open(port: PortBuilder, local: SocketAddr, settings: &Settings) -> Result<Self, OpenError> {
        settings.check_over_port(local)?;
        let kernel = Kernel::reserve(local, settings)?;
        let port = port.filter(&filter(kernel.local(), settings)).open()?;
        Ok(Self::join(vec![port], kernel, settings)?.pop().expect("a socket for the port"))
    }

    /// Like [`Socket::open`], over all queues of the interface: one socket for each, in their order, over one area, with one address. None
    /// stays open if one cannot be opened.
    pub(super) fn open_queues(
        port: PortBuilder,
        local: SocketAddr,
        settings: &Settings,
    ) -> Result<Vec<Self>, OpenError> {
        settings.check_over_port(local)?;
        let kernel = Kernel::reserve(local, settings)?;
        let ports = port.filter(&filter(kernel.local(), settings)).open_queues(..)?.into_ports();
        Self::join(ports, kernel, settings)
    }

    /// Sockets over one port, or over ports on all queues of an interface.
    fn join(ports: Vec<Port>, mut kernel: Kernel, settings: &Settings) -> Result<Vec<Self>, OpenError> {
        let name = ports[0].interface().to_owned();
        let interface =
            Interface::named(&name).map_err(|source| OpenError::Interface { interface: name, source })?;
        kernel.join(&ports, &interface, settings)?;
        let kernel = Arc::new(kernel);
        let sockets = ports.into_iter().map(|port| Self::new(port, &kernel, &interface, settings));
        let mut sockets = sockets.collect::<Result<Vec<_>, _>>()?;
        for Self { receiver, sender, .. } in sockets.iter_mut().skip(1) {
            receiver.leave_counts_to_first();
            sender.leave_counts_to_first();
        }
        Ok(sockets)
    }

    fn new(
        port: Port,
        kernel: &Arc<Kernel>,
        interface: &Interface,
        settings: &Settings,
    ) -> Result<Self, OpenError> {
        let local = kernel.local();
        let ways = Ways::open(local, interface, port.halves_ref().1, kernel, settings)?;
        let (receiver, sender) = port.split();
        let host = receiver.to_host();
        let receiver = Receiver::new(receiver, Arc::clone(kernel), host, interface, settings)?;
        Ok(Self { receiver, sender: Sender::new(sender, Arc::clone(kernel), ways), local })
    }

    pub(crate) fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }

    /// The address it has, with the port number the kernel chose if it was to.
    pub(crate) fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The area that its frames lie in.
    pub(crate) fn area(&self) -> &Area {
        self.sender.port().area()
    }
}

/// Why there is no way, as an error of the system.
fn system(error: RouteError) -> io::Error {
    let (RouteError::Unreachable { source, .. }
    | RouteError::Unreadable { source, .. }
    | RouteError::System { source, .. }) = &error;
    io::Error::new(source.kind(), error)
}

#[cfg(test)]
mod tests;
