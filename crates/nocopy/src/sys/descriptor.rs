//! Descriptors that go from process to process (`SCM_RIGHTS`, unix(7)), and what they are.

use std::fs;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;

use rustix::io::retry_on_intr;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg, sockopt,
};

/// Descriptors a message may have: more than any message of ours, so that too many can be told from the right number.
const DESCRIPTORS_MAX: usize = 8;

/// Sends one message with descriptors; returns how many bytes of it went.
pub(crate) fn send(
    stream: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "room for {DESCRIPTORS_MAX}");
    // Without a signal should nobody read any more.
    Ok(retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?)
}

/// What one message brought.
#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) bytes: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Whether it had more descriptors than could be taken: the kernel has closed those.
    pub(crate) cut: bool,
}

/// Receives one message of at most `buffer` bytes; waits for it as the socket is set to.
pub(crate) fn receive(stream: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(stream, buffer, RecvFlags::empty())
}

/// As [`receive`], of what is there: whoever else has the socket cannot make this one wait by what it sets, or reads.
pub(crate) fn receive_at_once(stream: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Received> {
    receive_with(stream, buffer, RecvFlags::DONTWAIT)
}

fn receive_with(stream: BorrowedFd<'_>, buffer: &mut [u8], flags: RecvFlags) -> io::Result<Received> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = retry_on_intr(|| recvmsg(stream, &mut parts, &mut control, flags))?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(Received {
        bytes: message.bytes,
        descriptors: descriptors.flatten().collect(),
        cut: message.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// The address family of a socket; `None` if it is none.
pub(crate) fn socket_family(descriptor: &impl AsFd) -> Option<u16> {
    sockopt::socket_domain(descriptor).ok().map(rustix::net::AddressFamily::as_raw)
}

/// What the kernel says of a BPF object to whoever holds it, without bpf(2), which may be refused to this process.
#[derive(Debug)]
pub(crate) struct Description(String);

impl Description {
    pub(crate) fn of(descriptor: &impl AsFd) -> io::Result<Self> {
        fs::read_to_string(place("fdinfo", descriptor)).map(Self)
    }

    /// A line of proc_pid_fdinfo(5), such as `map_type`.
    pub(crate) fn word(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
    }

    pub(crate) fn number(&self, key: &str) -> Option<u32> {
        self.word(key)?.parse().ok()
    }
}

/// What a descriptor is open on, for people.
pub(crate) fn name(descriptor: &impl AsFd) -> String {
    fs::read_link(place("fd", descriptor))
        .map_or_else(|_| "unknown".to_owned(), |target| target.to_string_lossy().into_owned())
}

fn place(directory: &str, descriptor: &impl AsFd) -> PathBuf {
    format!("/proc/thread-self/{directory}/{}", descriptor.as_fd().as_raw_fd()).into()
}
