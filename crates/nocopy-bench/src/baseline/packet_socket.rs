//! AF_PACKET sockets without a ring: one packet per call (as `pcap_inject` does), or several.
#![allow(unsafe_code)]

use std::io;
use std::mem::{size_of, zeroed};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use rustix::net::sockopt::{Timeout, set_socket_recv_buffer_size_force, set_socket_timeout};

use crate::frame::FrameTemplate;
use crate::window::WindowGauge;

/// Packets of a `recvmmsg` call, and between two checks of the gauge.
const BATCH: usize = 64;

/// Longer bursts than the default 208 KiB holds are normal at a million packets a second.
const RECEIVE_BUFFER_BYTES: usize = 4 << 20;

/// How long a receiver sleeps before it checks for the end of the trial.
pub(crate) const PATIENCE: Duration = Duration::from_millis(10);

/// Every protocol, as the kernel wants it: in network byte order.
pub(crate) const EVERYTHING: u16 = (libc::ETH_P_ALL as u16).to_be();
/// Sockets that only send must not be handed packets.
pub(crate) const NOTHING: u16 = 0;

/// A socket bound to an interface of the calling thread's namespace, to send whole frames.
pub(crate) fn open_sender(interface_index: u32) -> io::Result<OwnedFd> {
    let socket = open_packet_socket()?;
    bind_to_interface(&socket, interface_index, NOTHING)?;
    Ok(socket)
}

/// A socket that is handed every frame of an interface of the calling thread's namespace.
pub(crate) fn open_receiver(interface_index: u32) -> io::Result<OwnedFd> {
    let socket = open_packet_socket()?;
    set_socket_recv_buffer_size_force(&socket, RECEIVE_BUFFER_BYTES)?;
    set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    bind_to_interface(&socket, interface_index, EVERYTHING)?;
    set_promiscuous(&socket, interface_index)?;
    Ok(socket)
}

pub(crate) fn send_singly(
    socket: &OwnedFd,
    template: &FrameTemplate,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let mut buffer = template.bytes().to_vec();
    let mut sequence = 0;
    while gauge.may_send() {
        for _ in 0..BATCH {
            template.write_frame(&mut buffer, sequence);
            rustix::net::send(socket, &buffer, rustix::net::SendFlags::empty())?;
            sequence += 1;
        }
        gauge.count_packets(BATCH as u64);
    }
    Ok(())
}

pub(crate) fn send_batches(
    socket: &OwnedFd,
    template: &FrameTemplate,
    gauge: &mut WindowGauge<'_>,
) -> io::Result<()> {
    let count = template.batch_size();
    let mut batch = MmsgBatch::new(count, template.bytes().len());
    let mut sequence = 0;
    while gauge.may_send() {
        for buffer in batch.buffers() {
            template.write_frame(buffer, sequence);
            sequence += 1;
        }
        batch.send(socket, 0..count)?;
        gauge.count_packets(count as u64);
    }
    Ok(())
}

