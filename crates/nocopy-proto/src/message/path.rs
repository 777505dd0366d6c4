//! Both ends of the way of a connection's datagrams.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// The way of datagrams to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// The peer's address.
    pub remote: SocketAddr,
    /// The address of this host from which they go; `None`: the one that the caller's socket has, or its
    /// kernel chooses.
    pub local: Option<Local>,
}

/// One of several addresses of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// The address, of the family of the peer's.
    pub address: IpAddr,
    /// For an address of IPv6 that exists on one link only: the index of the interface there. Otherwise 0.
    pub interface: u32,
}

impl Local {
    /// The address with a port number.
    pub fn at(self, port: u16) -> SocketAddr {
        match self.address {
            IpAddr::V4(address) => (address, port).into(),
            IpAddr::V6(address) => SocketAddrV6::new(address, port, 0, self.interface).into(),
        }
    }
}

impl From<SocketAddr> for Path {
    fn from(remote: SocketAddr) -> Self {
        Self { remote, local: None }
    }
}
