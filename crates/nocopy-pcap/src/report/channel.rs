//! A process's own channel to `nocopy run`.

use std::io::{self, IoSlice};
use std::mem::{ManuallyDrop, MaybeUninit};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nocopy_proto::filter::Program;
use nocopy_proto::run::{
    CommandReply, FilterRequest, JoinRequest, LibraryMessage, MalformedDatagram, with_key,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix,
    SocketFlags, SocketType, recv, send, sendmsg, sendmsg_addr, shutdown, socket_with, socketpair,
};

use super::FilterRefusal;
use crate::environment::RunnerAddress;
use crate::timed_wait::lock_within;

/// How long `nocopy run` may take to answer, and the requests of other threads before this one.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

/// More bytes than any reply has.
const REPLY_BYTES: usize = 16 << 10;

/// Without waiting, and without a signal if the socket is closed.
const NO_WAIT: SendFlags = SendFlags::DONTWAIT.union(SendFlags::NOSIGNAL);

#[derive(Debug)]
pub(super) struct RunnerChannel {
    socket: InodeCheckedSocket,
    /// Its number for `nocopy run`.
    pub(super) number: u64,
    requests: AtomicU64,
    /// Held from a request to its reply.
    request_lock: Mutex<()>,
    /// Whether a request was not answered; then no more are made.
    is_silent: AtomicBool,
}

impl RunnerChannel {
    /// Joins by the socket that all processes share or, if the program has closed it, by the address.
    pub(super) fn open(runner: &RunnerAddress, join: JoinRequest) -> io::Result<Self> {
        let (ours, theirs) = socket_pair()?;
        let (number, key) = (join.channel, join.key);
        let datagram = LibraryMessage::Join(join).datagram().map_err(io::Error::other)?;
        match runner.inherited {
            Some(shared) => send_with_descriptor(shared, None, &datagram, theirs.as_fd())?,
            None => {
                let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
                let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
                let address = SocketAddrUnix::new_abstract_name(runner.name.as_bytes())?;
                send_with_descriptor(
                    socket.as_fd(),
                    Some(&address),
                    &with_key(key, &datagram),
                    theirs.as_fd(),
                )?;
            }
        }
        let (requests, request_lock, is_silent) = (AtomicU64::new(0), Mutex::new(()), AtomicBool::new(false));
        Ok(Self { socket: InodeCheckedSocket::new(ours)?, number, requests, request_lock, is_silent })
    }

    /// Whether the program has left its socket open.
    pub(super) fn is_open(&self) -> bool {
        self.socket.get_if_open().is_some()
    }

    pub(super) fn send_message(&self, message: &LibraryMessage) {
        if let (Some(socket), Ok(datagram)) = (self.socket.get_if_open(), message.datagram()) {
            let _ = retry_on_intr(|| send(socket, &datagram, NO_WAIT));
        }
    }

