//! The runner's end of the channels to the preloaded library, in every process of the command.

#[cfg(test)]
mod filter_tests;

use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nocopy_proto::filter::Instruction;
use nocopy_proto::run::{
    CommandReply, DATAGRAM_BYTES_MAX, FilterRequest, JoinRequest, KEY_BYTES, LibraryMessage, clip_text,
    key_filter,
};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fstat;
use rustix::io::{Errno, FdFlags, fcntl_setfd, ioctl_fionread, retry_on_intr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendFlags,
    SocketAddrUnix, SocketFlags, SocketType, bind, getsockname, recvmsg, send, socket_with, socketpair,
    sockopt,
};
use rustix::rand::{GetRandomFlags, getrandom};

use socket2::{SockFilter, SockRef};

use super::controls::FilterControls;
use super::process_reports::{ChannelId, ProcessReports, ReportingProcess};

/// Processes that are listened to at a time. With all else that is kept it stays below the usual limit of
/// 1,024 descriptors.
const CHANNELS_MAX: usize = 256;

/// The most descriptors received with a message; valid messages have fewer.
const DESCRIPTORS_MAX: usize = 8;

/// Datagrams that are read from one socket before others, and signals, have their turn.
const READS_MAX: usize = 64;

/// The sockets of all processes that report to `nocopy run`.
#[derive(Debug)]
pub(super) struct Listener {
    /// Where processes join: by the socket that they inherit, until all of them have closed it, and by the
    /// address.
    join_sockets: Vec<JoinSocket>,
    channels: Vec<ProcessChannel>,
    key: u64,
    buffer: Vec<u8>,
    pub(super) reports: ProcessReports,
}

/// A socket where processes join.
#[derive(Debug)]
struct JoinSocket {
    socket: OwnedFd,
    /// Bytes before the message: of the key, which the kernel has compared already.
    key_bytes: usize,
}

#[derive(Debug)]
struct ProcessChannel {
    id: ChannelId,
    socket: OwnedFd,
    process: ReportingProcess,
    controls: FilterControls,
}

/// The result of one read of a socket.
enum ReceiveResult {
    /// A datagram of that many bytes, with descriptors.
    Datagram(usize, Vec<OwnedFd>),
    /// A datagram that is longer than any valid message.
    TooLong,
    Nothing,
    /// The other end is closed.
    End,
}

/// What the command gets to reach the listener.
#[derive(Debug)]
pub(super) struct ListenerAddress {
    /// The end of the socket that its processes inherit.
    pub(super) inherited: OwnedFd,
    /// The abstract name of the other socket.
    name: String,
    key: u64,
}

impl ListenerAddress {
    /// The value of the environment variable `NOCOPY_RUN_SOCKET`.
    pub(super) fn environment_value(&self) -> rustix::io::Result<String> {
        let Self { inherited, name, key } = self;
        // With its inode: a program that closes unknown descriptors may open something else with that number.
        Ok(format!("{}:{}:{name}:{key}", inherited.as_raw_fd(), fstat(inherited)?.st_ino))
    }
}

