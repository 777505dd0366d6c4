//! System calls, by what they do: `enum kind` of bpf/profile.bpf.c.

use libc::c_long;

/// Calls that a kernel may know; those of x86_64 end before.
pub(super) const NUMBERS: usize = 512;

/// In no call that is known: `io_uring`'s, or one that was under way when the window opened.
pub(super) const OUTSIDE: u8 = 0;
pub(super) const RECEIVE: u8 = 1;
pub(super) const SEND: u8 = 2;
pub(super) const POLL: u8 = 3;
/// Without the flags.
pub(super) const KIND: u64 = 0xf;
/// The result is a number of messages.
const MANY: u8 = 0x10;
/// From or to a pipe.
const SPLICE: u8 = 0x20;
/// `getsockopt(TCP_ZEROCOPY_RECEIVE)`: other options are left out by the programs.
const MAP: u8 = 0x40;
/// A descriptor may become another one's.
const CLOSE: u8 = 0x80;

#[cfg(target_arch = "x86_64")]
const CALLS: &[(c_long, u8)] = &[
    (libc::SYS_read, RECEIVE),
    (libc::SYS_readv, RECEIVE),
    (libc::SYS_recvfrom, RECEIVE),
    (libc::SYS_recvmsg, RECEIVE),
    (libc::SYS_recvmmsg, RECEIVE | MANY),
    (libc::SYS_splice, RECEIVE | SPLICE), // out of a socket, unless it is into one
    (libc::SYS_getsockopt, RECEIVE | MAP),
    (libc::SYS_write, SEND),
    (libc::SYS_writev, SEND),
    (libc::SYS_sendto, SEND),
    (libc::SYS_sendmsg, SEND),
    (libc::SYS_sendmmsg, SEND | MANY),
    (libc::SYS_sendfile, SEND),
    (libc::SYS_poll, POLL),
    (libc::SYS_ppoll, POLL),
    (libc::SYS_select, POLL),
    (libc::SYS_pselect6, POLL),
    (libc::SYS_epoll_wait, POLL),
    (libc::SYS_epoll_pwait, POLL),
    (libc::SYS_epoll_pwait2, POLL),
    (libc::SYS_close, CLOSE),
    (libc::SYS_close_range, CLOSE),
    (libc::SYS_dup2, CLOSE),
    (libc::SYS_dup3, CLOSE),
    (libc::SYS_execve, CLOSE),
    (libc::SYS_execveat, CLOSE),
];

/// Its numbers and registers are not known to the programs.
#[cfg(not(target_arch = "x86_64"))]
const CALLS: &[(c_long, u8)] = &[];

/// What each call does, by its number; nothing where the programs do not know the machine.
pub(super) fn kinds() -> Option<[u8; NUMBERS]> {
    let mut kinds = [0; NUMBERS];
    for (number, kind) in CALLS {
        kinds[usize::try_from(*number).expect("calls count from 0")] = *kind;
    }
    (!CALLS.is_empty()).then_some(kinds)
}

/// What the call of that number does.
pub(super) fn kind(number: c_long) -> Option<u8> {
    CALLS.iter().find(|(known, _)| *known == number).map(|(_, kind)| *kind)
}
