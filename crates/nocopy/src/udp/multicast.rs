//! Groups of receivers, and how far what is sent to them goes.

use std::io;
use std::net::IpAddr;

use socket2::{InterfaceIndexOrAddress, SockRef};

use super::Receiver;
use crate::memory::in_flight::kernel_socket;
use crate::sys::udp_send;

/// What of sending to groups is not left as the kernel has it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Multicast {
    pub(super) interface: Option<u32>,
    pub(super) hops: Option<u32>,
    pub(super) to_this_host: Option<bool>,
}

impl Multicast {
    /// Names the setting that is refused.
    pub(super) fn set(
        self,
        socket: &socket2::Socket,
        is_ipv6: bool,
    ) -> Result<(), (&'static str, io::Error)> {
        if let Some(index) = self.interface {
            let set = if is_ipv6 {
                socket.set_multicast_if_v6(index)
            } else {
                udp_send::send_groups_by(socket, index)
            };
            set.map_err(|error| ("multicast interface", error))?;
        }
        if let Some(hops) = self.hops {
            let set =
                if is_ipv6 { socket.set_multicast_hops_v6(hops) } else { socket.set_multicast_ttl_v4(hops) };
            set.map_err(|error| ("multicast hops", error))?;
        }
        if let Some(on) = self.to_this_host {
            let set =
                if is_ipv6 { socket.set_multicast_loop_v6(on) } else { socket.set_multicast_loop_v4(on) };
            set.map_err(|error| ("multicast to this host", error))?;
        }
        Ok(())
    }
}

/// Joins a group by an interface, and keeps away what others on this host joined.
///
/// # Errors
/// The kernel's refusal.
pub(super) fn join(socket: &SockRef<'_>, group: IpAddr, interface: u32) -> io::Result<()> {
    match group {
        IpAddr::V4(group) => {
            socket.join_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))?;
            socket.set_multicast_all_v4(false)
        }
        IpAddr::V6(group) => {
            socket.join_multicast_v6(&group, interface)?;
            match socket.set_multicast_all_v6(false) {
                // Linux 4.20: before, it cannot be turned off.
                Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => Ok(()),
                set => set,
            }
        }
    }
}

impl Receiver {
    /// Receives what is sent to a group and comes by the interface of that index; 0 leaves the choice to the routing table.
    ///
    /// From then on only groups that this socket joined are received: left to itself, Linux gives a socket that is bound to all
    /// addresses those that any other socket joined, too (`IP_MULTICAST_ALL`).
    ///
    /// # Errors
    /// The kernel's refusal: no such interface, no multicast address, one of the other IP version, joined already, or
    /// more groups than `net.ipv4.igmp_max_memberships` allows (`ENOBUFS`).
    pub fn join_multicast(&self, group: IpAddr, interface: u32) -> io::Result<()> {
        join(&SockRef::from(&self.socket), group, interface)
    }

    /// Leaves a group; interface as given when joined.
    ///
    /// # Errors
    /// The kernel's refusal: `EADDRNOTAVAIL` for one that was not joined.
    pub fn leave_multicast(&self, group: IpAddr, interface: u32) -> io::Result<()> {
        let socket = SockRef::from(&self.socket);
        kernel_socket::group_is_left();
        match group {
            IpAddr::V4(group) => {
                socket.leave_multicast_v4_n(&group, &InterfaceIndexOrAddress::Index(interface))
            }
            IpAddr::V6(group) => socket.leave_multicast_v6(&group, interface),
        }
    }
}
