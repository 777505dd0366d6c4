//! Receiving several datagrams by one system call (`recvmmsg`), coalesced by the kernel if it can
//! (`UDP_GRO`).

mod diverted;
#[cfg(feature = "message")]
mod in_place;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

pub(crate) use diverted::{Diversion, RowMemory};
use nocopy_proto::wire::Ecn;

use super::error_queue::parse_address;
use super::{message_calls, option};
use crate::facts::metadata::{Clock, Timestamp};

/// The longest possible datagram or coalesced run: an IP packet has 16 bits for its length.
pub(crate) const RUN_BYTES_MAX: usize = 65_535;

/// Room for control messages: the segment size (an `int`), the local address (`in_pktinfo` or
/// `in6_pktinfo`), the traffic class (an `int` at most) and the time (`timespec`). A dual-stack socket can
/// get both kinds of address and class. Checked below.
const CONTROL_BYTES: usize = 192;

const _: () = {
    // SAFETY: arithmetic without memory.
    let needed = unsafe {
        3 * libc::CMSG_SPACE(size_of::<libc::c_int>() as u32)
            + libc::CMSG_SPACE(size_of::<libc::in_pktinfo>() as u32)
            + libc::CMSG_SPACE(size_of::<libc::in6_pktinfo>() as u32)
            + libc::CMSG_SPACE(size_of::<libc::timespec>() as u32)
    };
    assert!(needed as usize <= CONTROL_BYTES);
};

#[repr(C, align(8))] // as `cmsghdr` wants it
#[derive(Clone, Copy)]
struct ControlBuffer([MaybeUninit<u8>; CONTROL_BYTES]);

/// The longest address of either family.
const ADDRESS_BYTES: usize = size_of::<libc::sockaddr_in6>();

#[repr(C, align(8))] // as `sockaddr_storage`
#[derive(Clone, Copy)]
struct ReceivedAddress([u8; ADDRESS_BYTES]);

impl ReceivedAddress {
    #[inline]
    fn parse(&self, bytes: libc::socklen_t) -> SocketAddr {
        let [family_low, family_high, port_high, port_low, a, b, c, d, ..] = self.0;
        let is_ipv4 = libc::c_int::from(u16::from_ne_bytes([family_low, family_high])) == libc::AF_INET;
        if is_ipv4 && bytes as usize >= size_of::<libc::sockaddr_in>() {
            return (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([port_high, port_low])).into();
        }
        self.parse_any_family(bytes)
    }

    fn parse_any_family(&self, bytes: libc::socklen_t) -> SocketAddr {
        let value = &self.0[..self.0.len().min(bytes as usize)];
        parse_address(value).unwrap_or_else(|| (Ipv4Addr::UNSPECIFIED, 0).into())
    }
}

/// What the kernel reports about a message in addition to its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MessageReport {
    pub(crate) bytes: usize,
    /// Whether the buffer was too small; the rest is lost.
    pub(crate) truncated: bool,
    /// Unspecified, with port 0, if the kernel names an address of another family.
    pub(crate) from: SocketAddr,
    /// How long each datagram is, except a last one that may be shorter; `None` if the message is one
    /// datagram.
    pub(crate) segment_bytes: Option<NonZeroUsize>,
    pub(crate) local: Option<LocalAddress>,
    pub(crate) ecn: Option<Ecn>,
    pub(crate) time: Option<Timestamp>,
}

/// The local address that a datagram was sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LocalAddress {
    /// The destination address of its header: of this host, or a multicast group or broadcast address.
    pub(crate) address: IpAddr,
    /// Index of the interface that it arrived on; 0 if it is not known.
    pub(crate) interface: u32,
    /// Only if `address` is a broadcast or multicast address of IPv4: the address of this host from which an
    /// answer has to come (`ipi_spec_dst`, ip(7)).
    pub(crate) reply_from: Option<Ipv4Addr>,
}

impl LocalAddress {
    #[inline]
    pub(crate) fn new(address: IpAddr, interface: u32) -> Self {
        Self { address, interface, reply_from: None }
    }

    /// The address of this host from which an answer has to come; `None`: any.
    pub(crate) fn answer_source(&self) -> Option<IpAddr> {
        let address = self.reply_from.map_or(self.address, IpAddr::V4);
        (!address.is_multicast()).then_some(address)
    }
}

