//! Passing descriptors between processes (`SCM_RIGHTS`, unix(7)), and what they refer to.

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

/// The most descriptors read from a message: more than any of our messages has, so that too many are noticed.
const DESCRIPTORS_MAX: usize = 8;

/// Sends one message with descriptors; returns how many bytes of it were sent.
pub(crate) fn send_descriptors(
    stream: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(descriptors)), "room for {DESCRIPTORS_MAX}");
    // Without SIGPIPE if the peer has closed its end.
    Ok(retry_on_intr(|| sendmsg(stream, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL))?)
}

#[derive(Debug)]
pub(crate) struct ReceivedDescriptors {
    pub(crate) bytes: usize,
    pub(crate) descriptors: Vec<OwnedFd>,
    /// Whether it had more descriptors than fit: the kernel has closed the others.
    pub(crate) cut: bool,
}

/// Receives one message of at most `buffer` bytes; waits for it as the socket is set to.
pub(crate) fn receive_descriptors(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<ReceivedDescriptors> {
    receive_with_flags(stream, buffer, RecvFlags::empty())
}

/// As [`receive_descriptors`], without waiting: other processes with this socket could otherwise make this
/// one wait.
pub(crate) fn try_receive_descriptors(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
) -> io::Result<ReceivedDescriptors> {
    receive_with_flags(stream, buffer, RecvFlags::DONTWAIT)
}

fn receive_with_flags(
    stream: BorrowedFd<'_>,
    buffer: &mut [u8],
    flags: RecvFlags,
) -> io::Result<ReceivedDescriptors> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut parts = [IoSliceMut::new(buffer)];
    let flags = flags | RecvFlags::CMSG_CLOEXEC;
    let message = retry_on_intr(|| recvmsg(stream, &mut parts, &mut control, flags))?;
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    Ok(ReceivedDescriptors {
        bytes: message.bytes,
        descriptors: descriptors.flatten().collect(),
        cut: message.flags.contains(ReturnFlags::CTRUNC),
    })
}

/// The address family of a socket; `None` if it is not a socket.
pub(crate) fn socket_family(descriptor: &impl AsFd) -> Option<u16> {
    sockopt::socket_domain(descriptor).ok().map(rustix::net::AddressFamily::as_raw)
}

/// The kernel's description of a BPF object, read from `/proc` without bpf(2), which may be refused to this
/// process.
#[derive(Debug)]
pub(crate) struct FdInfo(String);

impl FdInfo {
    pub(crate) fn read(descriptor: &impl AsFd) -> io::Result<Self> {
        fs::read_to_string(proc_path("fdinfo", descriptor)).map(Self)
    }

    /// A line of proc_pid_fdinfo(5), such as `map_type`.
    pub(crate) fn text_value(&self, key: &str) -> Option<&str> {
        self.0.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
    }

    pub(crate) fn u32_value(&self, key: &str) -> Option<u32> {
        self.text_value(key)?.parse().ok()
    }
}

/// What a descriptor refers to, as text.
pub(crate) fn target_name(descriptor: &impl AsFd) -> String {
    fs::read_link(proc_path("fd", descriptor))
        .map_or_else(|_| "unknown".to_owned(), |target| target.to_string_lossy().into_owned())
}

fn proc_path(directory: &str, descriptor: &impl AsFd) -> PathBuf {
    format!("/proc/thread-self/{directory}/{}", descriptor.as_fd().as_raw_fd()).into()
}
