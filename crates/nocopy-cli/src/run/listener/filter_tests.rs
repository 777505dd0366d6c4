//! The listener with processes that ask for filters, and with processes that send invalid messages.

use std::io::IoSlice;
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

use nocopy::{Mode, Port, filter};
use nocopy_lab::Lab;
use nocopy_proto::run::{ClosedHandle, HandleCounts, VERSION, with_key};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, Shutdown, connect, recv, sendmsg, shutdown};

use super::*;

const TIMEOUT: Duration = Duration::from_secs(60);

fn socket_pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap()
}

fn send_message(socket: &OwnedFd, message: &LibraryMessage, descriptors: &[BorrowedFd<'_>]) {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    let datagram = message.datagram().unwrap();
    sendmsg(socket, &[IoSlice::new(&datagram)], &mut control, SendFlags::NOSIGNAL).unwrap();
}

/// A process that has joined, represented by its socket.
fn join_listener(listener: &mut Listener, shared: &OwnedFd) -> OwnedFd {
    let (ours, theirs) = socket_pair();
    let (key, channel, program) = (listener.key, listener.channels.len() as u64, "test".into());
    let joining = JoinRequest { version: VERSION, process: 7, program, key, channel };
    send_message(shared, &LibraryMessage::Join(joining), &[theirs.as_fd()]);
    listener.process_messages();
    ours
}

fn request_filter(channel: &OwnedFd, handle: u64, words: &str) {
    let instructions = Some(filter::compile(words).unwrap().instructions().to_vec());
    send_message(
        channel,
        &LibraryMessage::FilterRequest(FilterRequest { handle, request: 1, instructions }),
        &[],
    );
}

fn receive_reply(listener: &mut Listener, channel: &OwnedFd) -> CommandReply {
    listener.process_messages();
    let mut buffer = vec![0; 4096];
    let (_, bytes) = recv(channel, &mut buffer[..], RecvFlags::DONTWAIT).unwrap();
    CommandReply::parse(&buffer[..bytes]).unwrap()
}

#[test]
fn invalid_messages_are_counted_and_ignored() {
    let (mut listener, ListenerAddress { inherited: shared, .. }) = Listener::new().unwrap();
    let closed = ClosedHandle { handle: 1, counts: HandleCounts::default(), sending: None };
    send_message(&shared, &LibraryMessage::Closed(closed), &[]);
    let (key, program) = (listener.key, "test".to_owned());
    let joining = JoinRequest { version: VERSION, process: 7, program, key, channel: 1 };
    let forged = LibraryMessage::Join(JoinRequest { key: key.wrapping_add(1), ..joining.clone() });
    let joining = LibraryMessage::Join(joining);
    send_message(&shared, &joining, &[]);
    let (stream, _other) = std::os::unix::net::UnixStream::pair().unwrap();
    send_message(&shared, &joining, &[stream.as_fd()]);
    let (_ours, theirs) = socket_pair();
    send_message(&shared, &forged, &[theirs.as_fd()]);
    send(&shared, b"noise", SendFlags::NOSIGNAL).unwrap();
    send(&shared, &vec![b' '; DATAGRAM_BYTES_MAX + 1], SendFlags::NOSIGNAL).unwrap();
    listener.process_messages();
    assert_eq!((listener.reports.malformed, listener.descriptors().count()), (6, 2));
    let channel = join_listener(&mut listener, &shared);
    request_filter(&channel, 3, "udp");
    let CommandReply::Refused { why, .. } = receive_reply(&mut listener, &channel) else {
        panic!("it has no control")
    };
    assert!(why.contains("opened by another process"), "{why}");
    let control = LibraryMessage::Control { handle: 3 };
    let (empty, _other) = socket_pair();
    send_message(&channel, &control, &[]);
    send_message(&channel, &control, &[empty.as_fd()]);
    listener.process_messages();
    assert_eq!(listener.reports.malformed, 8);
    drop(channel);
    listener.process_messages();
    assert_eq!(listener.descriptors().count(), 2);
}

/// Its sender may have arranged that closing them takes for ever.
#[test]
fn descriptors_with_a_wrong_key_never_arrive() {
    let (mut listener, theirs) = Listener::new().unwrap();
    let address = SocketAddrUnix::new_abstract_name(theirs.name.as_bytes()).unwrap();
    let other_socket =
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None).unwrap();
    connect(&other_socket, &address).unwrap();
    let (key, program) = (listener.key, "test".to_owned());
    let joining = JoinRequest { version: VERSION, process: 7, program, key: !key, channel: 1 };
    let joining = LibraryMessage::Join(joining).datagram().unwrap();
    let halves = [key ^ 1, key ^ 1 << 32];
    let datagrams =
        halves.map(|wrong| with_key(wrong, &joining)).into_iter().chain([joining.clone(), Vec::new()]);
    for datagram in datagrams {
        let (read, write) = rustix::pipe::pipe().unwrap();
        let descriptors = [write.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
        sendmsg(&other_socket, &[IoSlice::new(&datagram)], &mut control, SendFlags::DONTWAIT).unwrap();
        drop(write);
        let mut end = [PollFd::new(&read, PollFlags::IN)];
        poll(&mut end, Some(&Timespec::default())).unwrap();
        assert!(end[0].revents().contains(PollFlags::HUP), "it waits for the listener, which would close it");
    }
    listener.process_messages();
    assert_eq!((listener.reports.malformed, listener.descriptors().count()), (0, 2));
}

/// A port at `lab`'s right end whose filter a process has handed over, and that process.
fn port_with_control(lab: &Lab, listener: &mut Listener, shared: &OwnedFd) -> (Port, OwnedFd) {
    let queues = Port::builder(lab.right().interface()).mode(Mode::XdpCopyNative).open_queues(..).unwrap();
    let channel = join_listener(listener, shared);
    let (ours, theirs) = socket_pair();
    queues.filter_control().unwrap().send(&ours).unwrap();
    send_message(&channel, &LibraryMessage::Control { handle: 3 }, &[theirs.as_fd()]);
    (Vec::from(queues).remove(0), channel)
}

#[test]
fn a_control_is_received_while_its_filter_is_replaced() {
    const CONTROLS: u64 = 50;
    let Some(lab) = nocopy_lab::lab_or_skip() else { return };
    lab.right().namespace().run(|| {
        let queues =
            Port::builder(lab.right().interface()).mode(Mode::XdpCopyNative).open_queues(..).unwrap();
        let control = queues.filter_control().unwrap();
        let (mut listener, ListenerAddress { inherited: shared, .. }) = Listener::new().unwrap();
        let channel = join_listener(&mut listener, &shared);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let filter = filter::compile("udp port 9000").unwrap();
                while !is_over.load(Relaxed) {
                    control.set_filter(Some(&filter)).unwrap();
                }
            });
            for handle in 0..CONTROLS {
                let (ours, theirs) = socket_pair();
                control.send(&ours).unwrap();
                send_message(&channel, &LibraryMessage::Control { handle }, &[theirs.as_fd()]);
                listener.process_messages();
            }
            is_over.store(true, Relaxed);
        });
        assert_eq!(listener.reports.first_malformed, None);
        assert_eq!(listener.channels[0].controls.control_count() as u64, CONTROLS);
    });
}

