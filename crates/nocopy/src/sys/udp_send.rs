//! Sending datagrams by the kernel's UDP sockets, several in a call, gathered from several places.

#[cfg(feature = "message")]
mod copied;

use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

#[cfg(feature = "message")]
pub(crate) use copied::{CopiedBurst, allow_fragments};

use super::{message_calls, option};

pub(crate) const MESSAGES_MAX: usize = 64;
/// The most pieces in all messages of a call.
pub(crate) const PIECES_MAX: usize = 1024;

/// The most datagrams of a message. Linux cuts 128 since 6.9, but a host whose virtual machine sends so many
/// may drop them without a word (`virtio_net_hdr_to_skb` of Linux 6.8).
pub(crate) const SEGMENTS_MAX: usize = 64;

/// The most bytes that the kernel cuts, by IPv4 (`IP_MAX_MTU` of `net/ip.h`, without the headers).
pub(crate) const SEGMENTED_BYTES_MAX: usize = 0xfff0 - 28;

/// Whether the kernel cuts so many bytes into so many datagrams by one call.
#[inline]
pub(crate) fn is_cut_by_one_call(datagrams: usize, bytes: usize) -> bool {
    datagrams <= SEGMENTS_MAX && bytes <= SEGMENTED_BYTES_MAX
}

/// An address in the kernel's layout.
#[derive(Clone, Copy)]
pub(crate) struct KernelAddress {
    storage: AddressStorage,
    pub(super) bytes: libc::socklen_t,
}

#[derive(Clone, Copy)]
#[repr(C)]
union AddressStorage {
    v4: libc::sockaddr_in,
    v6: libc::sockaddr_in6,
}

impl From<SocketAddr> for KernelAddress {
    fn from(address: SocketAddr) -> Self {
        match address {
            SocketAddr::V4(address) => {
                let v4 = libc::sockaddr_in {
                    sin_family: libc::AF_INET as libc::sa_family_t,
                    sin_port: address.port().to_be(),
                    sin_addr: libc::in_addr { s_addr: u32::from_ne_bytes(address.ip().octets()) },
                    sin_zero: [0; 8],
                };
                Self { storage: AddressStorage { v4 }, bytes: size_of_val(&v4) as libc::socklen_t }
            }
            SocketAddr::V6(address) => {
                let v6 = libc::sockaddr_in6 {
                    sin6_family: libc::AF_INET6 as libc::sa_family_t,
                    sin6_port: address.port().to_be(),
                    sin6_flowinfo: address.flowinfo(),
                    sin6_addr: libc::in6_addr { s6_addr: address.ip().octets() },
                    sin6_scope_id: address.scope_id(),
                };
                Self { storage: AddressStorage { v6 }, bytes: size_of_val(&v6) as libc::socklen_t }
            }
        }
    }
}

impl KernelAddress {
    pub(super) fn pointer(&self) -> *mut libc::c_void {
        // The kernel only reads it.
        (&raw const self.storage).cast_mut().cast()
    }
}

impl fmt::Debug for KernelAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Address({} bytes)", self.bytes)
    }
}

/// Room for the only control message: `UDP_SEGMENT`, a `u16`.
pub(super) const CONTROL_BYTES: usize = 24;

#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(super) struct SegmentControl([u8; CONTROL_BYTES]);

impl SegmentControl {
    pub(super) fn with_segment_bytes(bytes: u16) -> Self {
        let mut control = Self([0; CONTROL_BYTES]);
        // struct cmsghdr: length, level, type; then the data (cmsg(3)).
        let header = size_of::<libc::cmsghdr>();
        let length = header + size_of::<u16>();
        control.0[..8].copy_from_slice(&length.to_ne_bytes());
        control.0[8..12].copy_from_slice(&libc::SOL_UDP.to_ne_bytes());
        control.0[12..16].copy_from_slice(&libc::UDP_SEGMENT.to_ne_bytes());
        control.0[header..length].copy_from_slice(&bytes.to_ne_bytes());
        control
    }
}

/// Room for `in6_pktinfo` and for an `int` in a control message each; `in_pktinfo` is shorter.
const ADDED_BYTES: usize = 40 + 24;

