//! Queries about network interfaces (ioctls of netdevice(7) and ethtool), which change nothing.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::namespace::NamespaceId;
use super::option;
use super::route;
use crate::facts::io_error::convert_to_io_error;

const ETHTOOL_GDRVINFO: u32 = 0x0000_0003;
const ETHTOOL_GRINGPARAM: u32 = 0x0000_0010;
const ETHTOOL_GSG: u32 = 0x0000_0018;
const ETHTOOL_GFLAGS: u32 = 0x0000_0025;
const ETHTOOL_GGRO: u32 = 0x0000_002b;
const ETHTOOL_GCHANNELS: u32 = 0x0000_003c;
const ETH_FLAG_LRO: u32 = 1 << 15;

/// Why an interface cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InterfaceError {
    /// No such interface.
    #[error(
        "{interface}: no such interface; this network namespace has none of that name; 'ip link' lists them"
    )]
    NotFound {
        /// The requested name.
        interface: String,
    },
    /// The interface is down.
    #[error(
        "{interface}: cannot be used; the interface is down; bring it up with 'ip link set dev {interface} up'"
    )]
    Down {
        /// The interface.
        interface: String,
    },
    /// The interface's packets do not begin with an Ethernet header: filters and descriptions would mislead,
    /// and capture files say that they do.
    #[error(
        "{interface}: cannot be used; its packets have no Ethernet header (hardware type {hardware}); use an interface of type 1 (ether), for a tunnel the one that carries it"
    )]
    NotEthernet {
        /// The interface.
        interface: String,
        /// Its type (`ARPHRD_*` of `linux/if_arp.h`).
        hardware: u16,
    },
}

convert_to_io_error!(InterfaceError {
    Self::NotFound { .. } => io::ErrorKind::NotFound,
    Self::Down { .. } => io::ErrorKind::NetworkDown,
    Self::NotEthernet { .. } => io::ErrorKind::Unsupported,
});

