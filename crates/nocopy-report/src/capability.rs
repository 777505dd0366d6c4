//! Capabilities, given up as soon as they are not needed.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities, set_no_new_privs};

use crate::Failure;

/// Capabilities to open ports and packet sockets, and to make a lab (`CAP_SYS_ADMIN`). The doctor checks the
/// same ones.
pub const NETWORK: CapabilitySet = CapabilitySet::NET_RAW
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::BPF)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::IPC_LOCK);

/// Capabilities to see the sockets of other processes (`/proc/PID/fd`).
pub const OTHERS: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);

/// Capabilities that other recording programs need in addition when they run as root: to change their user,
/// even to root, and to write files.
pub const RECORDERS: CapabilitySet =
    CapabilitySet::SETUID.union(CapabilitySet::SETGID).union(CapabilitySet::DAC_OVERRIDE);

/// Capabilities that other file servers need in addition when they run as root: to change their user, to
/// listen at a low port, to read and open all files; and that the process needs which started a server as
/// another user, to give it files and to end it.
pub const FILE_SERVERS: CapabilitySet = RECORDERS
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::KILL);

/// For a process that only computes, prints, or uses open descriptors.
pub const NONE: CapabilitySet = CapabilitySet::empty();

/// Permanently gives up every capability of the calling thread except these; programs that it starts cannot
/// regain any.
///
/// The kernel keeps capabilities per thread, and a new thread gets those of the thread that starts it. So a
/// command calls this while it has one thread, and threads may call it again to give up more.
pub fn drop_all_but(kept: CapabilitySet) -> Result<(), Failure> {
    drop_others(kept).map_err(Failure::Capabilities)
}

/// [`drop_all_but`], for threads whose errors are the kernel's own.
pub fn drop_others(kept: CapabilitySet) -> io::Result<()> {
    set_no_new_privs(true)?;
    let held = capabilities(None)?;
    let effective = held.effective & kept;
    Ok(set_capabilities(
        None,
        CapabilitySets { effective, permitted: held.permitted & kept, inheritable: NONE },
    )?)
}