/// Control messages of datagrams besides the length of segments: the address of this host from which they are
/// sent (`IP_PKTINFO`, ip(7); `IPV6_PKTINFO`, RFC 3542, section 6.2), and the traffic class.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
pub(crate) struct AddedControls {
    control: [u8; ADDED_BYTES],
    bytes: usize,
}

impl AddedControls {
    pub(crate) fn none() -> Self {
        Self { control: [0; ADDED_BYTES], bytes: 0 }
    }

    /// As [`add_source`](Self::add_source).
    #[cfg(feature = "message")]
    pub(crate) fn from_source(address: IpAddr, interface: u32) -> Self {
        let mut controls = Self::none();
        controls.add_source(address, interface);
        controls
    }

    /// Names the address of this host that the datagrams come from; at most once. `interface`: that of an
    /// address that exists on its link only, otherwise 0.
    pub(crate) fn add_source(&mut self, address: IpAddr, interface: u32) {
        match address {
            // struct in_pktinfo: the interface, `ipi_spec_dst`, and an address that only a receiver is told.
            IpAddr::V4(address) => {
                let data = self.add(libc::IPPROTO_IP, libc::IP_PKTINFO, size_of::<libc::in_pktinfo>());
                data[4..][..4].copy_from_slice(&address.octets());
            }
            // struct in6_pktinfo: the address, the interface.
            IpAddr::V6(address) => {
                let data = self.add(libc::IPPROTO_IPV6, libc::IPV6_PKTINFO, size_of::<libc::in6_pktinfo>());
                data[..16].copy_from_slice(&address.octets());
                data[16..][..4].copy_from_slice(&interface.to_ne_bytes());
            }
        }
    }

    /// Sets IPv4's type of service, or IPv6's traffic class; at most once.
    pub(crate) fn add_traffic_class(&mut self, is_ipv4: bool, class: u8) {
        let (level, kind) = match is_ipv4 {
            true => (libc::IPPROTO_IP, libc::IP_TOS),
            false => (libc::IPPROTO_IPV6, libc::IPV6_TCLASS),
        };
        let class = libc::c_int::from(class);
        self.add(level, kind, size_of_val(&class)).copy_from_slice(&class.to_ne_bytes());
    }

    /// Adds a control message, and returns its data. struct cmsghdr: length, level, type (cmsg(3)).
    fn add(&mut self, level: libc::c_int, kind: libc::c_int, data: usize) -> &mut [u8] {
        let header = size_of::<libc::cmsghdr>();
        let control = &mut self.control[self.bytes..];
        control[..8].copy_from_slice(&(header + data).to_ne_bytes());
        control[8..12].copy_from_slice(&level.to_ne_bytes());
        control[12..16].copy_from_slice(&kind.to_ne_bytes());
        self.bytes += (header + data).next_multiple_of(size_of::<usize>());
        &mut control[header..header + data]
    }

    #[cfg(feature = "port")]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.control[..self.bytes]
    }
}

impl fmt::Debug for AddedControls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AddedControls({} bytes)", self.bytes)
    }
}

/// The destination of datagrams, in the kernel's layout.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelDestination<'a> {
    /// `None`: the address to which the socket is connected.
    pub(crate) address: Option<&'a KernelAddress>,
    pub(crate) controls: Option<&'a AddedControls>,
}

#[cfg(all(feature = "tcp", feature = "uring"))] // for a ring of a stream
impl KernelDestination<'static> {
    /// The address to which the socket is connected.
    pub(crate) const CONNECTED: Self = Self { address: None, controls: None };
}

/// The control messages of a message, one behind the other: how the kernel cuts it, and those added.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct MessageControls {
    segment: MaybeUninit<SegmentControl>,
    added: MaybeUninit<AddedControls>,
}

impl MessageControls {
    pub(super) const fn empty() -> Self {
        Self { segment: MaybeUninit::uninit(), added: MaybeUninit::uninit() }
    }

