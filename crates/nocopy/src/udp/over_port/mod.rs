//! UDP over a port: datagrams go out and come in as whole frames, past the host's network stack.
//!
//! A [`Socket`] writes the headers itself, in front of payloads that already lie in frames, and takes its own datagrams out of the
//! interface's by a filter. What it needs to know for that it asks the host, and stays informed: the route, the next station's
//! hardware address, the MTU. The rest is the host's, by an ordinary socket that is bound to the same address and port:
//!
//! | through the kernel, copied, and counted ([`Sent`], [`Received`]) | why |
//! |---|---|
//! | sent to a neighbour whose hardware address is not known yet | the kernel asks for it, and keeps the datagram meanwhile |
//! | sent, longer than the MTU | the kernel fragments |
//! | sent by another interface, to this host, to all hosts of a link (which the kernel refuses without `SO_BROADCAST`), into a tunnel | not on this port |
//! | received in fragments, with IP options or a VLAN tag, on another queue, from this host | the filter leaves it to the host |
//!
//! ```no_run
//! use nocopy::Port;
//! use nocopy::udp::over_port::{Settings, Socket};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let socket = Socket::open(Port::builder("eth0"), "10.0.0.1:9000".parse()?, &Settings::default())?;
//! let (mut receiver, mut sender) = socket.split();
//! loop {
//!     for datagram in receiver.receive()? {
//!         sender.send_copied(datagram.from(), &[b"you said: ", &datagram])?;
//!     }
//!     sender.flush()?;
//! }
//! # }
//! ```
//!
//! What is sent this way passes neither the host's packet filter (netfilter) nor its IPsec policies, and members of a group on this
//! host do not hear what the socket sends to it. ICMP's word that a packet was too long reaches the host's routes, which are
//! looked at again each second.
//!
//! In packet ring mode the host has every packet, too: the ordinary socket is made deaf to those that the port brings. It cannot
//! tell them from datagrams that came in fragments but are no longer than the MTU, so those are lost there, counted among
//! [`Receiver::strays_dropped`]. The MTU is that at opening: if it is raised later, longer datagrams come twice.
//!
//! A socket of the same machine, or of the host under it, can hand several datagrams on as one packet (`UDP_SEGMENT`), and a port in
//! packet ring or generic mode sees that packet. If it is longer than the MTU it is lost and counted; **if it is not, it is received as one
//! datagram**. Where such senders are, take native mode, which makes a veth cut them, or turn it off at the sender's interface
//! (`ethtool -K IF tx-udp-segmentation off`).
//!
//! What the network says of datagrams that it could not bring to their destination (ICMP) is told by [`Sender::errors`].

mod kernel;
mod receiver;
mod sender;
mod way;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nocopy_proto::UdpChecksum;

pub use receiver::{Batch, Datagram, Payload, Received, Receiver};
pub use sender::{Draft, Drafts, Rejected, RejectedChain, RejectedReason, Sender, Sent};

pub use crate::engine::route::RouteError;
use crate::facts::evidence::Evidence;
use crate::memory::area::Area;
use crate::port::Port;
use crate::port::filter::Program;
use crate::port::{self, PortBuilder};
use crate::sys::interface::Interface;
use kernel::Kernel;
use way::Ways;

/// Groups a socket may receive from at most.
const GROUPS_MAX: usize = 100;

/// How a socket sends and receives.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// What to do about the UDP checksum of what is sent (default: computed). `Offloaded` leaves it to card or kernel where the port
    /// offers that ([`PortBuilder::send_metadata`]), and to software where not.
    pub checksum: UdpChecksum,
    /// Groups to receive from, besides the socket's own address.
    pub groups: Vec<IpAddr>,
    /// Hops for datagrams to one host (default: the host's own setting).
    pub hop_limit: Option<u8>,
    /// Hops for datagrams to groups (default: 1, so that none leaves the link).
    pub multicast_hop_limit: Option<u8>,
    /// Whether what is sent may be marked instead of dropped where queues are long (ECT(0), RFC 3168), and marks are told of what is
    /// received (default: no). Only for who answers them by sending less.
    pub congestion_marks: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            checksum: UdpChecksum::Computed,
            groups: Vec::new(),
            hop_limit: None,
            multicast_hop_limit: None,
            congestion_marks: false,
        }
    }
}

