//! System calls by kind: `enum kind` of bpf/profile.bpf.c.

use libc::c_long;

/// The size of the table of system calls; x86_64 and aarch64 have fewer.
pub(super) const NUMBERS: usize = 512;

/// Outside of known calls: calls of `io_uring`, or calls that had begun before the window.
pub(super) const OUTSIDE: u8 = 0;
pub(super) const RECEIVE: u8 = 1;
pub(super) const SEND: u8 = 2;
pub(super) const POLL: u8 = 3;
/// The bits of the kind, without the flags.
pub(super) const KIND: u64 = 0xf;
/// The result is a number of messages.
const MANY: u8 = 0x10;
/// The call moves bytes from or to a pipe.
const SPLICE: u8 = 0x20;
/// `getsockopt(TCP_ZEROCOPY_RECEIVE)`; the BPF programs ignore other options.
const MAP: u8 = 0x40;
/// The call may replace a descriptor by another.
const CLOSE: u8 = 0x80;

/// Calls of every machine, by this machine's numbers.
const CALLS: [(c_long, u8); 22] = [
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
    (libc::SYS_ppoll, POLL),
    (libc::SYS_pselect6, POLL),
    (libc::SYS_epoll_pwait, POLL),
    (libc::SYS_epoll_pwait2, POLL),
    (libc::SYS_close, CLOSE),
    (libc::SYS_close_range, CLOSE),
    (libc::SYS_dup3, CLOSE),
    (libc::SYS_execve, CLOSE),
    (libc::SYS_execveat, CLOSE),
];

/// Calls that only exist on older architectures.
#[cfg(target_arch = "x86_64")]
const OLD_CALLS: &[(c_long, u8)] = &[
    (libc::SYS_poll, POLL),
    (libc::SYS_select, POLL),
    (libc::SYS_epoll_wait, POLL),
    (libc::SYS_dup2, CLOSE),
];
#[cfg(not(target_arch = "x86_64"))]
const OLD_CALLS: &[(c_long, u8)] = &[];

/// Whether the programs know this machine's registers.
const IS_KNOWN: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));

fn counted_calls() -> impl Iterator<Item = &'static (c_long, u8)> {
    CALLS.iter().chain(OLD_CALLS)
}

/// The kind of each call by number; `None` if the BPF programs do not support this architecture.
pub(super) fn kinds_by_call_number() -> Option<[u8; NUMBERS]> {
    let mut kinds = [0; NUMBERS];
    for (number, kind) in counted_calls() {
        kinds[usize::try_from(*number).expect("calls count from 0")] = *kind;
    }
    IS_KNOWN.then_some(kinds)
}

pub(super) fn kind_of_call(number: c_long) -> Option<u8> {
    counted_calls().find(|(known, _)| *known == number).map(|(_, kind)| *kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counted_call_has_its_own_syscall_number() {
        let kinds = kinds_by_call_number().unwrap();
        assert_eq!(kinds.iter().filter(|kind| **kind != OUTSIDE).count(), counted_calls().count());
        assert!(
            counted_calls()
                .all(|(number, _)| kind_of_call(*number) == Some(kinds[usize::try_from(*number).unwrap()]))
        );
    }
}