    /// Writes the control messages; returns where they begin, and their length. It must not move afterwards.
    #[inline]
    pub(super) fn write(
        &mut self,
        segment_bytes: Option<u16>,
        added: Option<&AddedControls>,
    ) -> (*mut libc::c_void, usize) {
        let added_bytes = added.map_or(0, |added| self.added.write(*added).bytes);
        match segment_bytes {
            None if added_bytes == 0 => (std::ptr::null_mut(), 0),
            None => ((&raw mut self.added).cast(), added_bytes),
            Some(bytes) => {
                self.segment.write(SegmentControl::with_segment_bytes(bytes));
                ((&raw mut *self).cast(), CONTROL_BYTES + added_bytes)
            }
        }
    }
}

/// Messages for one call, in memory that is allocated once.
pub(crate) struct Burst {
    messages: Box<[libc::mmsghdr]>,
    pieces: Box<[libc::iovec]>,
    controls: Box<[MessageControls]>,
    addresses: Box<[MaybeUninit<KernelAddress>]>,
    message_count: usize,
    piece_count: usize,
    /// Where the last piece of the message begun last ends; null if it has none.
    end: *const u8,
}

// SAFETY: its pointers are followed only by `send`, whose contract covers them.
unsafe impl Send for Burst {}

impl Burst {
    pub(crate) fn new() -> Self {
        // SAFETY: null pointers and zeros are what an unused header is made of.
        let (message, piece) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
        Self {
            messages: vec![message; MESSAGES_MAX].into(),
            pieces: vec![piece; PIECES_MAX].into(),
            controls: vec![MessageControls::empty(); MESSAGES_MAX].into(),
            addresses: vec![MaybeUninit::uninit(); MESSAGES_MAX].into(),
            message_count: 0,
            piece_count: 0,
            end: std::ptr::null(),
        }
    }

    pub(crate) fn clear(&mut self) {
        (self.message_count, self.piece_count) = (0, 0);
    }

    #[inline]
    pub(crate) fn has_room(&self, pieces: usize) -> bool {
        self.message_count < MESSAGES_MAX && self.piece_count + pieces <= PIECES_MAX
    }

    /// Begins a message of one datagram: to that address, or the one the socket is connected to.
    #[inline]
    pub(crate) fn begin_message(&mut self, to: Option<&KernelAddress>) {
        let number = self.message_count;
        let message = &mut self.messages[number];
        let header = &mut message.msg_hdr;
        // If all pieces are used, a message of none may still begin: nothing is read there.
        header.msg_iov = &raw mut self.pieces[self.piece_count.min(PIECES_MAX - 1)];
        header.msg_iovlen = 0;
        (header.msg_name, header.msg_namelen) = match to {
            None => (std::ptr::null_mut(), 0),
            Some(address) => {
                let kept = self.addresses[number].write(*address);
                (kept.pointer(), kept.bytes)
            }
        };
        (header.msg_control, header.msg_controllen) = (std::ptr::null_mut(), 0);
        self.message_count += 1;
        // So that its first piece is not joined to the last one of the message before.
        self.end = std::ptr::null();
    }

    /// Adds control messages to the message begun last, before its
    /// [`set_segment_bytes`](Self::set_segment_bytes).
    pub(crate) fn add_controls(&mut self, added: &AddedControls) {
        let number = self.message_count - 1;
        let (control, bytes) = self.controls[number].write(None, Some(added));
        let header = &mut self.messages[number].msg_hdr;
        (header.msg_control, header.msg_controllen) = (control, bytes as _);
    }

    /// Has the kernel cut the message begun last into datagrams of so many bytes; the last may be shorter.
    #[inline]
    pub(crate) fn set_segment_bytes(&mut self, segment_bytes: u16) {
        let number = self.message_count - 1;
        let (control, bytes) = self.controls[number].write(Some(segment_bytes), None);
        // Those added, if there are any, lie right behind it.
        let header = &mut self.messages[number].msg_hdr;
        header.msg_control = control;
        let added = std::mem::replace(&mut header.msg_controllen, bytes as _);
        header.msg_controllen += added;
    }

