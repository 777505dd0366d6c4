//! Filters of packet sockets, and of others.

use std::io;
use std::os::fd::AsFd;

use nocopy_proto::filter::Instruction;

use super::set_option;

/// Attaches a classic filter, replacing the current one.
pub(crate) fn attach_filter(socket: &impl AsFd, program: &[Instruction]) -> io::Result<()> {
    let Ok(len) = program.len().try_into() else { return Err(io::ErrorKind::InvalidInput.into()) };
    // The kernel only reads them.
    let program = libc::sock_fprog { len, filter: program.as_ptr().cast_mut().cast() };
    // SAFETY: the option takes a `sock_fprog`, whose instructions outlive the call and are laid out as
    // `sock_filter` is.
    unsafe { set_option(socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program) }
}

/// Attaches a filter that rejects everything.
pub(in crate::sys) fn attach_reject_all_filter(socket: &impl AsFd) -> io::Result<()> {
    attach_filter(socket, &[classic_instruction(libc::BPF_RET | libc::BPF_K, 0, 0, 0)])
}

pub(in crate::sys) const fn classic_instruction(
    code: u32,
    jump_true: u8,
    jump_false: u8,
    constant: u32,
) -> Instruction {
    Instruction { code: code as u16, jump_true, jump_false, constant }
}