/// The arguments of `recvmmsg`, allocated once.
pub(crate) struct RecvmmsgArguments {
    headers: Box<[libc::mmsghdr]>,
    /// Pointed to by the headers, one each, as are the addresses and the control buffers.
    pieces: Box<[libc::iovec]>,
    addresses: Box<[ReceivedAddress]>,
    controls: Box<[ControlBuffer]>,
    /// Pointed to by headers in place of their pieces, during a call that diverts rows.
    parts: Vec<libc::iovec>,
    /// The headers that the last call wrote.
    received: Range<usize>,
}

// SAFETY: the pointers are into the boxes beside them, or into buffers, which only the calls that receive
// use.
unsafe impl Send for RecvmmsgArguments {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for RecvmmsgArguments {}

impl RecvmmsgArguments {
    pub(crate) fn new(count: usize) -> Self {
        // SAFETY: all-zero is a valid `mmsghdr` and a valid `iovec`.
        let (header, piece): (libc::mmsghdr, libc::iovec) = unsafe { std::mem::zeroed() };
        let mut messages = Self {
            headers: vec![header; count].into(),
            pieces: vec![piece; count].into(),
            addresses: vec![ReceivedAddress([0; ADDRESS_BYTES]); count].into(),
            controls: vec![ControlBuffer([MaybeUninit::uninit(); CONTROL_BYTES]); count].into(),
            parts: Vec::new(),
            received: 0..0,
        };
        let parts = messages.pieces.iter_mut().zip(&mut messages.addresses).zip(&mut messages.controls);
        for (header, ((piece, address), control)) in messages.headers.iter_mut().zip(parts) {
            header.msg_hdr.msg_name = address.0.as_mut_ptr().cast();
            header.msg_hdr.msg_iov = piece;
            header.msg_hdr.msg_iovlen = 1;
            header.msg_hdr.msg_control = control.0.as_mut_ptr().cast();
        }
        messages.reset_headers(0..count);
        messages
    }

    /// Resets the headers that the kernel wrote to.
    fn reset_headers(&mut self, written: Range<usize>) {
        for header in &mut self.headers[written] {
            header.msg_hdr.msg_namelen = ADDRESS_BYTES as libc::socklen_t;
            header.msg_hdr.msg_controllen = CONTROL_BYTES as _;
        }
    }

    /// Sets the buffer of a slot, until it is set again.
    #[inline]
    pub(crate) fn set_slot(&mut self, slot: usize, buffer: &mut [u8]) {
        self.pieces[slot] = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    }