    /// Adds a piece to the message begun last; what follows the piece before it in memory becomes a part of
    /// that one. Panics without [`has_room`](Self::has_room).
    #[inline]
    pub(crate) fn push_piece(&mut self, bytes: &[u8]) {
        let is_apart = std::mem::replace(&mut self.end, bytes.as_ptr_range().end) != bytes.as_ptr();
        if !is_apart && let Some(last) = self.pieces[..self.piece_count].last_mut() {
            last.iov_len += bytes.len(); // each piece costs the kernel time
            return;
        }
        let first = bytes.as_ptr().cast_mut().cast();
        self.pieces[self.piece_count] = libc::iovec { iov_base: first, iov_len: bytes.len() };
        self.piece_count += 1;
        self.messages[self.message_count - 1].msg_hdr.msg_iovlen += 1;
    }

    /// Sends messages, from number `from` on, and returns how many the kernel accepted. An error concerns the
    /// first.
    ///
    /// # Safety
    /// The bytes of all pieces since `clear` still exist; with `MSG_ZEROCOPY` they stay in place, unchanged,
    /// until the error queue reports their completion.
    pub(crate) unsafe fn send(
        &mut self,
        socket: BorrowedFd<'_>,
        from: usize,
        flags: i32,
    ) -> io::Result<usize> {
        let messages = &mut self.messages[from..self.message_count];
        // SAFETY: headers, control messages and addresses are in boxes of ours, the pieces there by contract.
        let sent = unsafe {
            match messages {
                [] => return Ok(0),
                [one] => {
                    let bytes = message_calls::sendmsg(socket, &raw const one.msg_hdr, flags);
                    if bytes < 0 { -1 } else { 1 }
                }
                many => message_calls::sendmmsg(socket, many, flags),
            }
        };
        usize::try_from(sent).map_err(|_| io::Error::last_os_error())
    }

    /// Makes a zero-copy call that sends nothing, and returns its error. Clears the messages prepared before.
    ///
    /// It asks for more datagrams of a byte each than any kernel cuts a message into (`UDP_MAX_SEGMENTS`: 64,
    /// since Linux 6.9 128). The kernel checks that after making the packet and counting the call
    /// (`udp_send_skb`). It then drops the packet, and the completion, with the call's number, is in the
    /// error queue when this returns. An earlier error does not change the count.
    pub(crate) fn make_refused_call(
        &mut self,
        socket: BorrowedFd<'_>,
        to: Option<&KernelAddress>,
        flags: i32,
    ) -> io::Error {
        static NOTHING: [u8; 2048] = [0; 2048];
        self.clear();
        self.begin_message(to);
        self.set_segment_bytes(1);
        self.push_piece(&NOTHING);
        // SAFETY: the bytes are there for good, and never change.
        let sent = unsafe { self.send(socket, 0, flags | libc::MSG_ZEROCOPY) };
        sent.err().unwrap_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl fmt::Debug for Burst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Burst({} messages of {} pieces)", self.message_count, self.piece_count)
    }
}