impl InterfaceError {
    /// The error of the interface that the kernel's refusal means; `None` if it means something else.
    pub(crate) fn from_refusal(interface: &str, refusal: &io::Error) -> Option<Self> {
        let interface = interface.to_owned();
        match refusal.raw_os_error()? {
            libc::ENODEV => Some(Self::NotFound { interface }),
            libc::ENETDOWN => Some(Self::Down { interface }),
            _ => None,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Interface {
    pub(crate) name: String,
    pub(crate) index: u32,
    pub(crate) mtu_bytes: u32,
    /// Administratively up (`IFF_UP`).
    pub(crate) up: bool,
    /// Has carrier; see [`route::has_carrier`].
    pub(crate) carrier: bool,
    pub(crate) loopback: bool,
    /// The type of its link-level header (`ARPHRD_*`).
    pub(crate) hardware: u16,
    /// Receive queues in use; 1 if the driver has no channels.
    pub(crate) rx_queues: u32,
    /// The largest number that `ethtool -L` could set.
    pub(crate) rx_queues_max: u32,
    /// The driver's name; `None` if the kernel does not tell it.
    pub(crate) driver: Option<String>,
}

/// `struct ethtool_channels`.
#[repr(C)]
#[derive(Default)]
struct EthtoolChannels {
    command: u32,
    rx_max: u32,
    tx_max: u32,
    other_max: u32,
    combined_max: u32,
    rx: u32,
    tx: u32,
    other: u32,
    combined: u32,
}

/// `struct ethtool_ringparam`.
#[repr(C)]
#[derive(Default)]
struct EthtoolRingParameters {
    command: u32,
    rx_max: u32,
    rx_mini_max: u32,
    rx_jumbo_max: u32,
    tx_max: u32,
    rx: u32,
    rx_mini: u32,
    rx_jumbo: u32,
    tx: u32,
}

/// `struct ethtool_value`.
#[repr(C)]
struct EthtoolValue {
    command: u32,
    value: u32,
}

/// `struct ethtool_drvinfo`.
#[repr(C)]
struct EthtoolDriverInfo {
    command: u32,
    driver: [u8; 32],
    version: [u8; 32],
    firmware: [u8; 32],
    bus: [u8; 32],
    rest: [u8; 64],
}

impl Interface {
    pub(crate) fn look_up(name: &str) -> io::Result<Self> {
        let socket = control_socket()?;
        let mut request = InterfaceRequest::new(name)?;
        let index = rustix::net::netdevice::name_to_index(&socket, name)?;
        // SAFETY: each of these calls fills the union member named after it.
        let (flags, hardware, mtu) = unsafe {
            request.ioctl(socket.as_fd(), libc::SIOCGIFFLAGS)?;
            let flags = i32::from(request.0.ifr_ifru.ifru_flags);
            request.ioctl(socket.as_fd(), libc::SIOCGIFHWADDR)?;
            let hardware = request.0.ifr_ifru.ifru_hwaddr.sa_family;
            request.ioctl(socket.as_fd(), libc::SIOCGIFMTU)?;
            (flags, hardware, request.0.ifr_ifru.ifru_mtu)
        };
        let (rx_queues, rx_queues_max) = rx_queues(&socket, name).unwrap_or((1, 1));
        Ok(Self {
            name: name.to_owned(),
            index,
            mtu_bytes: u32::try_from(mtu).unwrap_or(0),
            up: flags & libc::IFF_UP != 0,
            carrier: route::has_carrier(index).unwrap_or(flags & libc::IFF_RUNNING != 0),
            loopback: flags & libc::IFF_LOOPBACK != 0,
            hardware,
            rx_queues: rx_queues.max(1),
            rx_queues_max: rx_queues_max.max(rx_queues).max(1),
            driver: driver_name(&socket, name),
        })
    }
}

impl Interface {
    /// Refuses an interface on which no packet can be received.
    pub(crate) fn check_usable(&self) -> Result<(), InterfaceError> {
        let interface = || self.name.clone();
        if !self.is_ethernet() {
            return Err(InterfaceError::NotEthernet { interface: interface(), hardware: self.hardware });
        }
        if self.up { Ok(()) } else { Err(InterfaceError::Down { interface: interface() }) }
    }

    /// Whether its packets begin with an Ethernet header; those of the loopback interface do.
    pub(crate) const fn is_ethernet(&self) -> bool {
        matches!(self.hardware, libc::ARPHRD_ETHER | libc::ARPHRD_LOOPBACK)
    }

    /// Its driver, as the subject of a sentence.
    pub(crate) fn driver_phrase(&self) -> String {
        self.driver.as_ref().map_or_else(|| "its driver".to_owned(), |driver| format!("the driver {driver}"))
    }
}

/// Entries of the card's own receive ring: (now, maximum); `None` if the driver does not report them.
pub(crate) fn receive_ring_entries(name: &str) -> Option<(u32, u32)> {
    let mut rings = EthtoolRingParameters { command: ETHTOOL_GRINGPARAM, ..EthtoolRingParameters::default() };
    // SAFETY: `EthtoolRingParameters` is the structure this command fills.
    unsafe { ethtool_ioctl(&control_socket().ok()?, name, (&raw mut rings).cast()).ok()? };
    Some((rings.rx, rings.rx_max)).filter(|(_, max)| *max > 0)
}

/// Whether the card joins received packets (large receive offload), if the driver reports it.
pub(crate) fn is_lro_on(name: &str) -> Option<bool> {
    Some(ethtool_value(name, ETHTOOL_GFLAGS)? & ETH_FLAG_LRO != 0)
}

/// Whether the kernel joins received packets for its own sockets (generic receive offload).
pub(crate) fn is_gro_on(name: &str) -> Option<bool> {
    Some(ethtool_value(name, ETHTOOL_GGRO)? != 0)
}

/// Whether a sent packet may be in several pieces (scatter-gather).
pub(crate) fn is_scatter_gather_on(name: &str) -> Option<bool> {
    Some(ethtool_value(name, ETHTOOL_GSG)? != 0)
}

/// One of ethtool's numbers, if the kernel reports it.
fn ethtool_value(name: &str, command: u32) -> Option<u32> {
    let mut value = EthtoolValue { command, value: 0 };
    // SAFETY: `EthtoolValue` is the structure these commands fill.
    unsafe { ethtool_ioctl(&control_socket().ok()?, name, (&raw mut value).cast()).ok()? };
    Some(value.value)
}

/// The card's bus address, such as `0000:01:00.0`; `None` if there is none. Unlike sysfs's directory of
/// interfaces, this does not depend on the network namespace that sysfs was mounted in.
pub(crate) fn bus_address(name: &str) -> Option<String> {
    let info = driver_info(&control_socket().ok()?, name)?;
    parse_c_string(&info.bus).filter(|bus| !bus.is_empty())
}

/// The version of the card's firmware, if the driver reports one.
pub(crate) fn firmware(name: &str) -> Option<String> {
    let info = driver_info(&control_socket().ok()?, name)?;
    parse_c_string(&info.firmware).filter(|version| !matches!(version.as_str(), "" | "N/A"))
}

pub(crate) fn interface_index(name: &str) -> io::Result<u32> {
    Ok(rustix::net::netdevice::name_to_index(&control_socket()?, name)?)
}

/// Queries an interface later, even from another network namespace or after it was renamed.
#[derive(Debug)]
pub(crate) struct InterfaceQuery {
    index: u32,
    socket: OwnedFd,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkState {
    Up,
    Down,
    /// The interface was deleted, or moved to another network namespace.
    Gone,
}

impl InterfaceQuery {
    /// For the interface of that index in the calling thread's namespace.
    pub(crate) fn of(index: u32) -> io::Result<Self> {
        Ok(Self { index, socket: control_socket()? })
    }

    pub(crate) fn namespace(&self) -> io::Result<NamespaceId> {
        NamespaceId::of_socket(&self.socket)
    }

    /// The interface's present state, if the kernel reports it.
    pub(crate) fn link_state(&self) -> LinkState {
        let name = rustix::net::netdevice::index_to_name(&self.socket, self.index);
        let flags = name.map_err(io::Error::from).and_then(|name| {
            let mut request = InterfaceRequest::new(&name)?;
            // SAFETY: the call fills the union's `ifru_flags`.
            unsafe {
                request.ioctl(self.socket.as_fd(), libc::SIOCGIFFLAGS)?;
                Ok(i32::from(request.0.ifr_ifru.ifru_flags))
            }
        });
        match flags {
            Ok(flags) if flags & libc::IFF_UP != 0 => LinkState::Up,
            Ok(_) => LinkState::Down,
            Err(_) => LinkState::Gone,
        }
    }
}

pub(crate) fn hardware_address(name: &str) -> io::Result<[u8; 6]> {
    let socket = control_socket()?;
    let mut request = InterfaceRequest::new(name)?;
    // SAFETY: the call fills the union's `ifru_hwaddr`.
    let data = unsafe {
        request.ioctl(socket.as_fd(), libc::SIOCGIFHWADDR)?;
        request.0.ifr_ifru.ifru_hwaddr.sa_data
    };
    // Signed on x86-64, unsigned on arm64.
    Ok(data.first_chunk().expect("14 bytes").map(|byte| u8::from_ne_bytes(byte.to_ne_bytes())))
}

/// Keeps an interface in promiscuous mode; the kernel ends that when the descriptor is closed, also after
/// kill -9.
#[derive(Debug)]
pub(crate) struct PromiscuousGuard {
    socket: OwnedFd,
}

impl PromiscuousGuard {
    pub(crate) fn turn_on(interface_index: u32) -> io::Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        let membership = libc::packet_mreq {
            mr_ifindex: interface_index.cast_signed(),
            mr_type: libc::PACKET_MR_PROMISC.try_into().expect("small constant"),
            mr_alen: 0,
            mr_address: [0; 8],
        };
        reject_all_packets(&socket)?;
        // SAFETY: the option takes a `packet_mreq`.
        unsafe { option::set_option(&socket, libc::SOL_PACKET, libc::PACKET_ADD_MEMBERSHIP, &membership)? };
        Ok(Self { socket })
    }
}

impl From<OwnedFd> for PromiscuousGuard {
    fn from(socket: OwnedFd) -> Self {
        Self { socket }
    }
}

impl AsFd for PromiscuousGuard {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes a socket receive nothing, for good: a process that is given it could otherwise bind it and receive
/// from any interface.
fn reject_all_packets(socket: &OwnedFd) -> io::Result<()> {
    option::attach_reject_all_filter(socket)?;
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::SOL_SOCKET, libc::SO_LOCK_FILTER, &1_i32) }
}

pub(super) fn control_socket() -> io::Result<OwnedFd> {
    Ok(rustix::net::socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?)
}

/// Receive queues in use, and the most that are possible.
fn rx_queues(socket: &OwnedFd, name: &str) -> io::Result<(u32, u32)> {
    let mut channels = EthtoolChannels { command: ETHTOOL_GCHANNELS, ..EthtoolChannels::default() };
    // SAFETY: `EthtoolChannels` is the structure this command fills.
    unsafe { ethtool_ioctl(socket, name, (&raw mut channels).cast())? };
    Ok((channels.rx + channels.combined, channels.rx_max + channels.combined_max))
}

fn driver_name(socket: &OwnedFd, name: &str) -> Option<String> {
    parse_c_string(&driver_info(socket, name)?.driver)
}

fn driver_info(socket: &OwnedFd, name: &str) -> Option<EthtoolDriverInfo> {
    let mut info = EthtoolDriverInfo {
        command: ETHTOOL_GDRVINFO,
        driver: [0; 32],
        version: [0; 32],
        firmware: [0; 32],
        bus: [0; 32],
        rest: [0; 64],
    };
    // SAFETY: `EthtoolDriverInfo` is the structure this command fills.
    unsafe { ethtool_ioctl(socket, name, (&raw mut info).cast()).ok()? };
    let _ = (info.version, info.rest);
    Some(info)
}

/// A string of the kernel, up to its zero byte.
fn parse_c_string(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec()).ok()
}

/// # Safety
/// `command` points at the structure its first word names, which outlives the call.
pub(super) unsafe fn ethtool_ioctl(
    socket: &OwnedFd,
    name: &str,
    command: *mut libc::c_char,
) -> io::Result<()> {
    let mut request = InterfaceRequest::new(name)?;
    request.0.ifr_ifru.ifru_data = command;
    // SAFETY: by contract of this function.
    unsafe { request.ioctl(socket.as_fd(), libc::SIOCETHTOOL) }
}

struct InterfaceRequest(libc::ifreq);

impl InterfaceRequest {
    fn new(name: &str) -> io::Result<Self> {
        // SAFETY: all-zero is a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        if name.is_empty() || name.len() >= request.ifr_name.len() || name.contains('\0') {
            return Err(io::Error::from_raw_os_error(libc::ENODEV)); // what the kernel says of a name that cannot be
        }
        for (to, from) in request.ifr_name.iter_mut().zip(name.bytes()) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        Ok(Self(request))
    }