impl Listener {
    /// A listener, and what the command is to inherit.
    pub(super) fn new() -> io::Result<(Self, ListenerAddress)> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        fcntl_setfd(&theirs, FdFlags::empty())?;
        let mut key = [0; 8];
        getrandom(&mut key, GetRandomFlags::empty())?;
        let key = u64::from_ne_bytes(key);
        let named = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        // Before it has a name: descriptors of other users never arrive here. To close one may take as long
        // as they like.
        let filter = key_filter(key);
        let instruction =
            |one: &Instruction| SockFilter::new(one.code, one.jump_true, one.jump_false, one.constant);
        let filter: Vec<_> = filter.instructions().iter().map(instruction).collect();
        SockRef::from(&named).attach_filter(&filter)?;
        // Without a name the kernel gives it one of five digits.
        bind(&named, &SocketAddrUnix::new_unnamed())?;
        let name = SocketAddrUnix::try_from(getsockname(&named)?)?;
        let name = String::from_utf8_lossy(name.abstract_name().unwrap_or_default()).into_owned();
        let join_sockets = vec![
            JoinSocket { socket: ours, key_bytes: 0 },
            JoinSocket { socket: named, key_bytes: KEY_BYTES },
        ];
        let buffer = vec![0; KEY_BYTES + DATAGRAM_BYTES_MAX];
        let listener =
            Self { join_sockets, channels: Vec::new(), key, buffer, reports: ProcessReports::default() };
        Ok((listener, ListenerAddress { inherited: theirs, name, key }))
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        let join_sockets = self.join_sockets.iter().map(|join_socket| &join_socket.socket);
        join_sockets.chain(self.channels.iter().map(|channel| &channel.socket)).map(AsFd::as_fd)
    }

    /// Reads messages, and answers. Returns whether there may be more.
    pub(super) fn process_messages(&mut self) -> bool {
        let mut more = self.receive_joins();
        let mut channels = std::mem::take(&mut self.channels);
        let mut controls = channels.iter().map(|channel| channel.controls.control_count()).sum();
        let mut ended = Vec::new();
        channels.retain_mut(|channel| {
            let has_more = self.read_channel(channel, &mut controls);
            more |= has_more == Some(true);
            if has_more.is_none() {
                ended.push(channel.id);
            }
            has_more.is_some()
        });
        // Unless it has joined again.
        ended.retain(|id| channels.iter().all(|channel| channel.id != *id));
        ended.into_iter().for_each(|id| self.reports.on_process_ended(id));
        self.channels = channels;
        more
    }

    fn receive_joins(&mut self) -> bool {
        let mut more = false;
        let mut join_sockets = std::mem::take(&mut self.join_sockets);
        join_sockets.retain(|join_socket| {
            let has_more = self.receive_joins_at(join_socket);
            more |= has_more == Some(true);
            has_more.is_some()
        });
        self.join_sockets = join_sockets;
        more
    }

    /// Returns whether there may be more, `None` if nobody can join there any more.
    fn receive_joins_at(&mut self, join_socket: &JoinSocket) -> Option<bool> {
        for _ in 0..READS_MAX {
            match receive_datagram(&join_socket.socket, &mut self.buffer) {
                ReceiveResult::Datagram(bytes, descriptors) => {
                    self.handle_join(join_socket.key_bytes..bytes, descriptors)
                }
                ReceiveResult::TooLong => self.reports.count_malformed("a datagram too long to be a message"),
                ReceiveResult::Nothing => return Some(false),
                ReceiveResult::End => return None,
            }
        }
        Some(true)
    }

    fn handle_join(&mut self, message: Range<usize>, descriptors: Vec<OwnedFd>) {
        let join = match LibraryMessage::parse(self.buffer.get(message).unwrap_or_default()) {
            Ok(LibraryMessage::Join(join)) => join,
            Ok(_) => return self.reports.count_malformed("a message of a process that has not joined"),
            Err(why) => return self.reports.count_malformed(why),
        };
        let Ok([socket]) = <[OwnedFd; 1]>::try_from(descriptors) else {
            return self.reports.count_malformed("a process that joined without one socket to talk by");
        };
        if sockopt::socket_domain(&socket) != Ok(AddressFamily::UNIX)
            || sockopt::socket_type(&socket) != Ok(SocketType::SEQPACKET)
        {
            return self.reports.count_malformed("a process that joined with a socket of another kind");
        }
        if join.key != self.key {
            return self.reports.count_malformed("a process that joined with another key");
        }
        if self.channels.len() >= CHANNELS_MAX {
            return self
                .reports
                .count_malformed(format_args!("more than {CHANNELS_MAX} processes at a time"));
        }
        let channel = join.channel;
        let process = joined_process(&socket, join);
        let id = ChannelId { process: process.id, channel };
        self.reports.on_process_joined(id);
        self.channels.push(ProcessChannel { id, socket, process, controls: FilterControls::default() });
    }

    /// Reads a channel; returns whether there may be more, `None` if the process has ended. `controls` are
    /// those of all processes.
    fn read_channel(&mut self, channel: &mut ProcessChannel, controls: &mut usize) -> Option<bool> {
        for _ in 0..READS_MAX {
            match receive_datagram(&channel.socket, &mut self.buffer) {
                ReceiveResult::Datagram(bytes, descriptors) => {
                    match LibraryMessage::parse(&self.buffer[..bytes]) {
                        Ok(message) => {
                            let before = channel.controls.control_count();
                            self.handle_message(channel, *controls, message, descriptors);
                            *controls = *controls - before + channel.controls.control_count();
                        }
                        Err(why) => self.reports.count_malformed(why),
                    }
                }
                ReceiveResult::TooLong => self.reports.count_malformed("a datagram too long to be a message"),
                ReceiveResult::Nothing => return Some(false),
                ReceiveResult::End => return None,
            }
        }
        Some(true)
    }

    fn handle_message(
        &mut self,
        channel: &mut ProcessChannel,
        controls: usize,
        message: LibraryMessage,
        descriptors: Vec<OwnedFd>,
    ) {
        match message {
            LibraryMessage::Opened(opened) => {
                self.reports.on_handle_opened(channel.id, &channel.process, opened)
            }
            LibraryMessage::Filter { handle, place } => {
                self.reports.on_filter_location(channel.id, handle, place)
            }
            LibraryMessage::Inherited { handle, channel: from } => {
                self.reports.on_handle_inherited(channel.id, &channel.process, handle, from);
            }
            LibraryMessage::Closed(closed) => {
                channel.controls.remove_control(closed.handle);
                self.reports.on_handle_closed(channel.id, closed);
            }
            LibraryMessage::Control { handle } => {
                if let Err(why) = channel.controls.insert_control(handle, controls, descriptors) {
                    self.reports.count_malformed(why);
                }
            }
            // Not sent, it is not waited for: then nothing is asked.
            LibraryMessage::Call { request } => _ = channel.send_reply(&CommandReply::Ready { request }),
            LibraryMessage::FilterRequest(request) => channel.answer_filter_request(&request),
            LibraryMessage::Join(_) => self.reports.count_malformed("a process that joined twice"),
        }
    }
}