    /// Sends the handle and what `put` sends together, so that no other message comes between.
    pub(super) fn send_control(&self, handle: u64, put: impl FnOnce(BorrowedFd<'_>) -> bool) {
        let (Some(socket), Ok((ours, theirs))) = (self.socket.get_if_open(), socket_pair()) else { return };
        let Ok(datagram) = LibraryMessage::Control { handle }.datagram() else { return };
        if put(ours.as_fd()) {
            let _ = send_with_descriptor(socket, None, &datagram, theirs.as_fd());
        }
    }

    /// Asks for a filter, and waits for the answer.
    pub(super) fn request_filter(&self, handle: u64, filter: Option<&Program>) -> Result<(), FilterRefusal> {
        self.request_filter_within(handle, filter, REPLY_TIMEOUT)
    }

    fn request_filter_within(
        &self,
        handle: u64,
        filter: Option<&Program>,
        timeout: Duration,
    ) -> Result<(), FilterRefusal> {
        // Its holder may have been left by siglongjmp(3).
        let _request_lock = lock_within(&self.request_lock, timeout).ok_or_else(no_reply_error)?;
        let socket = self.socket.get_if_open().filter(|_| !self.is_silent.load(Ordering::Relaxed));
        let socket = socket.ok_or_else(no_reply_error)?;
        let request = self.requests.fetch_add(1, Ordering::Relaxed);
        let malformed = |malformed: MalformedDatagram| FilterRefusal::Unchanged(malformed.to_string());
        // Nothing is requested before the runner has answered once: nearly always one that answers now also
        // does so a moment later.
        let call = LibraryMessage::Call { request }.datagram().map_err(malformed)?;
        retry_on_intr(|| send(socket, &call, NO_WAIT)).map_err(|_| no_reply_error())?;
        if await_reply(socket, request, timeout).is_none() {
            self.is_silent.store(true, Ordering::Relaxed);
            return Err(no_reply_error());
        }
        let instructions = filter.map(|filter| filter.instructions().to_vec());
        let message = LibraryMessage::FilterRequest(FilterRequest { handle, request, instructions });
        let datagram = message.datagram().map_err(malformed)?;
        retry_on_intr(|| send(socket, &datagram, NO_WAIT)).map_err(|_| no_reply_error())?;
        match await_reply(socket, request, timeout) {
            Some(CommandReply::Loaded { .. }) => Ok(()),
            Some(CommandReply::Refused { why, .. }) => Err(FilterRefusal::Unchanged(why)),
            Some(CommandReply::Ready { .. }) | None => {
                self.is_silent.store(true, Ordering::Relaxed);
                // The runner removes a filter whose answer it cannot deliver.
                let _ = shutdown(socket, Shutdown::Read);
                Err(FilterRefusal::Uncertain)
            }
        }
    }
}

fn no_reply_error() -> FilterRefusal {
    FilterRefusal::Unchanged(
        "loading it takes privileges that the program has given up, and 'nocopy run' does not answer".into(),
    )
}

/// The reply to a request; `None` if the socket is closed, or the reply does not arrive in time.
fn await_reply(socket: BorrowedFd<'_>, request: u64, timeout: Duration) -> Option<CommandReply> {
    let deadline = Instant::now() + timeout;
    let mut buffer = vec![0; REPLY_BYTES];
    loop {
        match retry_on_intr(|| recv(socket, &mut buffer[..], RecvFlags::DONTWAIT)) {
            Ok((_, 0)) => return None,
            Ok((bytes, _)) => match CommandReply::parse(&buffer[..bytes]) {
                Ok(reply) if reply.request_number() == request => return Some(reply),
                _ => {}
            },
            Err(Errno::AGAIN) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return None;
                }
                let left = Timespec::try_from(left).ok();
                // A signal is the program's affair, and this is soon over.
                let _ = poll(&mut [PollFd::new(&socket, PollFlags::IN)], left.as_ref());
            }
            Err(_) => return None,
        }
    }
}

fn socket_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?)
}

fn send_with_descriptor(
    socket: BorrowedFd<'_>,
    to: Option<&SocketAddrUnix>,
    datagram: &[u8],
    descriptor: BorrowedFd<'_>,
) -> io::Result<()> {
    let descriptors = [descriptor];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)), "room for one");
    let parts = [IoSlice::new(datagram)];
    retry_on_intr(|| match to {
        Some(to) => sendmsg_addr(socket, to, &parts, &mut control, NO_WAIT),
        None => sendmsg(socket, &parts, &mut control, NO_WAIT),
    })?;
    Ok(())
}

/// The library's socket among the descriptors of a program. The program may close descriptors that it does
/// not know, and reuse the number for another file, which this never touches.
#[derive(Debug)]
struct InodeCheckedSocket {
    descriptor: ManuallyDrop<OwnedFd>,
    inode: u64,
}

impl InodeCheckedSocket {
    fn new(descriptor: OwnedFd) -> io::Result<Self> {
        let inode = fstat(&descriptor)?.st_ino;
        Ok(Self { descriptor: ManuallyDrop::new(descriptor), inode })
    }

    /// The socket, if it still exists. Sockets of all kinds have their inodes in one file system, so the
    /// number identifies it.
    fn get_if_open(&self) -> Option<BorrowedFd<'_>> {
        let status = fstat(&*self.descriptor).ok()?;
        let is_socket = rustix::fs::FileType::from_raw_mode(status.st_mode).is_socket();
        (is_socket && status.st_ino == self.inode).then(|| self.descriptor.as_fd())
    }
}