/// Sends one datagram in one piece; the kernel copies it.
#[inline(always)]
pub(crate) fn send_datagram(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    to: Option<&KernelAddress>,
    flags: i32,
) -> io::Result<()> {
    let (name, length) = to.map_or((std::ptr::null_mut(), 0), |to| (to.pointer(), to.bytes));
    // SAFETY: bytes and address outlive the call.
    let sent = unsafe { message_calls::sendto(socket, bytes, flags, name, length) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// As [`send_datagram`], with control messages: cut by the kernel into datagrams of `segment_bytes`, if that
/// is given, and with those `added`.
#[inline]
pub(crate) fn send_with_controls(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    segment_bytes: Option<u16>,
    to: Option<&KernelAddress>,
    added: Option<&AddedControls>,
    flags: i32,
) -> io::Result<()> {
    let mut controls = MessageControls::empty();
    let mut piece = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    // SAFETY: null pointers and zeros are what an unused header is made of.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    if let Some(to) = to {
        (header.msg_name, header.msg_namelen) = (to.pointer(), to.bytes);
    }
    (header.msg_iov, header.msg_iovlen) = (&raw mut piece, 1);
    let (control, control_bytes) = controls.write(segment_bytes, added);
    (header.msg_control, header.msg_controllen) = (control, control_bytes as _);
    // SAFETY: what the header points to outlives the call.
    let sent = unsafe { message_calls::sendmsg(socket, &raw const header, flags) };
    if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends the bytes as one datagram, or has the kernel cut them into those of `segment_bytes`; with the
/// control messages of the destination if it has any.
#[inline(always)]
pub(crate) fn send_to_destination(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    segment_bytes: Option<u16>,
    to: KernelDestination<'_>,
    flags: i32,
) -> io::Result<()> {
    let with_controls =
        |segment_bytes| send_with_controls(socket, bytes, segment_bytes, to.address, to.controls, flags);
    // Apart, so that one datagram costs nothing for what is cut.
    match segment_bytes {
        Some(_) => with_controls(segment_bytes),
        None if to.controls.is_some() => with_controls(None),
        None => send_datagram(socket, bytes, to.address, flags),
    }
}

/// Asks the kernel whether the socket may send from an address: by a probe that sends nothing (`MSG_PROBE`
/// with `MSG_CONFIRM`, `udp_sendmsg` of net/ipv4/udp.c). It goes to the address itself, so that no other
/// route is part of the answer. `controls` name the address as source. Errors: `EINVAL` or, by newer
/// kernels for IPv4, `ENETUNREACH` if it may not.
pub(crate) fn check_source(
    socket: BorrowedFd<'_>,
    controls: &AddedControls,
    address: IpAddr,
    is_ipv6_socket: bool,
) -> io::Result<()> {
    const PROBE: libc::c_int = 0x10; // include/linux/socket.h; not of the C library
    const DISCARD: u16 = 9;
    let to = match address {
        IpAddr::V4(address) if is_ipv6_socket => address.to_ipv6_mapped().into(),
        address => address,
    };
    let to = SocketAddr::new(to, DISCARD).into();
    send_with_controls(
        socket,
        &[],
        None,
        Some(&to),
        Some(controls),
        PROBE | libc::MSG_CONFIRM | libc::MSG_DONTWAIT,
    )
}

/// Makes the kernel put the network's errors (ICMP) into the error queue, with their senders.
pub(crate) fn enable_error_queue(socket: &impl AsFd, is_ipv6: bool) -> io::Result<()> {
    if is_ipv6 {
        // SAFETY: the option takes an `int`.
        unsafe { option::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVERR, &1_i32)? };
    }
    // For IPv6 sockets, too: they use IPv4 with IPv4-mapped addresses.
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::IPPROTO_IP, libc::IP_RECVERR, &1_i32) }
}

/// Sends datagrams without a checksum (IPv4).
pub(crate) fn omit_checksum(socket: &impl AsFd) -> io::Result<()> {
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, &1_i32) }
}

/// Sets the interface for sending to multicast groups (IPv4; `socket2` has the option for IPv6).
pub(crate) fn set_multicast_interface(socket: &impl AsFd, interface: u32) -> io::Result<()> {
    let any = libc::in_addr { s_addr: libc::INADDR_ANY };
    let interface = interface.cast_signed();
    let by = libc::ip_mreqn { imr_multiaddr: any, imr_address: any, imr_ifindex: interface };
    // SAFETY: the option takes an `ip_mreqn`.
    unsafe { option::set_option(socket, libc::IPPROTO_IP, libc::IP_MULTICAST_IF, &by) }
}

/// Bytes of the send buffer (`SO_SNDBUF`), as the kernel counts: with its overhead besides the data.
pub(crate) fn send_buffer_bytes(socket: &impl AsFd) -> io::Result<usize> {
    Ok(rustix::net::sockopt::socket_send_buffer_size(socket)?)
}

/// Bytes of the send buffer that are in use (`SIOCOUTQ`, udp(7)).
pub(crate) fn unsent_bytes(socket: &impl AsFd) -> io::Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes an `int`, which outlives the call.
    if unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(usize::try_from(bytes).unwrap_or(0))
}