impl ProcessChannel {
    fn answer_filter_request(&mut self, request: &FilterRequest) {
        let number = request.request;
        let reply = match self.controls.load_filter(request) {
            Ok(()) => CommandReply::Loaded { request: number },
            Err(why) => CommandReply::Refused { request: number, why: clip_text(&why.to_string()) },
        };
        if !self.send_reply(&reply) {
            self.controls.unload_filter(request.handle);
        }
    }

    /// Returns whether it will be read, unless the process ends.
    fn send_reply(&self, reply: &CommandReply) -> bool {
        let datagram = reply.datagram().expect("its text is clipped");
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        retry_on_intr(|| send(&self.socket, &datagram, flags)).is_ok()
    }
}

/// The process that has joined, by the kernel's number for the maker of the socket: it is that of this PID
/// namespace, while the process may know itself by another one.
fn joined_process(socket: &OwnedFd, join: JoinRequest) -> ReportingProcess {
    let maker = sockopt::socket_peercred(socket).ok().map(|maker| maker.pid.as_raw_nonzero().get());
    ReportingProcess { id: maker.map_or(join.process, i32::unsigned_abs), program: join.program }
}

fn receive_datagram(socket: &OwnedFd, buffer: &mut [u8]) -> ReceiveResult {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let message = match retry_on_intr(|| recvmsg(socket, &mut [IoSliceMut::new(buffer)], &mut control, flags))
    {
        Ok(message) => message,
        Err(Errno::AGAIN) => return ReceiveResult::Nothing,
        // Reported once, if the process ended without reading an answer: its earlier messages are still
        // there.
        Err(Errno::CONNRESET) => return receive_datagram(socket, buffer),
        Err(_) => return ReceiveResult::End,
    };
    let descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptors: Vec<_> = descriptors.flatten().collect();
    match message.bytes {
        _ if message.flags.contains(ReturnFlags::TRUNC) => ReceiveResult::TooLong,
        0 if is_socket_at_end(socket) => ReceiveResult::End,
        bytes => ReceiveResult::Datagram(bytes, descriptors),
    }
}

