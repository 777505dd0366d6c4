//! Settings common to all kinds of sockets.

use std::io;
use std::net::{IpAddr, SocketAddr};

use nocopy_proto::UdpChecksum;
use rustix::net::sockopt;
use socket2::InterfaceIndexOrAddress;

use super::open_error::{OpenError, setting_error};
use crate::sys::{udp_receive, udp_send};

/// The most groups that a port's filter can distinguish.
#[cfg(feature = "port")]
const GROUPS_MAX: usize = 100;

#[derive(Debug, Clone, Default)]
pub(crate) struct SocketSettings {
    pub(super) send_buffer_bytes: Option<usize>,
    pub(super) receive_buffer_bytes: Option<usize>,
    pub(super) broadcast: bool,
    pub(super) reuse_address: bool,
    pub(super) receive_metadata: bool,
    pub(super) receive_times: bool,
    /// What the carrier of messages needs: to report only local addresses, or only marks, costs less.
    pub(super) local_addresses: bool,
    /// Also sends datagrams that may be marked.
    pub(super) congestion_marks: bool,
    /// `None`: it is computed.
    pub(super) checksum: Option<UdpChecksum>,
    pub(super) hop_limit: Option<u8>,
    pub(super) groups: Vec<IpAddr>,
    pub(super) multicast_interface: Option<u32>,
    pub(super) multicast_hops: Option<u8>,
}

impl SocketSettings {
    /// Whether a socket with this address can have these settings.
    pub(super) fn check_bind_address(&self, address: SocketAddr) -> Result<(), OpenError> {
        if address.is_ipv6() && self.checksum == Some(UdpChecksum::Omitted) {
            return Err(OpenError::ChecksumOmitted { address });
        }
        let fits = |group: &IpAddr| group.is_multicast() && group.is_ipv4() == address.is_ipv4();
        match self.groups.iter().find(|group| !fits(group)) {
            Some(group) => Err(OpenError::Group { group: *group, address }),
            None => Ok(()),
        }
    }

    #[cfg(feature = "port")]
    pub(super) fn check_over_port(&self, address: SocketAddr) -> Result<(), OpenError> {
        if address.ip().is_unspecified() || address.ip().is_multicast() {
            return Err(OpenError::Unspecified { address });
        }
        if self.groups.len() > GROUPS_MAX {
            return Err(OpenError::Groups { count: self.groups.len(), count_max: GROUPS_MAX });
        }
        self.check_bind_address(address)
    }

    /// Sets all socket options. Call it before bind; [`join_group`] joins the multicast groups.
    pub(super) fn apply_to_socket(&self, socket: &socket2::Socket, is_ipv6: bool) -> Result<(), OpenError> {
        if self.broadcast {
            socket.set_broadcast(true).map_err(setting_error("broadcast"))?;
        }
        if self.reuse_address {
            socket.set_reuse_address(true).map_err(setting_error("reuse address"))?;
        }
        if let Some(bytes) = self.send_buffer_bytes {
            socket.set_send_buffer_size(bytes).map_err(setting_error("send buffer"))?;
        }
        if let Some(bytes) = self.receive_buffer_bytes {
            // Beyond the general limit, if this process may; otherwise up to it.
            if sockopt::set_socket_recv_buffer_size_force(socket, bytes).is_err() {
                socket.set_recv_buffer_size(bytes).map_err(setting_error("receive buffer"))?;
            }
        }
        if self.checksum == Some(UdpChecksum::Omitted) {
            udp_send::omit_checksum(socket).map_err(setting_error("checksum"))?;
        }
        if let Some(hops) = self.hop_limit.map(u32::from) {
            let set = if is_ipv6 { socket.set_unicast_hops_v6(hops) } else { socket.set_ttl_v4(hops) };
            set.map_err(setting_error("hop limit"))?;
        }
        if let Some(index) = self.multicast_interface {
            set_multicast_interface(socket, is_ipv6, index).map_err(setting_error("multicast interface"))?;
        }
        if let Some(hops) = self.multicast_hops.map(u32::from) {
            let set =
                if is_ipv6 { socket.set_multicast_hops_v6(hops) } else { socket.set_multicast_ttl_v4(hops) };
            set.map_err(setting_error("multicast hops"))?;
        }
        self.set_reported_facts(socket, is_ipv6)
    }

    /// Sets which facts the kernel reports with each datagram.
    pub(super) fn set_reported_facts(
        &self,
        socket: &socket2::Socket,
        is_ipv6: bool,
    ) -> Result<(), OpenError> {
        if self.congestion_marks {
            udp_receive::send_ecn_capable(socket, is_ipv6).map_err(setting_error("ECN"))?;
        }
        if self.congestion_marks || self.receive_metadata {
            udp_receive::report_traffic_class(socket, is_ipv6).map_err(setting_error("received ECN"))?;
        }
        if self.local_addresses || self.receive_metadata {
            udp_receive::report_local_address(socket, is_ipv6).map_err(setting_error("local addresses"))?;
        }
        if self.receive_times {
            udp_receive::report_kernel_time(socket).map_err(setting_error("kernel time"))?;
        }
        Ok(())
    }
}

pub(super) fn set_multicast_interface(socket: &socket2::Socket, is_ipv6: bool, index: u32) -> io::Result<()> {
    if is_ipv6 { socket.set_multicast_if_v6(index) } else { udp_send::set_multicast_interface(socket, index) }
}

/// Joins a group on an interface, and excludes groups that other sockets on this host joined: by default,
/// Linux delivers their datagrams, too, to a socket bound to all addresses (`IP_MULTICAST_ALL`).
pub(super) fn join_group(socket: &socket2::Socket, group: IpAddr, interface: u32) -> Result<(), OpenError> {
    let joined = match group {
        IpAddr::V4(group) => socket
            .join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))
            .and_then(|()| socket.set_multicast_all_v4(false)),
        IpAddr::V6(group) => {
            socket.join_multicast_v6(&group, interface).and_then(|()| {
                match socket.set_multicast_all_v6(false) {
                    // Before Linux 4.20 this cannot be turned off.
                    Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
                    set => set,
                }
            })
        }
    };
    joined.map_err(|source| OpenError::Join { group, source })
}
