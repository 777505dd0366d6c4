//! Reads a socket's error queue: completions of zero-copy calls, and errors of the network.

use std::io;
use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;

use super::message_calls;

/// `struct sock_extended_err` origins, `linux/errqueue.h`.
const SO_EE_ORIGIN_LOCAL: u8 = 1;
const SO_EE_ORIGIN_ICMP: u8 = 2;
const SO_EE_ORIGIN_ICMP6: u8 = 3;
const SO_EE_ORIGIN_ZEROCOPY: u8 = 5;
/// The kernel copied nevertheless.
const SO_EE_CODE_ZEROCOPY_COPIED: u8 = 1;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ErrorQueueEntry {
    Completion(CompletionReport),
    Network(NetworkError),
}

/// The kernel has completed the zero-copy calls of these numbers, counted from 0 for each socket, including
/// the last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CompletionReport {
    pub(crate) first: u32,
    pub(crate) last: u32,
    pub(crate) copied: bool,
}

/// The network, or the host itself, could not deliver a datagram to that address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NetworkError {
    pub(crate) errno: i32,
    pub(crate) to: Option<SocketAddr>,
    pub(crate) from: Option<IpAddr>,
}

/// `struct sock_extended_err`, followed by the address of the reporting host.
#[repr(C)]
#[derive(Clone, Copy)]
struct ExtendedError {
    errno: u32,
    origin: u8,
    kind: u8,
    code: u8,
    pad: u8,
    info: u32,
    data: u32,
    offender: [u8; 28],
}

const FIXED_BYTES: usize = offset_of!(ExtendedError, offender);

pub(crate) fn next_entry(socket: BorrowedFd<'_>) -> io::Result<Option<ErrorQueueEntry>> {
    #[repr(C, align(8))]
    struct ControlBuffer([u8; 256]);
    let mut control = ControlBuffer([0; 256]);
    // The data is not read, but QEMU's user mode makes no call for a message without pieces, and returns 0.
    let mut data = 0_u8;
    let mut piece = libc::iovec { iov_base: (&raw mut data).cast(), iov_len: 1 };
    // SAFETY: zeros are an empty address and header.
    let (mut name, mut header): (libc::sockaddr_in6, libc::msghdr) = unsafe { std::mem::zeroed() };
    loop {
        header.msg_name = (&raw mut name).cast();
        header.msg_namelen = size_of_val(&name) as libc::socklen_t;
        header.msg_control = (&raw mut control).cast();
        header.msg_controllen = size_of_val(&control) as _;
        (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
        let flags = libc::MSG_ERRQUEUE | libc::MSG_DONTWAIT;
        // SAFETY: name, control and data outlive the call, and their lengths are theirs.
        if unsafe { message_calls::recvmsg(socket, &raw mut header, flags) } < 0 {
            let error = io::Error::last_os_error();
            return match error.kind() {
                io::ErrorKind::WouldBlock => Ok(None),
                io::ErrorKind::Interrupted => continue,
                _ => Err(error),
            };
        }
        // Linux marks each entry (`ip_recv_error`). An emulation may return 0 without one.
        if header.msg_flags & libc::MSG_ERRQUEUE == 0 {
            return Ok(None);
        }
        let length = control.0.len().min(header.msg_controllen as _);
        let to = &address_bytes(&name)[..(header.msg_namelen as usize).min(size_of_val(&name))];
        if let Some(notice) = parse_entry(&control.0[..length], to) {
            return Ok(Some(notice));
        }
        // An unknown kind is skipped.
    }
}

fn address_bytes(name: &libc::sockaddr_in6) -> &[u8] {
    // SAFETY: a structure without padding, of integers only.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(name).cast(), size_of_val(name)) }
}

fn parse_entry(mut control: &[u8], to: &[u8]) -> Option<ErrorQueueEntry> {
    const HEADER: usize = size_of::<libc::cmsghdr>();
    let word = |bytes: &[u8], at: usize| {
        bytes.get(at..at + 4).map(|word| u32::from_ne_bytes(word.try_into().expect("four")))
    };
    while control.len() >= HEADER {
        let length = usize::from_ne_bytes(control[..8].try_into().expect("eight"));
        let (level, kind) = (word(control, 8)? as i32, word(control, 12)? as i32);
        let data = control.get(HEADER..length)?;
        let is_ours = (level == libc::IPPROTO_IP && kind == libc::IP_RECVERR)
            || (level == libc::IPPROTO_IPV6 && kind == libc::IPV6_RECVERR);
        if is_ours && data.len() >= FIXED_BYTES {
            let errno = word(data, offset_of!(ExtendedError, errno))? as i32;
            let (info, last) =
                (word(data, offset_of!(ExtendedError, info))?, word(data, offset_of!(ExtendedError, data))?);
            let code = data[offset_of!(ExtendedError, code)];
            return match data[offset_of!(ExtendedError, origin)] {
                SO_EE_ORIGIN_ZEROCOPY => {
                    let copied = code == SO_EE_CODE_ZEROCOPY_COPIED;
                    Some(ErrorQueueEntry::Completion(CompletionReport { first: info, last, copied }))
                }
                SO_EE_ORIGIN_LOCAL | SO_EE_ORIGIN_ICMP | SO_EE_ORIGIN_ICMP6 => {
                    let from = parse_address(&data[FIXED_BYTES..]).map(|from| from.ip());
                    Some(ErrorQueueEntry::Network(NetworkError { errno, to: parse_address(to), from }))
                }
                _ => None,
            };
        }
        // At least a header further, so the loop ends; no overflow, because `length` was found to be within
        // `control`.
        control = control.get(length.next_multiple_of(8).max(HEADER)..)?;
    }
    None
}

/// An address in the kernel's layout; `None` if it is neither IPv4 nor IPv6, or cut off.
pub(crate) fn parse_address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = i32::from(u16::from_ne_bytes(bytes.get(..2)?.try_into().expect("two")));
    let port = u16::from_be_bytes(bytes.get(2..4)?.try_into().expect("two"));
    match family {
        libc::AF_INET => {
            let octets: [u8; 4] = bytes.get(4..8)?.try_into().expect("four");
            Some((Ipv4Addr::from(octets), port).into())
        }
        libc::AF_INET6 => {
            let octets: [u8; 16] = bytes.get(8..24)?.try_into().expect("sixteen");
            // A link-local address is valid only with its interface.
            let scope = u32::from_ne_bytes(bytes.get(24..28)?.try_into().expect("four"));
            Some(SocketAddrV6::new(octets.into(), port, 0, scope).into())
        }
        _ => None,
    }
}
