//! Socket options that no crate knows, and classic filters.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// Sets an option.
///
/// # Safety
/// `option` takes a `T`, and every pointer in it is good for the call.
pub(super) unsafe fn set<T>(socket: &impl AsFd, level: i32, option: i32, value: &T) -> io::Result<()> {
    let bytes = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    let socket = socket.as_fd().as_raw_fd();
    // SAFETY: pointer and length describe `value`, which outlives the call; the rest by contract.
    let result = unsafe { libc::setsockopt(socket, level, option, std::ptr::from_ref(value).cast(), bytes) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Attaches a classic filter, in place of the one there.
pub(super) fn filter(socket: &impl AsFd, program: &mut [libc::sock_filter]) -> io::Result<()> {
    let len = program.len().try_into().expect("a short program");
    let program = libc::sock_fprog { len, filter: program.as_mut_ptr() };
    // SAFETY: the option takes a `sock_fprog`, whose instructions outlive the call.
    unsafe { set(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Attaches a filter that lets nothing through.
pub(super) fn deafen(socket: &impl AsFd) -> io::Result<()> {
    filter(socket, &mut [instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0)])
}

/// An instruction of a classic filter.
pub(super) const fn instruction(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt, jf, k }
}

/// Attaches a classic filter, in place of the one there.
#[cfg(any(feature = "fuzzing", all(test, not(nocopy_loom))))]
pub(crate) fn attach(socket: &impl AsFd, program: &nocopy_proto::filter::Program) -> io::Result<()> {
    let to_kernel = |instruction: &nocopy_proto::filter::Instruction| libc::sock_filter {
        code: instruction.code,
        jt: instruction.jump_true,
        jf: instruction.jump_false,
        k: instruction.constant,
    };
    filter(socket, &mut program.instructions().iter().map(to_kernel).collect::<Vec<_>>())
}
