//! Calls that copy, for the carrier of messages: several messages at once.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, BorrowedFd};

use super::{AddedControls, Burst, KernelAddress, PIECES_MAX};
use crate::sys::option;

/// Messages for one call that copies: the bytes are borrowed until it was made.
#[derive(Debug)]
pub(crate) struct CopiedBurst<'a> {
    burst: &'a mut Burst,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> CopiedBurst<'a> {
    pub(crate) fn new(burst: &'a mut Burst) -> Self {
        burst.clear();
        Self { burst, bytes: PhantomData }
    }

    #[inline]
    pub(crate) fn has_room(&self, pieces: usize) -> bool {
        self.burst.has_room(pieces)
    }

    /// Begins a message of one datagram; see [`Burst::begin`].
    #[inline]
    pub(crate) fn begin_message(&mut self, to: Option<&KernelAddress>) {
        self.burst.begin_message(to);
    }

    /// Adds control messages to the message begun last; see [`Burst::add_controls`].
    pub(crate) fn add_controls(&mut self, added: &AddedControls) {
        self.burst.add_controls(added);
    }

    /// Whether the message begun last has room for so many more pieces.
    #[inline]
    pub(crate) fn has_room_behind(&self, pieces: usize) -> bool {
        self.burst.piece_count + pieces <= PIECES_MAX
    }

    /// Has the kernel cut the message begun last; see [`Burst::set_segment_bytes`].
    #[inline]
    pub(crate) fn set_segment_bytes(&mut self, segment_bytes: u16) {
        self.burst.set_segment_bytes(segment_bytes);
    }

    /// Adds a piece to the message begun last; see [`Burst::piece`].
    #[inline]
    pub(crate) fn push_piece(&mut self, bytes: &'a [u8]) {
        self.burst.push_piece(bytes);
    }

    /// Sends copies of the messages, from number `from` on, without waiting, and returns how many the kernel
    /// accepted. An error concerns the first.
    pub(crate) fn send(&mut self, socket: BorrowedFd<'_>, from: usize) -> io::Result<usize> {
        // SAFETY: every piece since `clear` is borrowed for longer than this, and there is no `MSG_ZEROCOPY`.
        unsafe { self.burst.send(socket, from, libc::MSG_DONTWAIT) }
    }
}

/// Sets whether the socket's datagrams may be fragmented: by the kernel if one is longer than the path's
/// known MTU, and by routers. If not, such a datagram fails with `EMSGSIZE`.
pub(crate) fn allow_fragments(socket: &impl AsFd, is_ipv6: bool, allowed: bool) -> io::Result<()> {
    let (v4, v6) = if allowed {
        (libc::IP_PMTUDISC_DONT, libc::IPV6_PMTUDISC_DONT)
    } else {
        (libc::IP_PMTUDISC_DO, libc::IPV6_PMTUDISC_DO)
    };
    if is_ipv6 {
        // SAFETY: the option takes an `int`.
        unsafe { option::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, &v6)? };
    }
    // SAFETY: the option takes an `int`.
    unsafe { option::set_option(socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, &v4) }
}