#[test]
fn a_filter_is_removed_if_its_reply_is_not_delivered() {
    let Some(lab) = Lab::builder().gro_right(false).build_or_skip() else { return };
    let right = lab.right();
    let sender = lab.left().namespace().run(|| UdpSocket::bind((lab.left().ipv4(), 0)).unwrap());
    right.namespace().run(|| {
        let (mut listener, ListenerAddress { inherited: shared, .. }) = Listener::new().unwrap();
        let (mut port, channel) = port_with_control(&lab, &mut listener, &shared);
        let host = UdpSocket::bind((right.ipv4(), 9001)).unwrap();
        host.set_read_timeout(Some(TIMEOUT)).unwrap();
        request_filter(&channel, 4, "udp port 9000");
        assert!(
            matches!(receive_reply(&mut listener, &channel), CommandReply::Refused { .. }),
            "of another handle"
        );
        request_filter(&channel, 3, "udp port 9000");
        assert_eq!(receive_reply(&mut listener, &channel), CommandReply::Loaded { request: 1 });
        let another = join_listener(&mut listener, &shared);
        request_filter(&another, 3, "udp port 9001");
        assert!(
            matches!(receive_reply(&mut listener, &another), CommandReply::Refused { .. }),
            "of another process"
        );
        sender.send_to(b"host's", (right.ipv4(), 9001)).unwrap();
        assert_eq!(host.recv(&mut [0; 64]).unwrap(), 6);
        // It has given up waiting, and runs the filter itself.
        request_filter(&channel, 3, "udp port 9002");
        shutdown(&channel, Shutdown::Read).unwrap();
        listener.process_messages();
        let deadline = Instant::now() + TIMEOUT;
        let mut is_received = false;
        while !is_received {
            assert!(Instant::now() < deadline, "the filter is still there");
            sender.send_to(b"taken", (right.ipv4(), 9001)).unwrap();
            let packets = port.receiver().receive_timeout(Duration::from_millis(20)).unwrap();
            is_received = packets.into_iter().any(|packet| packet.ends_with(b"taken"));
        }
    });
}