pub(crate) fn receive_batches(
    socket: &impl AsFd,
    packet_bytes: usize,
    gauge: &mut WindowGauge<'_>,
    look: impl Fn(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let socket = socket.as_fd();
    let mut batch = MmsgBatch::new(BATCH, packet_bytes.next_multiple_of(64));
    while gauge.may_receive() {
        let messages = batch.messages.as_mut_ptr();
        // SAFETY: as in MmsgBatch::send; the kernel writes at most each buffer's length into it. A null
        // timeout is allowed: SO_RCVTIMEO bounds the wait for the first packet.
        let count = unsafe {
            let no_timeout = std::ptr::null_mut();
            libc::recvmmsg(socket.as_raw_fd(), messages, BATCH as u32, libc::MSG_WAITFORONE as _, no_timeout)
        };
        let Ok(count) = usize::try_from(count) else {
            match io::Error::last_os_error() {
                error if error.kind() == io::ErrorKind::WouldBlock => gauge.count_packets(0),
                error => return Err(error),
            }
            continue;
        };
        (0..count).try_for_each(|index| look(batch.received_packet(index)))?;
        gauge.count_packets(count as u64);
    }
    Ok(())
}

/// Buffers and their description for the kernel, made once. Not `Send`: made by the thread that uses them.
pub(crate) struct MmsgBatch {
    memory: Vec<u8>,
    buffer_bytes: usize,
    /// Pointed to by `messages`.
    _parts: Vec<libc::iovec>,
    messages: Vec<libc::mmsghdr>,
}

impl MmsgBatch {
    pub(crate) fn new(count: usize, buffer_bytes: usize) -> Self {
        let mut memory = vec![0_u8; buffer_bytes * count];
        let part =
            |buffer: &mut [u8]| libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
        let mut parts: Vec<_> = memory.chunks_exact_mut(buffer_bytes).map(part).collect();
        let message = |part: &mut libc::iovec| {
            // SAFETY: mmsghdr is plain data for which all zeros means no name, no parts and no control.
            let mut message: libc::mmsghdr = unsafe { zeroed() };
            message.msg_hdr.msg_iov = part;
            message.msg_hdr.msg_iovlen = 1;
            message
        };
        let messages = parts.iter_mut().map(message).collect();
        Self { memory, buffer_bytes, _parts: parts, messages }
    }

    fn buffers(&mut self) -> impl Iterator<Item = &mut [u8]> {
        self.memory.chunks_exact_mut(self.buffer_bytes)
    }

    pub(crate) fn memory(&mut self) -> &mut [u8] {
        &mut self.memory
    }

    pub(crate) fn send(&mut self, socket: &impl AsFd, run: Range<usize>) -> io::Result<()> {
        let socket = socket.as_fd().as_raw_fd();
        let mut left = &mut self.messages[run];
        while !left.is_empty() {
            // SAFETY: `left` is a live array of that length, and every message in it points to one part, and
            // that to a buffer, all owned by `self` (MmsgBatch::new).
            let sent = unsafe {
                let (messages, count) = (left.as_mut_ptr(), left.len() as libc::c_uint);
                // By its number: musl's function of that name makes a call for each message.
                libc::syscall(libc::SYS_sendmmsg, socket, messages, count, 0)
            };
            left = &mut left[usize::try_from(sent).map_err(|_| io::Error::last_os_error())?..];
        }
        Ok(())
    }

    fn received_packet(&self, index: usize) -> &[u8] {
        let start = index * self.buffer_bytes;
        let length = (self.messages[index].msg_len as usize).min(self.buffer_bytes);
        &self.memory[start..start + length]
    }
}

pub(crate) fn open_packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: no pointers.
    let number = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just opened, and nothing else refers to it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

pub(crate) fn bind_to_interface(socket: &OwnedFd, interface_index: u32, protocol: u16) -> io::Result<()> {
    // SAFETY: sockaddr_ll is plain data for which all zeros is a value.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = protocol;
    address.sll_ifindex = interface_index.cast_signed();
    let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: the address is live and `length` is its size.
    check_syscall(unsafe { libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length) })
}

/// Promiscuous mode while the socket is open: without it a real card drops frames to other hosts.
pub(crate) fn set_promiscuous(socket: &OwnedFd, interface_index: u32) -> io::Result<()> {
    let membership = libc::packet_mreq {
        mr_ifindex: interface_index.cast_signed(),
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    set_packet_option(socket, libc::PACKET_ADD_MEMBERSHIP, &membership)
}

/// Sets an option of level SOL_PACKET. `T` is the kernel's structure for it: plain data.
pub(crate) fn set_packet_option<T: Copy>(socket: &OwnedFd, option: i32, value: &T) -> io::Result<()> {
    set_socket_option(socket, libc::SOL_PACKET, option, value)
}

pub(crate) fn set_socket_option<T: Copy>(
    socket: &impl AsFd,
    level: i32,
    option: i32,
    value: &T,
) -> io::Result<()> {
    let socket = socket.as_fd().as_raw_fd();
    let length = size_of::<T>() as libc::socklen_t;
    let value = std::ptr::from_ref(value).cast();
    // SAFETY: `value` is live and `length` is its size.
    check_syscall(unsafe { libc::setsockopt(socket, level, option, value, length) })
}

fn check_syscall(result: i32) -> io::Result<()> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