    #[cfg(feature = "port")]
    pub(crate) fn receive_one(&mut self, socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<bool> {
        let last = self.pieces.len() - 1;
        self.set_slot(last, buffer);
        // SAFETY: the only slot is that of the buffer, which is borrowed exclusively for this call.
        Ok(unsafe { self.receive_from(last, socket, false) }? > 0)
    }

    /// Receives a message into the buffer of each slot from `first` on, as far as there are messages; if
    /// `wait`, waits for the first one, as long as [`set_receive_timeout`](option::set_receive_timeout)
    /// allows. Returns the number of messages; buffers do not change beyond them. Errors: the kernel's:
    /// `EAGAIN` if there is nothing, `EINTR`, or an error that ICMP reported for an earlier send. An error
    /// after some messages is returned by the next call.
    ///
    /// # Safety
    /// Each of these slots was set to a buffer that still exists, and that nothing else reads or writes
    /// during the call.
    #[inline]
    pub(crate) unsafe fn receive_from(
        &mut self,
        first: usize,
        socket: BorrowedFd<'_>,
        wait: bool,
    ) -> io::Result<usize> {
        // Empty until the call has succeeded, so that `message` refuses reports of an earlier one.
        let written = std::mem::replace(&mut self.received, 0..0);
        self.reset_headers(written);
        let headers = &mut self.headers[first..];
        // MSG_WAITFORONE: do not wait for the second one. The call's own timeout is checked only after a
        // message has arrived (recvmmsg(2), BUGS), so it is useless.
        let flags = if wait { libc::MSG_WAITFORONE } else { libc::MSG_DONTWAIT };
        // SAFETY: as many headers as are pointed to. Each points to its address, control buffer and piece in
        // boxes that have not moved, with their lengths; each piece to a buffer that the caller vouches for.
        let received = unsafe { message_calls::recvmmsg(socket, headers, flags) };
        let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
        assert!(received <= headers.len(), "the kernel received more than it was asked for");
        self.received = first..first + received;
        Ok(received)
    }

    /// The report about a message of the last call.
    #[inline]
    pub(crate) fn message_report(&self, index: usize) -> MessageReport {
        assert!(index < self.received.len(), "message {index} of {}", self.received.len());
        let index = self.received.start + index;
        let header = &self.headers[index];
        let ControlData { segment_bytes, local, ecn, time } = read_control(&header.msg_hdr);
        let capacity = self.pieces[index].iov_len;
        let value = header.msg_len as usize;
        let bytes = value.min(capacity);
        MessageReport {
            bytes,
            truncated: header.msg_hdr.msg_flags & libc::MSG_TRUNC != 0 || value > capacity,
            from: self.addresses[index].parse(header.msg_hdr.msg_namelen),
            // A run of one datagram is simply that datagram.
            segment_bytes: segment_bytes.filter(|segment| segment.get() < bytes),
            local,
            ecn,
            time,
        }
    }
}

impl fmt::Debug for RecvmmsgArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = (self.headers.len(), self.received.len());
        f.debug_struct("Messages").field("of_and_received", &counts).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct ControlData {
    segment_bytes: Option<NonZeroUsize>,
    local: Option<LocalAddress>,
    ecn: Option<Ecn>,
    time: Option<Timestamp>,
}

#[inline]
fn read_control(header: &libc::msghdr) -> ControlData {
    // SAFETY: the header points to a control buffer, of which the kernel wrote `msg_controllen` bytes; the
    // macro stays in there.
    let first = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() };
    match first {
        None => ControlData::default(),
        // Usually the traffic class is the only message.
        Some(first)
            if (first.cmsg_level, first.cmsg_type) == (libc::IPPROTO_IP, libc::IP_TOS)
                && control_bytes(header) <= TRAFFIC_CLASS_BYTES =>
        {
            ControlData { ecn: control_payload(first).map(Ecn::of_traffic_class), ..ControlData::default() }
        }
        Some(_) => read_all_control_messages(header),
    }
}

/// Length of a header's control messages, for which C libraries have different types.
#[inline]
fn control_bytes(header: &libc::msghdr) -> usize {
    header.msg_controllen as _
}

/// Length of a control buffer for only the traffic class of IPv4.
// SAFETY: arithmetic without memory.
const TRAFFIC_CLASS_BYTES: usize = unsafe { libc::CMSG_SPACE(1) } as usize;

/// Reads any control messages; `read_control` has a short way for the usual one.
fn read_all_control_messages(header: &libc::msghdr) -> ControlData {
    let mut told_all = ControlData::default();
    let ControlData { segment_bytes, local, ecn, time } = &mut told_all;
    // SAFETY: the header points to a control buffer, of which the kernel wrote `msg_controllen` bytes; the
    // macros stay in there.
    let mut next = unsafe { libc::CMSG_FIRSTHDR(header) };
    // SAFETY: null or inside the control buffer, as above.
    while let Some(message) = unsafe { next.as_ref() } {
        match (message.cmsg_level, message.cmsg_type) {
            (libc::SOL_UDP, libc::UDP_GRO) => {
                let value: Option<libc::c_int> = control_payload(message);
                *segment_bytes =
                    value.and_then(|value| usize::try_from(value).ok()).and_then(NonZeroUsize::new);
            }
            (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                let value: Option<libc::in_pktinfo> = control_payload(message);
                let address = |of: libc::in_addr| Ipv4Addr::from_bits(u32::from_be(of.s_addr));
                *local = value.map(|value| {
                    let (to, own) = (address(value.ipi_addr), address(value.ipi_spec_dst));
                    let reply_from = (to != own).then_some(own);
                    LocalAddress {
                        reply_from,
                        ..LocalAddress::new(to.into(), value.ipi_ifindex.cast_unsigned())
                    }
                });
            }
            (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                let value: Option<libc::in6_pktinfo> = control_payload(message);
                let address =
                    |value: libc::in6_pktinfo| Ipv6Addr::from(value.ipi6_addr.s6_addr).to_canonical();
                // For a datagram over IPv4 the better message follows.
                *local = value.map(|value| LocalAddress::new(address(value), value.ipi6_ifindex));
            }
            // One byte for IPv4 (`ip_cmsg_recv_tos`), an `int` for IPv6.
            (libc::IPPROTO_IP, libc::IP_TOS) => {
                *ecn = control_payload(message).map(Ecn::of_traffic_class);
            }
            (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                let value: Option<libc::c_int> = control_payload(message);
                *ecn = value.map(|class| Ecn::of_traffic_class(class as u8));
            }
            (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                let value: Option<libc::timespec> = control_payload(message);
                *time = value.map(realtime);
            }
            _ => {}
        }
        // SAFETY: as for the first one.
        next = unsafe { libc::CMSG_NXTHDR(header, message) };
    }
    told_all
}

fn realtime(value: libc::timespec) -> Timestamp {
    let seconds = u64::try_from(value.tv_sec).unwrap_or(0);
    // Until the year 2554.
    Timestamp { ns: seconds * 1_000_000_000 + value.tv_nsec as u64, clock: Clock::Realtime }
}

/// The payload of a control message, if it is as long as a `T`, which must be valid whatever its bytes are.
#[inline]
fn control_payload<T: Copy>(message: &libc::cmsghdr) -> Option<T> {
    // SAFETY: arithmetic without memory.
    let needed = unsafe { libc::CMSG_LEN(size_of::<T>() as u32) } as _;
    // SAFETY: the message is as long as it says (`CMSG_FIRSTHDR` and `CMSG_NXTHDR` checked), so a `T` lies
    // behind its header; the types asked for are plain integers.
    (message.cmsg_len >= needed).then(|| unsafe { libc::CMSG_DATA(message).cast::<T>().read_unaligned() })
}

/// Sets whether the kernel coalesces datagrams of one sender into runs. To be set before the socket is bound:
/// datagrams queued before are not affected.
pub(crate) fn set_coalescing(socket: &impl AsFd, on: bool) -> io::Result<()> {
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::SOL_UDP, libc::UDP_GRO, &libc::c_int::from(on)) }
}