    /// # Safety
    /// `call` must be an ioctl that takes an `ifreq`, with the union prepared for it.
    unsafe fn ioctl(&mut self, socket: BorrowedFd<'_>, call: libc::c_ulong) -> io::Result<()> {
        // SAFETY: a live descriptor and an `ifreq` that outlives the call; the rest by contract.
        let result = unsafe { libc::ioctl(socket.as_raw_fd(), call as _, &raw mut self.0) };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use rustix::net::{RecvFlags, recv};

    use super::*;

    /// Tries to use a passed packet socket without any capability.
    fn bind_packet_socket(socket: &OwnedFd, interface_index: u32) {
        // SAFETY: all-zero is a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET.try_into().unwrap();
        address.sll_protocol = u16::try_from(libc::ETH_P_ALL).unwrap().to_be();
        address.sll_ifindex = interface_index.cast_signed();
        let bytes = size_of::<libc::sockaddr_ll>().try_into().unwrap();
        // SAFETY: pointer and length describe `address`, which outlives the call.
        let bound = unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) };
        assert_eq!(bound, 0);
    }

    #[test]
    fn a_promiscuous_membership_socket_receives_nothing() {
        let Some(lab) = nocopy_lab::lab_or_skip() else { return };
        let (left, right) = (lab.left(), lab.right());
        right.namespace().run(|| {
            let membership = PromiscuousGuard::turn_on(right.index()).unwrap().socket;
            let (family, kind) = (AddressFamily::PACKET, SocketType::RAW);
            let other = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).unwrap();
            bind_packet_socket(&other, right.index());
            bind_packet_socket(&membership, right.index()); // bound last is served first
            let socket = left.namespace().run(|| UdpSocket::bind((left.ipv4(), 0)).unwrap());
            socket.send_to(b"confidential", (right.ipv4(), 9)).unwrap();
            let (_, bytes) = recv(&other, &mut [0_u8; 64], RecvFlags::empty()).unwrap();
            assert!(bytes > 0);
            let heard = recv(&membership, &mut [0_u8; 64], RecvFlags::DONTWAIT);
            assert_eq!(heard.unwrap_err(), rustix::io::Errno::AGAIN);
            // SAFETY: the option takes an `int`.
            let detached =
                unsafe { option::set_option(&membership, libc::SOL_SOCKET, libc::SO_DETACH_FILTER, &0_i32) };
            assert_eq!(detached.unwrap_err().raw_os_error(), Some(libc::EPERM));
        });
    }
}
