//! Socket options missing in other crates, and classic filters.

#[cfg(feature = "port")]
mod filter;

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

#[cfg(feature = "port")]
pub(crate) use filter::attach_filter;
#[cfg(feature = "port")]
pub(super) use filter::{attach_reject_all_filter, classic_instruction};

/// Sets an option.
///
/// # Safety
/// `option` takes a `T`, and every pointer in it is valid for the call.
pub(super) unsafe fn set_option<T>(socket: &impl AsFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let bytes = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length describe `value`, which outlives the call; the rest by contract.
    let result = unsafe { libc::setsockopt(socket, level, option, std::ptr::from_ref(value).cast(), bytes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Lets the socket send from the program's memory.
pub(crate) fn allow_zero_copy(socket: &impl AsFd) -> io::Result<()> {
    // SAFETY: the option takes an `int`.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY, &1_i32) }
}

/// Whether the socket allows it already.
#[cfg(feature = "tcp")]
pub(crate) fn allows_zero_copy(socket: &impl AsFd) -> io::Result<bool> {
    // SAFETY: the option gives an `int`.
    Ok(unsafe { get_option::<libc::c_int>(socket, libc::SOL_SOCKET, libc::SO_ZEROCOPY)? } != 0)
}

/// Reads an option.
///
/// # Safety
/// `option` gives a `T`, of which all bytes are a value.
unsafe fn get_option<T: Default>(socket: &impl AsFd, level: i32, option: i32) -> io::Result<T> {
    let (mut value, mut bytes) = (T::default(), size_of::<T>() as libc::socklen_t);
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: the kernel writes at most `bytes` bytes to `value`, which outlives the call.
    let result = unsafe { libc::getsockopt(socket, level, option, (&raw mut value).cast(), &raw mut bytes) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}

/// A number that identifies the network namespace of a socket as long as this machine runs (Linux 5.14).
pub(crate) fn namespace_cookie(socket: &impl AsFd) -> io::Result<u64> {
    // SAFETY: the option gives a `u64`.
    unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_NETNS_COOKIE) }
}

/// The interface, or the VRF, that the socket is bound to (Linux 5.1).
pub(crate) fn bound_interface(socket: &impl AsFd) -> Option<u32> {
    // SAFETY: the option gives an `int`.
    let index: libc::c_int = unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX) }.ok()?;
    u32::try_from(index).ok().filter(|index| *index > 0)
}

/// Bytes that the kernel keeps for the socket besides its data (`SK_MEMINFO_OPTMEM`).
/// Errors: the kernel does not know the option, as Linux 4.12 does.
pub(crate) fn option_memory_bytes(socket: &impl AsFd) -> io::Result<u32> {
    // linux/sock_diag.h
    const SK_MEMINFO_OPTMEM: usize = 6;
    const SK_MEMINFO_VARS: usize = 9;
    // SAFETY: the option gives as many words as there is room for; all bits are values of them.
    let words: [u32; SK_MEMINFO_VARS] = unsafe { get_option(socket, libc::SOL_SOCKET, libc::SO_MEMINFO)? };
    Ok(words[SK_MEMINFO_OPTMEM])
}

/// Sets how long a receiving call waits: `None` is for ever. Rounded up to the kernel's clock ticks (1 to 10
/// ms). Panics if it is zero, which means for ever to the kernel.
pub(crate) fn set_receive_timeout(socket: &impl AsFd, timeout: Option<Duration>) -> io::Result<()> {
    let time = timeout.map_or(libc::timeval { tv_sec: 0, tv_usec: 0 }, |timeout| {
        assert!(!timeout.is_zero(), "a timeout of zero would be none");
        let rounded = timeout.saturating_add(Duration::from_nanos(999));
        libc::timeval {
            tv_sec: rounded.as_secs().try_into().unwrap_or(i64::MAX),
            tv_usec: rounded.subsec_micros().into(),
        }
    });
    // SAFETY: the option takes a `timeval`.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_RCVTIMEO, &time) }
}

/// Sets how many bytes must have arrived before a waiting thread is woken (`SO_RCVLOWAT`).
#[cfg(feature = "tcp")]
pub(super) fn set_receive_low_water(socket: &impl AsFd, bytes: usize) -> io::Result<()> {
    let bytes = libc::c_int::try_from(bytes).unwrap_or(libc::c_int::MAX);
    // SAFETY: the option takes an `int`.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_RCVLOWAT, &bytes) }
}

/// Sets the datagram size into which the kernel or the card cuts the socket's messages (`UDP_SEGMENT`).
#[cfg(test)]
pub(crate) fn set_segment_bytes(socket: &impl AsFd, bytes: i32) -> io::Result<()> {
    // SAFETY: the option takes an `int`.
    unsafe { set_option(socket, libc::SOL_UDP, libc::UDP_SEGMENT, &bytes) }
}