/// Makes the kernel report where each datagram was sent to, and its interface.
pub(crate) fn report_local_address(socket: &impl AsFd, ipv6: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    if ipv6 {
        // SAFETY: the option takes an `int`.
        unsafe { option::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVPKTINFO, &on)? };
    }
    // For IPv6 sockets, too: about IPv4 with IPv4-mapped addresses it tells more.
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::IPPROTO_IP, libc::IP_PKTINFO, &on) }
}

/// Sends packets that routers may mark instead of dropping (ECT(0), RFC 3168).
pub(crate) fn send_ecn_capable(socket: &impl AsFd, ipv6: bool) -> io::Result<()> {
    const CAPABLE: libc::c_int = Ecn::Ect0.bits() as libc::c_int;
    if ipv6 {
        // SAFETY: the option takes an `int`.
        unsafe { option::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &CAPABLE)? };
    }
    // For IPv6 sockets, too: they use IPv4 with IPv4-mapped addresses.
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::IPPROTO_IP, libc::IP_TOS, &CAPABLE) }
}

/// Makes the kernel report the traffic class of each datagram, which has the two bits of [`Ecn`].
pub(crate) fn report_traffic_class(socket: &impl AsFd, ipv6: bool) -> io::Result<()> {
    let on: libc::c_int = 1;
    if ipv6 {
        // SAFETY: the option takes an `int`.
        unsafe { option::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, &on)? };
    }
    // For IPv6 sockets, too: they use IPv4 with IPv4-mapped addresses.
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, &on) }
}

/// Makes the kernel report when each datagram arrived.
pub(crate) fn report_kernel_time(socket: &impl AsFd) -> io::Result<()> {
    let on: libc::c_int = 1;
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, &on) }
}

/// How many packets the kernel has dropped at this socket, modulo 2^32: its receive buffer was full, or a
/// checksum was wrong.
///
/// Each packet is one datagram, or a whole run if it was coalesced before it was dropped.
pub(crate) fn dropped_packets(socket: &impl AsFd) -> io::Result<u32> {
    const DROPS: usize = libc::SK_MEMINFO_DROPS as usize;
    let mut values = [0_u32; DROPS + 1];
    let mut bytes = size_of_val(&values) as libc::socklen_t;
    // SAFETY: pointer and length describe `values`, which outlive the call, and are integers.
    let result = unsafe {
        let (socket, values) = (socket.as_fd().as_raw_fd(), (&raw mut values).cast());
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_MEMINFO, values, &raw mut bytes)
    };
    match result {
        0 if bytes as usize == size_of_val(&values) => Ok(values[DROPS]),
        0 => Err(io::ErrorKind::Unsupported.into()), // a kernel that tells fewer values
        _ => Err(io::Error::last_os_error()),
    }
}

/// Makes the kernel cut each message of a socket into datagrams of that many bytes.
#[cfg(test)]
pub(crate) fn set_segment_bytes(socket: &impl AsFd, segment_bytes: u16) {
    // SAFETY: the option takes an `int`.
    unsafe {
        option::set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, &libc::c_int::from(segment_bytes))
    }
    .expect("Linux 4.18");
}