/// Whether the other end is closed and nothing is left: an empty datagram looks the same, and any process can
/// send one.
fn is_socket_at_end(socket: &OwnedFd) -> bool {
    let mut end = [PollFd::new(socket, PollFlags::RDHUP)];
    let at_once = Timespec::default();
    let is_closed = retry_on_intr(|| poll(&mut end, Some(&at_once)));
    // Read after that: nothing more arrives.
    is_closed != Ok(0) && !matches!(ioctl_fionread(socket), Ok(1..))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use nocopy_proto::run::{self, CapturingLibrary, ClosedHandle, HandleCounts, OpenedHandle, VERSION};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, connect, sendmsg};

    use super::super::process_reports::HandleState;
    use super::*;

    fn join_listener(listener: &Listener, shared: &OwnedFd, by_address: bool) -> OwnedFd {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (key, channel, program) = (listener.key, 5, "test".into());
        let message =
            LibraryMessage::Join(JoinRequest { version: VERSION, process: 1, program, key, channel });
        let datagram = message.datagram().unwrap();
        let datagram = if by_address { run::with_key(key, &datagram) } else { datagram };
        let descriptors = [theirs.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(shared, &[IoSlice::new(&datagram)], &mut control, SendFlags::empty()).unwrap();
        ours
    }

    fn send_opened_message(channel: &OwnedFd, handle: u64) {
        let library = CapturingLibrary::System { why: "a test".into() };
        let opened =
            OpenedHandle { handle, interface: "lo".into(), library, promiscuous: false, snap_bytes: 96 };
        send(channel, &LibraryMessage::Opened(opened).datagram().unwrap(), SendFlags::empty()).unwrap();
    }

    #[test]
    fn a_process_can_join_by_the_address_repeatedly() {
        let (mut listener, theirs) = Listener::new().unwrap();
        let address = SocketAddrUnix::new_abstract_name(theirs.name.as_bytes()).unwrap();
        let by_address =
            || socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
        let join = |listener: &Listener| {
            let socket = by_address();
            connect(&socket, &address).unwrap();
            join_listener(listener, &socket, true)
        };
        let first = join(&listener);
        send_opened_message(&first, 0);
        assert!(!listener.process_messages());
        drop(first);
        // Whether its end is known already or not.
        for is_known in [true, false] {
            if is_known {
                assert!(!listener.process_messages());
                assert!(matches!(listener.reports.handles[0].state, HandleState::ProcessEnded));
            }
            let again = join(&listener);
            assert!(!listener.process_messages());
            assert!(matches!(listener.reports.handles[0].state, HandleState::Open));
            drop(again);
        }
        let last = join(&listener);
        let closed = ClosedHandle { handle: 0, counts: HandleCounts::default(), sending: None };
        send(&last, &LibraryMessage::Closed(closed).datagram().unwrap(), SendFlags::empty()).unwrap();
        drop(last);
        assert!(!listener.process_messages());
        assert!(matches!(listener.reports.handles[0].state, HandleState::Closed(_)));
        assert_eq!((listener.reports.malformed, listener.reports.handles.len()), (0, 1));
    }

    #[test]
    fn empty_datagrams_close_no_channel() {
        let (mut listener, ListenerAddress { inherited: theirs, .. }) = Listener::new().unwrap();
        send(&theirs, &[], SendFlags::empty()).unwrap();
        let channel = join_listener(&listener, &theirs, false);
        send(&channel, &[], SendFlags::empty()).unwrap();
        send_opened_message(&channel, 0);
        assert!(!listener.process_messages());
        assert_eq!((listener.reports.malformed, listener.reports.handles.len()), (2, 1));
        send(&channel, &LibraryMessage::Call { request: 7 }.datagram().unwrap(), SendFlags::empty()).unwrap();
        assert!(!listener.process_messages());
        let mut reply = [0; 64];
        let (bytes, _) = rustix::net::recv(&channel, &mut reply[..], RecvFlags::DONTWAIT).unwrap();
        assert_eq!(CommandReply::parse(&reply[..bytes]).unwrap(), CommandReply::Ready { request: 7 });
        // Messages before the end are read, also after another, and if an answer was left unread.
        let reply = CommandReply::Loaded { request: 0 }.datagram().unwrap();
        send(&listener.channels[0].socket, &reply, SendFlags::empty()).unwrap();
        send(&channel, &[], SendFlags::empty()).unwrap();
        send_opened_message(&channel, 1);
        drop(channel);
        drop(theirs);
        assert!(!listener.process_messages());
        assert_eq!((listener.reports.malformed, listener.reports.handles.len()), (3, 2));
        assert_eq!(listener.descriptors().count(), 1, "the address alone");
    }
}
