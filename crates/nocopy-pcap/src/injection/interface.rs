//! Checks of the interface before frames bypass the kernel's path for packet sockets.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

/// `ARPHRD_ETHER` of `linux/if_arp.h`.
const ETHERNET: u16 = 1;

/// `SO_NETNS_COOKIE` of `asm-generic/socket.h`.
const SO_NETNS_COOKIE: i32 = 71;

/// Ethernet's header. A frame may have four bytes more if they are a VLAN tag, which only the kernel checks.
const HEADER_BYTES: usize = 14;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) name: String,
    pub(super) mtu_bytes: usize,
    flags: i32,
    hardware: u16,
}

impl Interface {
    pub(super) fn query(socket: BorrowedFd<'_>, index: u32) -> io::Result<Self> {
        // SAFETY: all-zero is a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = index.cast_signed();
        interface_ioctl(socket, libc::SIOCGIFNAME, &mut request)?;
        let name = request.ifr_name.map(|byte| byte as u8); // signed on some processors
        let name = CStr::from_bytes_until_nul(&name).map_err(|_| io::ErrorKind::InvalidData)?;
        let name = name.to_string_lossy().into_owned();
        interface_ioctl(socket, libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: set by the call.
        let mtu_bytes = unsafe { request.ifr_ifru.ifru_mtu };
        interface_ioctl(socket, libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: set by the call.
        let flags = unsafe { request.ifr_ifru.ifru_flags }.into();
        interface_ioctl(socket, libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: set by the call.
        let hardware = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
        Ok(Self { name, mtu_bytes: usize::try_from(mtu_bytes).unwrap_or(0), flags, hardware })
    }

    /// Why frames should be sent through a packet socket instead.
    pub(super) fn batching_refusal(&self) -> Option<&'static str> {
        let has = |flag| self.flags & flag == flag;
        if self.hardware != ETHERNET {
            Some("the interface is not Ethernet")
        } else if has(libc::IFF_LOOPBACK) {
            Some("the loopback interface drops what comes past its network layer")
        } else if !has(libc::IFF_UP | libc::IFF_RUNNING) {
            Some("the interface is down or has no carrier")
        } else {
            None
        }
    }

    /// Lengths of frames that the interface accepts, whatever their content.
    pub(super) fn accepted_frame_lengths(&self) -> std::ops::RangeInclusive<usize> {
        HEADER_BYTES..=self.mtu_bytes + HEADER_BYTES
    }
}

fn interface_ioctl(socket: BorrowedFd<'_>, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these calls read and write one `ifreq`.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number, std::ptr::from_mut(request)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether the calling thread is in a socket's network namespace; assumed if the kernel does not report it
/// (before 5.14).
pub(super) fn is_in_socket_namespace(socket: BorrowedFd<'_>) -> bool {
    let here = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .ok()
        .and_then(|here| namespace_cookie(here.as_fd()));
    here.is_none() || here == namespace_cookie(socket)
}

fn namespace_cookie(socket: BorrowedFd<'_>) -> Option<u64> {
    let (mut cookie, mut bytes) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the pointers are to a number of 64 bits and to its length, which outlive the call.
    let result = unsafe {
        let cookie = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, cookie, &raw mut bytes)
    };
    (result == 0).then_some(cookie)
}