/// A UDP socket over a [`Port`]; see the [module](self).
#[derive(Debug)]
pub struct Socket {
    receiver: Receiver,
    sender: Sender,
    local: SocketAddr,
}

/// Why a socket was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The address says nothing of which datagrams to take.
    #[error(
        "{local}: headers need an address of this host, and so does the filter; give that of the port's interface"
    )]
    Unspecified {
        /// What was asked for.
        local: SocketAddr,
    },
    /// It is not a group, or of the other family.
    #[error(
        "{group}: not a group that a socket on {local} can receive from; give multicast addresses of the same family"
    )]
    Group {
        /// What was asked for.
        group: IpAddr,
        /// The socket's address.
        local: SocketAddr,
    },
    /// More groups than a filter can tell apart.
    #[error("{count} groups are too many for one socket; it takes up to {GROUPS_MAX}, open several")]
    Groups {
        /// How many were asked for.
        count: usize,
    },
    /// IPv6 packets need a UDP checksum (RFC 8200 section 8.1).
    #[error("{local}: IPv6 does not let the UDP checksum be omitted; compute it, or leave it to the card")]
    ChecksumOmitted {
        /// What was asked for.
        local: SocketAddr,
    },
    /// The port number could not be reserved by an ordinary socket.
    #[error(
        "{address}: {operation}: {source}; choose an address of this host and a port number that is free ('ss -lun')"
    )]
    Reserve {
        /// What was asked for.
        address: SocketAddr,
        /// What was to be done.
        operation: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The port's interface could not be looked at.
    #[error(
        "{interface}: look up the interface: {source}; a socket needs a port on an interface of this network namespace"
    )]
    Interface {
        /// The port's interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The host's routes cannot be asked for.
    #[error(transparent)]
    Routes(RouteError),
    /// The port could not be opened.
    #[error(transparent)]
    Port(#[from] port::OpenError),
    /// Waiting for several descriptors is refused.
    #[error("make a descriptor to wait on: {0}; raise the limit of open files ('ulimit -n')")]
    Poll(io::Error),
}

impl Settings {
    fn check(&self, local: SocketAddr) -> Result<(), OpenError> {
        if local.ip().is_unspecified() || local.ip().is_multicast() {
            return Err(OpenError::Unspecified { local });
        }
        if local.is_ipv6() && self.checksum == UdpChecksum::Omitted {
            return Err(OpenError::ChecksumOmitted { local });
        }
        if self.groups.len() > GROUPS_MAX {
            return Err(OpenError::Groups { count: self.groups.len() });
        }
        let fits = |group: &IpAddr| group.is_multicast() && group.is_ipv4() == local.is_ipv4();
        match self.groups.iter().find(|group| !fits(group)) {
            Some(group) => Err(OpenError::Group { group: *group, local }),
            None => Ok(()),
        }
    }

    /// The filter of a port under a socket: for who opens the port first, and then calls [`Socket::over`].
    pub fn filter(&self, local: SocketAddr) -> Program {
        let groups = self.groups.iter().take(GROUPS_MAX).copied();
        let addresses: Vec<IpAddr> = std::iter::once(local.ip()).chain(groups).collect();
        Program::udp_to(&addresses, local.port())
    }
}

impl Socket {
    /// Reserves an address of the host and opens a port with the filter that goes with it. With port number 0 the kernel chooses
    /// one ([`Socket::local_address`]).
    ///
    /// # Errors
    /// [`OpenError`] says what is in the way.
    pub fn open(port: PortBuilder, local: SocketAddr, settings: &Settings) -> Result<Self, OpenError> {
        settings.check(local)?;
        let kernel = Kernel::reserve(local, settings)?;
        let local = kernel.local();
        let port = port.filter(&settings.filter(local)).open()?;
        Self::join_one(port, kernel, settings)
    }

    /// Like [`Socket::open`], over all queues of the interface: one socket for each, in their order, over one area, with one address. Which
    /// queue a datagram comes to, the card decides ([`Queues`](crate::port::Queues)), so an endpoint receives from all of them; it may send by
    /// any, also frames that another received. What comes through the kernel is received by whichever looks first.
    ///
    /// # Errors
    /// [`OpenError`] says what is in the way; none stays open if one cannot be opened.
    pub fn open_queues(
        port: PortBuilder,
        local: SocketAddr,
        settings: &Settings,
    ) -> Result<Vec<Self>, OpenError> {
        settings.check(local)?;
        let kernel = Kernel::reserve(local, settings)?;
        let ports = port.filter(&settings.filter(kernel.local())).open_queues(..)?.into_ports();
        Self::join(ports, kernel, settings)
    }

    /// Puts a socket over a port that is open. Without the right filter ([`Settings::filter`]) the port takes other packets, too:
    /// they go to the host where that is possible ([`Received`]).
    ///
    /// # Errors
    /// [`OpenError`] says what is in the way.
    pub fn over(port: Port, local: SocketAddr, settings: &Settings) -> Result<Self, OpenError> {
        settings.check(local)?;
        Self::join_one(port, Kernel::reserve(local, settings)?, settings)
    }

    fn join_one(port: Port, kernel: Kernel, settings: &Settings) -> Result<Self, OpenError> {
        Ok(Self::join(vec![port], kernel, settings)?.pop().expect("a socket for the port"))
    }

    /// Sockets over one port, or over ports on all queues of an interface.
    fn join(ports: Vec<Port>, mut kernel: Kernel, settings: &Settings) -> Result<Vec<Self>, OpenError> {
        let name = ports[0].interface().to_owned();
        let interface =
            Interface::named(&name).map_err(|source| OpenError::Interface { interface: name, source })?;
        kernel.join(&ports, &interface, settings)?;
        let kernel = Arc::new(kernel);
        ports.into_iter().map(|port| Self::new(port, &kernel, &interface, settings)).collect()
    }

    fn new(
        port: Port,
        kernel: &Arc<Kernel>,
        interface: &Interface,
        settings: &Settings,
    ) -> Result<Self, OpenError> {
        let local = kernel.local();
        let ways = Ways::open(local, interface, port.halves_ref().1, kernel, settings)?;
        let host = port.to_host();
        let (receiver, sender) = port.split();
        let receiver = Receiver::new(receiver, Arc::clone(kernel), host, interface, settings)?;
        Ok(Self { receiver, sender: Sender::new(sender, Arc::clone(kernel), ways), local })
    }

    /// Takes the socket apart into halves that can go to different threads.
    pub fn split(self) -> (Receiver, Sender) {
        (self.receiver, self.sender)
    }

    /// Both halves at once, for loops that answer what they receive.
    pub fn halves(&mut self) -> (&mut Receiver, &mut Sender) {
        (&mut self.receiver, &mut self.sender)
    }

    /// The half that receives.
    pub fn receiver(&mut self) -> &mut Receiver {
        &mut self.receiver
    }

    /// The half that sends.
    pub fn sender(&mut self) -> &mut Sender {
        &mut self.sender
    }

    /// The address it has, with the port number the kernel chose if it was to.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// The area that its frames lie in.
    pub fn area(&self) -> &Area {
        self.sender.port().area()
    }

    /// What is known of copies of what goes over the port.
    pub fn evidence(&self) -> Evidence {
        self.sender.port().evidence()
    }
}
