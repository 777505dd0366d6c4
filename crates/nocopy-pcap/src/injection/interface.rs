//! Checks of the interface before frames bypass the kernel's path for packet sockets.

use std::ffi::{CStr, CString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

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
    pub(super) fn of(socket: BorrowedFd<'_>, index: u32) -> io::Result<Self> {
        // SAFETY: all-zero is a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
        request.ifr_ifru.ifru_ifindex = index.cast_signed();
        call(socket, libc::SIOCGIFNAME, &mut request)?;
        let name = request.ifr_name.map(|byte| byte as u8); // signed on some processors
        let name = CStr::from_bytes_until_nul(&name).map_err(|_| io::ErrorKind::InvalidData)?;
        let name = name.to_string_lossy().into_owned();
        call(socket, libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: set by the call.
        let mtu_bytes = unsafe { request.ifr_ifru.ifru_mtu };
        call(socket, libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: set by the call.
        let flags = unsafe { request.ifr_ifru.ifru_flags }.into();
        call(socket, libc::SIOCGIFHWADDR, &mut request)?;
        // SAFETY: set by the call.
        let hardware = unsafe { request.ifr_ifru.ifru_hwaddr.sa_family };
        Ok(Self { name, mtu_bytes: usize::try_from(mtu_bytes).unwrap_or(0), flags, hardware })
    }

    /// Why frames should be sent through a packet socket instead.
    pub(super) fn objection(&self) -> Option<&'static str> {
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
    pub(super) fn plain_lengths(&self) -> std::ops::RangeInclusive<usize> {
        HEADER_BYTES..=self.mtu_bytes + HEADER_BYTES
    }
}

fn call(socket: BorrowedFd<'_>, number: libc::Ioctl, request: &mut libc::ifreq) -> io::Result<()> {
    // SAFETY: these calls read and write one `ifreq`.
    match unsafe { libc::ioctl(socket.as_raw_fd(), number, std::ptr::from_mut(request)) } {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Whether the calling thread is in a socket's network namespace; assumed if the kernel does not report it (before 5.14).
pub(super) fn is_at_home(socket: BorrowedFd<'_>) -> bool {
    let here = open(libc::AF_UNIX, libc::SOCK_DGRAM).ok().and_then(|here| namespace_of(here.as_fd()));
    here.is_none() || here == namespace_of(socket)
}

fn namespace_of(socket: BorrowedFd<'_>) -> Option<u64> {
    let (mut cookie, mut bytes) = (0_u64, size_of::<u64>() as libc::socklen_t);
    // SAFETY: the pointers are to a number of 64 bits and to its length, which outlive the call.
    let result = unsafe {
        let cookie = (&raw mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_NETNS_COOKIE, cookie, &raw mut bytes)
    };
    (result == 0).then_some(cookie)
}

pub(super) fn open(family: i32, kind: i32) -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let number = unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// A packet socket that sends on an interface and receives nothing.
pub(super) fn sending_socket(name: &str) -> io::Result<OwnedFd> {
    let name = CString::new(name)?;
    // SAFETY: the name ends with a zero.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    if index == 0 {
        return Err(io::Error::last_os_error());
    }
    let socket = open(libc::AF_PACKET, libc::SOCK_RAW)?;
    let mut address = no_address();
    (address.sll_family, address.sll_ifindex) = (libc::AF_PACKET as u16, index.cast_signed());
    let bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointer and length describe `address`, which outlives the call.
    match unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), bytes) } {
        0 => Ok(socket),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The index of the interface that a packet socket is bound to.
pub(super) fn index_of(socket: BorrowedFd<'_>) -> io::Result<u32> {
    let mut address = no_address();
    let mut bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointers are to the address and to its length, which outlive the call.
    match unsafe { libc::getsockname(socket.as_raw_fd(), (&raw mut address).cast(), &raw mut bytes) } {
        0 => Ok(address.sll_ifindex.cast_unsigned()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn no_address() -> libc::sockaddr_ll {
    // SAFETY: all-zero is a valid `sockaddr_ll`.
    unsafe { std::mem::zeroed() }
}

/// The inode of a socket, by which `/proc/net/packet` names it.
pub(super) fn inode(socket: impl AsFd) -> io::Result<u64> {
    // SAFETY: all-zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: the call writes one `stat`.
    match unsafe { libc::fstat(socket.as_fd().as_raw_fd(), &raw mut stat) } {
        0 => Ok(stat.st_ino),
        _ => Err(io::Error::last_os_error()),
    }
}