impl Drop for InodeCheckedSocket {
    fn drop(&mut self) {
        if self.get_if_open().is_some() {
            // SAFETY: taken once, here, and not used again.
            drop(unsafe { ManuallyDrop::take(&mut self.descriptor) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSliceMut;
    use std::os::fd::AsRawFd;
    use std::thread;

    use nocopy_proto::run::{ClosedHandle, HandleCounts, VERSION, clip_text};
    use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, bind, getsockname, recvmsg};

    use super::*;

    /// A channel, and the end that `nocopy run` has.
    fn joined_channel() -> (RunnerChannel, OwnedFd) {
        let (theirs, shared) = socket_pair().unwrap();
        let join = JoinRequest { version: VERSION, process: 7, program: "test".into(), key: 8, channel: 9 };
        // SAFETY: open until the end of this function, and not used afterwards.
        let inherited = Some(unsafe { BorrowedFd::borrow_raw(shared.as_raw_fd()) });
        let runner = RunnerAddress { inherited, name: String::new(), key: 8 };
        let channel = RunnerChannel::open(&runner, join.clone()).unwrap();
        let (message, mut descriptors) = receive_message(&theirs);
        assert_eq!(message, LibraryMessage::Join(join));
        (channel, descriptors.pop().unwrap())
    }

    #[test]
    fn a_process_without_the_inherited_socket_joins_by_the_address() {
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC);
        let listener = socket_with(family, SocketType::DGRAM, flags, None).unwrap();
        bind(&listener, &SocketAddrUnix::new_unnamed()).unwrap();
        let address = SocketAddrUnix::try_from(getsockname(&listener).unwrap()).unwrap();
        let name = String::from_utf8(address.abstract_name().unwrap().to_vec()).unwrap();
        let join = JoinRequest { version: VERSION, process: 7, program: "test".into(), key: 8, channel: 9 };
        let channel =
            RunnerChannel::open(&RunnerAddress { inherited: None, name, key: 8 }, join.clone()).unwrap();
        let (bytes, descriptors) = receive_bytes(&listener);
        assert_eq!(bytes, with_key(8, &LibraryMessage::Join(join).datagram().unwrap()));
        assert_eq!(descriptors.len(), 1);
        let closed = LibraryMessage::Closed(ClosedHandle {
            handle: 1,
            counts: HandleCounts::default(),
            sending: None,
        });
        channel.send_message(&closed);
        assert_eq!(receive_message(&descriptors[0]).0, closed);
    }

    fn receive_message(socket: &OwnedFd) -> (LibraryMessage, Vec<OwnedFd>) {
        let (bytes, descriptors) = receive_bytes(socket);
        (LibraryMessage::parse(&bytes).unwrap(), descriptors)
    }

    fn receive_bytes(socket: &OwnedFd) -> (Vec<u8>, Vec<OwnedFd>) {
        let wait = Timespec::try_from(Duration::from_secs(60)).unwrap();
        assert_eq!(poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&wait)), Ok(1));
        let (mut bytes, mut space) =
            (vec![0; 64 << 10], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(4))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let count = recvmsg(socket, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap().bytes;
        let descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptors = descriptors.flatten().collect();
        bytes.truncate(count);
        (bytes, descriptors)
    }

    fn accept_all_filter() -> Program {
        Program::parse("1,6 0 0 65535,").unwrap()
    }

    #[test]
    fn a_request_is_answered_by_its_own_reply() {
        let (channel, theirs) = joined_channel();
        let runner = thread::spawn(move || {
            for loads in [true, false] {
                let (LibraryMessage::Call { request }, _) = receive_message(&theirs) else {
                    panic!("a call")
                };
                send(&theirs, &CommandReply::Ready { request }.datagram().unwrap(), NO_WAIT).unwrap();
                let (LibraryMessage::FilterRequest(asked), _) = receive_message(&theirs) else {
                    panic!("a request")
                };
                assert_eq!((asked.handle, asked.checked_program().unwrap()), (5, Some(accept_all_filter())));
                let request = asked.request;
                let stale = CommandReply::Loaded { request: request.wrapping_sub(1) };
                let reply = if loads {
                    CommandReply::Loaded { request }
                } else {
                    CommandReply::Refused { request, why: clip_text("too long") }
                };
                for reply in [stale, reply] {
                    send(&theirs, &reply.datagram().unwrap(), NO_WAIT).unwrap();
                }
            }
            theirs
        });
        assert_eq!(channel.request_filter(5, Some(&accept_all_filter())), Ok(()));
        assert_eq!(
            channel.request_filter(5, Some(&accept_all_filter())),
            Err(FilterRefusal::Unchanged("too long".into()))
        );
        runner.join().unwrap();
    }

    #[test]
    fn a_closed_channel_is_not_waited_for() {
        let (channel, theirs) = joined_channel();
        drop(theirs);
        let closed = ClosedHandle { handle: 1, counts: HandleCounts::default(), sending: None };
        // Without SIGPIPE, which would be seen only if it were not ignored: see run.rs.
        channel.send_message(&LibraryMessage::Closed(closed));
        assert_eq!(channel.request_filter(1, None), Err(no_reply_error()));
    }

    /// Otherwise a filter could be installed later although the program was told that it is not.
    #[test]
    fn a_silent_runner_gets_no_filter_request() {
        let (channel, theirs) = joined_channel();
        assert_eq!(
            channel.request_filter_within(1, Some(&accept_all_filter()), Duration::from_millis(1)),
            Err(no_reply_error())
        );
        assert_eq!(receive_message(&theirs).0, LibraryMessage::Call { request: 0 });
        assert_eq!(channel.request_filter(1, None), Err(no_reply_error()));
        assert_eq!(recv(&theirs, &mut [0; 64][..], RecvFlags::DONTWAIT), Err(Errno::AGAIN));
    }

    /// As a runner that is stopped between its two answers.
    #[test]
    fn an_unanswered_filter_request_is_uncertain() {
        let (channel, theirs) = joined_channel();
        send(&theirs, &CommandReply::Ready { request: 0 }.datagram().unwrap(), NO_WAIT).unwrap();
        let no_time = Duration::from_millis(1);
        assert_eq!(
            channel.request_filter_within(1, Some(&accept_all_filter()), no_time),
            Err(FilterRefusal::Uncertain)
        );
        assert_eq!(receive_message(&theirs).0, LibraryMessage::Call { request: 0 });
        assert!(matches!(receive_message(&theirs).0, LibraryMessage::FilterRequest(_)));
        let late = CommandReply::Loaded { request: 0 }.datagram().unwrap();
        assert_eq!(send(&theirs, &late, NO_WAIT), Err(Errno::PIPE), "the runner would keep the filter");
        assert_eq!(channel.request_filter(1, None), Err(no_reply_error()));
        channel.send_message(&LibraryMessage::Control { handle: 3 });
        assert_eq!(receive_message(&theirs).0, LibraryMessage::Control { handle: 3 }, "reports still arrive");
    }

    #[test]
    fn an_abandoned_request_delays_the_next_only_briefly() {
        let (channel, _theirs) = joined_channel();
        std::mem::forget(channel.request_lock.lock());
        assert_eq!(channel.request_filter_within(1, None, Duration::from_millis(1)), Err(no_reply_error()));
    }

    #[test]
    fn a_reused_descriptor_is_not_touched() {
        let (channel, _theirs) = joined_channel();
        let (other, mut read) = io::pipe().map(|(read, write)| (write, read)).unwrap();
        rustix::io::dup2(&other, &mut ManuallyDrop::new(descriptor_at_same_number(&channel.socket))).unwrap();
        channel.send_message(&LibraryMessage::Control { handle: 3 });
        assert_eq!(channel.request_filter(3, None), Err(no_reply_error()));
        let kept = descriptor_at_same_number(&channel.socket);
        drop(channel);
        // Still open, and nothing was written to it.
        io::Write::write_all(&mut io::PipeWriter::from(kept), b"x").unwrap();
        drop(other);
        let mut all = Vec::new();
        io::Read::read_to_end(&mut read, &mut all).unwrap();
        assert_eq!(all, b"x");
    }

    /// The descriptor that the program has at the socket's number.
    fn descriptor_at_same_number(socket: &InodeCheckedSocket) -> OwnedFd {
        use std::os::fd::{AsRawFd, FromRawFd};
        // SAFETY: the test's own, which closes it once.
        unsafe { OwnedFd::from_raw_fd(socket.descriptor.as_raw_fd()) }
    }
}
