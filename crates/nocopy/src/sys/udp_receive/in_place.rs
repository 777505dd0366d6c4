//! Messages that are looked at in the buffers into which they were received.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;

use nocopy_proto::wire::Ecn;

use super::super::message_calls;
use super::{MessageReport, RecvmmsgArguments, TRAFFIC_CLASS_BYTES, control_bytes, control_payload};

impl MessageReport {
    /// Whether a router marked it because its queue grew (RFC 3168).
    #[inline]
    pub(crate) fn is_congested(&self) -> bool {
        self.ecn == Some(Ecn::Ce)
    }

    #[inline]
    pub(crate) fn datagrams(&self) -> usize {
        self.segment_bytes.map_or(1, |segment| self.bytes.div_ceil(segment.get()))
    }
}

impl RecvmmsgArguments {
    /// As [`receive_from`](Self::receive_from) for one message, without waiting: `recvmsg` costs less than
    /// `recvmmsg`, which looks for a second one. Errors: as [`receive_from`](Self::receive_from).
    ///
    /// # Safety
    /// As [`receive_from`](Self::receive_from), for the first of these slots.
    #[inline]
    pub(crate) unsafe fn receive_one_into_slot(
        &mut self,
        first: usize,
        socket: BorrowedFd<'_>,
    ) -> io::Result<usize> {
        let written = std::mem::replace(&mut self.received, 0..0);
        self.reset_headers(written);
        let header = &mut self.headers[first];
        // SAFETY: the header points to its address, control buffer and piece in boxes that have not moved,
        // with their lengths; the piece to a buffer that the caller vouches for.
        let bytes = unsafe { message_calls::recvmsg(socket, &raw mut header.msg_hdr, libc::MSG_DONTWAIT) };
        header.msg_len = u32::try_from(bytes).map_err(|_| io::Error::last_os_error())?;
        self.received = first..first + 1;
        Ok(1)
    }

    #[inline]
    pub(crate) fn received_count(&self) -> usize {
        self.received.len()
    }

    /// Sender, congestion mark and bytes of a message of the last call, if it is one whole datagram over IPv4
    /// about which nothing else was reported; otherwise `None`.
    #[inline]
    pub(crate) fn plain_ipv4_datagram(&self, index: usize) -> Option<(SocketAddr, bool, usize)> {
        let index = self.received.start + index;
        let libc::mmsghdr { msg_hdr: header, msg_len: bytes } = self.headers.get(index)?;
        let [family_low, family_high, port_high, port_low, a, b, c, d, ..] = self.addresses[index].0;
        let is_ipv4 = libc::c_int::from(u16::from_ne_bytes([family_low, family_high])) == libc::AF_INET
            && header.msg_namelen as usize == size_of::<libc::sockaddr_in>();
        let is_lone = header.msg_flags & libc::MSG_TRUNC == 0 && control_bytes(header) == TRAFFIC_CLASS_BYTES;
        if !is_ipv4 || !is_lone {
            return None;
        }
        // SAFETY: the header points to a control buffer, of which the kernel wrote as much as a control
        // message has; the macro stays there.
        let class = unsafe { libc::CMSG_FIRSTHDR(header).as_ref() }?;
        let is_class = (class.cmsg_level, class.cmsg_type) == (libc::IPPROTO_IP, libc::IP_TOS);
        let from = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([port_high, port_low])).into();
        is_class.then(|| (from, control_payload(class).is_some_and(is_marked), *bytes as usize))
    }
}

#[inline]
fn is_marked(traffic_class: u8) -> bool {
    Ecn::of_traffic_class(traffic_class) == Ecn::Ce
}
