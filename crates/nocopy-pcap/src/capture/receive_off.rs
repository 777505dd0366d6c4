//! Makes packet sockets that receive nothing.

use std::ffi::c_int;

/// The EtherType that is reserved for ever (RFC 1701).
pub(crate) const RESERVED_PROTOCOL: u16 = 0xffff;

/// Makes a packet socket receive nothing more, by binding it to a protocol that no packet has; so packets
/// cost no time. The socket is closed on exec, because the program does not know of it, and could not close
/// it.
pub(crate) fn stop_receiving(socket: c_int) {
    // SAFETY: numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointers describe `address` and its length. A socket that could not be bound anew would go
    // on receiving, and drop its packets: that only costs time.
    unsafe {
        libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC);
        if libc::getsockname(socket, (&raw mut address).cast(), &raw mut bytes) == 0 {
            // "No protocol", which is 0, would mean the present one (`packet_bind`).
            address.sll_protocol = RESERVED_PROTOCOL.to_be();
            libc::bind(socket, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
        }
    }
}
