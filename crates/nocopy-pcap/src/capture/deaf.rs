//! Packet sockets that are to receive nothing.

use std::ffi::c_int;

/// The EtherType that is reserved for ever (RFC 1701).
pub(crate) const NOBODYS_PROTOCOL: u16 = 0xffff;

/// Has a packet socket hear nothing more: bound to a protocol that no packet has, it costs nothing for each packet. Programs that are
/// executed do not get it: the program knows nothing of it, and could not close it before.
pub(crate) fn deafen(socket: c_int) {
    // SAFETY: numbers.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut bytes = size_of_val(&address) as libc::socklen_t;
    // SAFETY: the pointers describe `address` and its length. A socket that could not be bound anew would go on hearing, and lose
    // what it hears: that costs time, and nothing else.
    unsafe {
        libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC);
        if libc::getsockname(socket, (&raw mut address).cast(), &raw mut bytes) == 0 {
            // "No protocol", which is 0, would mean the present one (`packet_bind`).
            address.sll_protocol = NOBODYS_PROTOCOL.to_be();
            libc::bind(socket, (&raw const address).cast(), size_of_val(&address) as libc::socklen_t);
        }
    }
}
