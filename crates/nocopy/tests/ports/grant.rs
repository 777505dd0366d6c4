//! Ports granted to a process without privileges, on veth pairs in private namespaces.

use nocopy_lab::patience::PATIENCE;
use std::error::Error;
use std::fs;
use std::io::{self, BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::num::NonZero;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::common::errors::{ErrorTexts, Refused, with_refused_calls};
use crate::common::{
    is_promiscuous, lab, numbered_packet, open_port, open_port_with, receive_packets, send_numbered_on_queue,
    send_packets,
};
use nocopy::integration::xdp;
use nocopy::port::{Grant, GrantError, OpenError, PortBuilder};
use nocopy::{Mode, Port};
use nocopy_lab::{End, Lab};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, Protocol, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recv, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Resource, Rlimit, setrlimit};

const NOBODY: u32 = 65534;

/// Environment variable: makes this program the client, and selects its kind.
const ROLE: &str = "NOCOPY_GRANT_CLIENT";
const ECHO: &str = "echo";
/// Runs in a sandbox that refuses bpf(2), as kernels before 5.19 do.
const WITHOUT_BPF: &str = "without bpf";
/// Runs with a limit of 64 KiB of locked memory.
const POOR: &str = "poor";
/// Binds the granted socket to the other queue, and puts it into every map that it has.
const THIEF: &str = "thief";

/// A process of another user, without capabilities, connected by a socket; killed at the end of the test.
struct RunningClient {
    process: Child,
    stream: UnixStream,
    words: BufReader<UnixStream>,
}

impl RunningClient {
    fn start(end: &End, role: &str) -> Self {
        let (stream, theirs) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // Not by its path: that user may not have access to the build directory.
        let mut command = Command::new("/proc/self/exe");
        command
            .args(["--exact", "grant::run_client", "--ignored"])
            .env(ROLE, role)
            .stdin(OwnedFd::from(theirs));
        command.stdout(Stdio::null()).uid(NOBODY).gid(NOBODY);
        let process = end.namespace().run(|| command.spawn().unwrap());
        let words = BufReader::new(stream.try_clone().unwrap());
        Self { process, stream, words }
    }

    fn next_line(&mut self) -> String {
        let mut line = String::new();
        self.words.read_line(&mut line).expect("an answer in time");
        line.trim_end().to_owned()
    }

    /// Makes it close its port; returns its last line.
    fn end(mut self) -> String {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
        let last = self.next_line();
        assert!(self.process.wait().unwrap().success(), "{last}");
        last
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
#[ignore = "the process without privileges that the other tests start"]
fn run_client() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut stream = UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap());
    if let Err(error) = echo_over_granted_port(&mut stream, &role) {
        writeln!(stream, "error: {error}").unwrap();
    }
}

/// Opens the granted port and sends every packet back, unchanged, until the other side closes.
fn echo_over_granted_port(stream: &mut UnixStream, role: &str) -> Result<(), Box<dyn Error>> {
    match role {
        WITHOUT_BPF => Refused::always(libc::SYS_bpf, libc::EPERM).install_filter(),
        POOR => {
            setrlimit(Resource::Memlock, Rlimit { current: Some(64 << 10), maximum: Some(64 << 10) })?;
        }
        _ => {}
    }
    let grant =
        if role == THIEF { RawGrant::receive_raw(stream).with_queue(1)? } else { Grant::receive(stream)? };
    let mut port = with_small_rings(Port::builder(grant.interface())).open_granted(grant)?;
    if role == THIEF {
        put_sockets_into_maps(1);
    }
    writeln!(stream, "open {}", port.mode())?;
    stream.set_nonblocking(true)?;
    let (receiver, sender) = port.halves();
    while io::Read::read(stream, &mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock) {
        for packet in receiver.receive_timeout(Duration::from_millis(20))? {
            sender.send(packet.take())?;
        }
        sender.flush()?;
    }
    sender.drain(PATIENCE)?;
    let area = port.area().clone();
    drop(port);
    writeln!(stream, "closed {}", area.balance())?;
    Ok(())
}

/// The descriptors of maps that a process has.
fn map_descriptors(process: &str) -> Vec<RawFd> {
    let descriptors = fs::read_dir(format!("/proc/{process}/fdinfo")).unwrap().map(|entry| entry.unwrap());
    let is_map = |path| fs::read_to_string(path).is_ok_and(|text| text.contains("map_type:"));
    let maps = descriptors.filter(|entry| is_map(entry.path()));
    maps.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// Puts every socket of this process into the place of a queue in every map that it has, as far as the kernel
/// allows that.
#[allow(unsafe_code)]
fn put_sockets_into_maps(queue: u32) {
    const BPF_MAP_UPDATE_ELEM: libc::c_int = 2;
    const DESCRIPTORS: RawFd = 256;
    for (map, socket) in
        map_descriptors("self").into_iter().flat_map(|map| (0..DESCRIPTORS).map(move |socket| (map, socket)))
    {
        let places = [(&raw const queue).addr(), (&raw const socket).addr()];
        let element = [map as u64, places[0] as u64, places[1] as u64, 0];
        // SAFETY: the command's fields: a map, pointers to a key and a value of four bytes each, flags. The
        // kernel checks the descriptors.
        unsafe {
            libc::syscall(libc::SYS_bpf, BPF_MAP_UPDATE_ELEM, &raw const element, size_of_val(&element))
        };
    }
}

fn with_small_rings(builder: PortBuilder) -> PortBuilder {
    builder.ring_sizes(256, 256).frame_count(256, 256)
}

fn open_grant(end: &End, set: impl FnOnce(PortBuilder) -> PortBuilder + Send) -> Result<Grant, OpenError> {
    end.namespace().run(|| set(Port::builder(end.interface())).grant())
}

/// A client at the right end with an open port.
fn start_client_with_grant(lab: &Lab, role: &str) -> RunningClient {
    let mut client = RunningClient::start(lab.right(), role);
    open_grant(lab.right(), with_small_rings).unwrap().send(&client.stream).unwrap();
    assert_eq!(client.next_line(), "open xdp copy native");
    client
}

/// Sends packets of different sizes to the right end, whose client sends them back, several times around its
/// rings.
fn echo_packets_of_many_sizes(lab: &Lab) {
    let mut port = open_port(lab.left());
    for round in 0..20_u32 {
        let number = |i| round * 50 + i;
        let packets: Vec<_> = (0..50)
            .map(|i| numbered_packet(lab.right(), number(i), 60 + (number(i) as usize * 101) % 1455))
            .collect();
        send_packets(&mut port, &packets);
        assert_eq!(receive_packets(&mut port, packets.len()), packets);
    }
}

/// Waits until an interface has no XDP program; that of a killed process is detached a moment later.
fn wait_until_program_is_detached(end: &End) {
    let give_up = Instant::now() + PATIENCE;
    while let Some(program) = end.xdp_program().unwrap() {
        assert!(Instant::now() < give_up, "program {program} is still there");
        sleep(Duration::from_millis(10));
    }
}

/// Descriptors of this process that refer to a program's link.
fn count_link_descriptors(program: u32) -> usize {
    let wanted = format!("prog_id:\t{program}\n");
    let descriptors = fs::read_dir("/proc/self/fdinfo").unwrap();
    let texts = descriptors.filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok());
    texts.filter(|text| text.contains("link_type:") && text.contains(&wanted)).count()
}

#[test]
fn a_process_without_privileges_receives_and_sends() {
    let lab = lab!();
    let mut client = RunningClient::start(lab.right(), ECHO);
    let granted = open_grant(lab.right(), with_small_rings).unwrap();
    let program = lab.right().xdp_program().unwrap().expect("attached");
    assert_eq!(count_link_descriptors(program), 1, "before it is passed on");
    granted.send(&client.stream).unwrap();
    assert_eq!(count_link_descriptors(program), 0, "the opener's copies are closed");
    assert_eq!(client.next_line(), "open xdp copy native");
    assert_eq!(
        map_descriptors(&client.process.id().to_string()),
        [0; 0],
        "it could put its socket in another queue's place"
    );
    let tasks = fs::read_dir(format!("/proc/{}/task", client.process.id())).unwrap();
    for task in tasks {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        for none in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
            assert!(status.contains(&format!("{none}\t{:016x}\n", 0)), "{status}");
        }
        assert!(status.contains(&format!("Uid:\t{NOBODY}\t{NOBODY}\t{NOBODY}\t{NOBODY}\n")), "{status}");
    }
    echo_packets_of_many_sizes(&lab);
    // It cannot take its socket out of the map, so the frames that it lent are not used again.
    let closed = client.end();
    assert!(closed.contains("256 free") && closed.contains("256 retired"), "{closed}");
    assert!(!closed.contains("does not add up"), "{closed}");
    wait_until_program_is_detached(lab.right());
}

#[test]
fn a_client_needs_no_bpf_call() {
    let lab = lab!();
    let client = start_client_with_grant(&lab, WITHOUT_BPF);
    echo_packets_of_many_sizes(&lab);
    client.end();
    wait_until_program_is_detached(lab.right());
}

/// A client that may use bpf(2), as most may, and binds its socket to another queue takes nothing from the
/// host.
#[test]
fn a_client_cannot_take_another_queue() {
    let lab = lab!(Lab::builder().queues(2));
    let (left, right) = (lab.left(), lab.right());
    let client = start_client_with_grant(&lab, THIEF);
    let host = right.namespace().run(|| {
        let of_tests = Some(Protocol::from_raw(NonZero::new(u32::from(0x88b5_u16.to_be())).unwrap()));
        let host = socket_with(AddressFamily::PACKET, SocketType::RAW, SocketFlags::CLOEXEC, of_tests);
        host.inspect(|host| set_socket_timeout(host, Timeout::Recv, Some(PATIENCE)).unwrap()).unwrap()
    });
    send_numbered_on_queue(left, 1, right, 0, 50);
    for number in 0..50 {
        let mut buffer = [0; 2048];
        let (_, bytes) = recv(&host, &mut buffer[..], RecvFlags::empty()).expect("the host gets its packets");
        assert_eq!(buffer[..bytes], numbered_packet(right, number, 100));
    }
    client.end();
}

#[test]
fn a_killed_client_leaves_no_program_for_the_next() {
    let lab = lab!();
    for _ in 0..3 {
        let mut client = start_client_with_grant(&lab, ECHO);
        echo_packets_of_many_sizes(&lab);
        client.kill();
        wait_until_program_is_detached(lab.right());
    }
}

#[test]
fn a_client_closed_before_it_reads_leaves_no_program() {
    let lab = lab!();
    let (ours, theirs) = UnixStream::pair().unwrap();
    open_grant(lab.right(), |builder| builder.promiscuous(true)).unwrap().send(&ours).unwrap();
    assert!(lab.right().xdp_program().unwrap().is_some() && is_promiscuous(lab.right()));
    drop(theirs);
    wait_until_program_is_detached(lab.right());
    assert!(!is_promiscuous(lab.right()));
    let error = open_grant(lab.right(), |builder| builder).unwrap().send(&ours).unwrap_err();
    assert_eq!(
        error.to_string(),
        "grant: cannot be sent (EPIPE); broken pipe; check that the client is running and reads"
    );
    wait_until_program_is_detached(lab.right());
}

#[test]
fn queues_are_granted_to_separate_clients() {
    let lab = lab!(Lab::builder().queues(2));
    let grants = [0, 1].map(|queue| open_grant(lab.right(), |builder| builder.queue(queue)).unwrap());
    let mut clients = grants.map(|granted| {
        let mut client = RunningClient::start(lab.right(), ECHO);
        granted.send(&client.stream).unwrap();
        assert_eq!(client.next_line(), "open xdp copy native");
        client
    });
    clients[0].kill();
    let mut port = open_port_with(lab.left(), |builder| builder.queue(1)).unwrap();
    let packets: Vec<_> = (0..50).map(|number| numbered_packet(lab.right(), number, 500)).collect();
    send_packets(&mut port, &packets);
    // On a veth, an answer uses the queue on which the packet arrived.
    assert_eq!(receive_packets(&mut port, packets.len()), packets);
    clients[1].kill();
    wait_until_program_is_detached(lab.right());
}

#[test]
fn the_opener_grants_promiscuous_mode_and_busy_polling() {
    let lab = lab!();
    let right = lab.right();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let us = Duration::from_micros(20);
    open_grant(right, |builder| builder.promiscuous(true).busy_poll(us, 64)).unwrap().send(&ours).unwrap();
    let port =
        right.namespace().run(|| Port::builder("").open_granted(Grant::receive(&theirs).unwrap()).unwrap());
    assert!(is_promiscuous(right));
    drop(port);
    assert!(!is_promiscuous(right));
    const PRIVILEGED: &str = "it needs privileges; ask for it where the port is granted";
    for (setting, advice, set) in [
        (
            "busy_poll",
            PRIVILEGED,
            (|builder| builder.busy_poll(Duration::from_micros(20), 64)) as fn(PortBuilder) -> PortBuilder,
        ),
        ("promiscuous", PRIVILEGED, |builder| builder.promiscuous(true)),
        ("multi_buffer", PRIVILEGED, |builder| builder.multi_buffer(true)),
        ("mode", "only the modes of AF_XDP can be granted", |builder| builder.mode(Mode::PacketRing)),
    ] {
        let granted = open_grant(right, |builder| builder).unwrap();
        let error = right.namespace().run(|| set(Port::builder("")).open_granted(granted).unwrap_err());
        assert_eq!(
            error.to_string(),
            format!("nc1 queue 0: '{setting}' cannot be used; the port was granted; {advice}")
        );
    }
    let error = open_grant(right, |builder| builder.ring_sizes(128, 256)).unwrap_err();
    assert!(error.to_string().contains("256 entries or more"), "{error}");
    let error = open_grant(right, |builder| builder.mode(Mode::PacketRing)).unwrap_err();
    assert!(error.to_string().contains("only the modes of AF_XDP"), "{error}");
}

#[test]
fn a_multi_buffer_port_can_be_granted() {
    let lab = lab!(Lab::builder().mtu(9000));
    let (ours, theirs) = UnixStream::pair().unwrap();
    let several = |builder: PortBuilder| builder.multi_buffer(true);
    open_grant(lab.right(), several).unwrap().send(&ours).unwrap();
    let received = || several(Port::builder("")).open_granted(Grant::receive(&theirs).unwrap()).unwrap();
    let mut right = lab.right().namespace().run(received);
    let mut left = open_port_with(lab.left(), several).unwrap();
    let sent = numbered_packet(lab.right(), 1, 9014);
    left.sender().send_copy(&sent).unwrap();
    left.sender().flush().unwrap();
    let mut batch = right.receiver().receive_timeout(PATIENCE).unwrap();
    let whole = batch.next_chain().expect("a packet");
    assert!(whole.as_ref().len() > 1 && whole.to_vec() == sent);
}

#[test]
fn the_mode_order_is_the_same_with_a_grant() {
    let lab = lab!();
    let loopback = lab.left().namespace().run(|| {
        let granted = Port::builder("lo").grant().unwrap();
        Port::builder("").open_granted(granted).unwrap()
    });
    assert_eq!(loopback.mode(), Mode::XdpCopyGeneric);
    let refused: Vec<_> = loopback
        .explain()
        .refusals
        .iter()
        .map(|refusal| (refusal.mode, refusal.reason.raw_os_error()))
        .collect();
    let unsupported = Some(libc::EOPNOTSUPP);
    assert_eq!(refused, [(Mode::XdpZeroCopy, unsupported), (Mode::XdpCopyNative, unsupported)]);
    drop(loopback);
    let strict = |mode: Mode| {
        let granted = open_grant(lab.right(), |builder| builder).unwrap();
        lab.right().namespace().run(|| Port::builder("").mode(mode).open_granted(granted).unwrap_err())
    };
    let zero_copy = strict(Mode::XdpZeroCopy);
    assert!(zero_copy.to_string().contains("no AF_XDP zero-copy"), "{zero_copy}");
    let generic = strict(Mode::XdpCopyGeneric);
    assert!(matches!(generic, OpenError::NoMode { .. }), "{generic}");
    assert!(generic.to_string().contains("ask for this mode in the process that grants it"), "{generic}");
    let native = lab.left().namespace().run(|| Port::builder("lo").mode(Mode::XdpCopyNative).grant());
    assert!(matches!(native, Err(OpenError::Xdp(xdp::Error::NoNative { .. }))), "{native:?}");
    wait_until_program_is_detached(lab.right());
}

#[test]
fn a_queue_in_use_is_not_granted() {
    let lab = lab!();
    let right = lab.right();
    let taken = |error: OpenError| {
        assert!(matches!(error, OpenError::QueueTaken { queue: 0, .. }), "{error}");
    };
    let port = open_port(right);
    taken(open_grant(right, |builder| builder).unwrap_err());
    drop(port);
    let granted = open_grant(right, |builder| builder).unwrap();
    taken(open_grant(right, |builder| builder).unwrap_err());
    drop(granted);
    // As a client, whose program belongs to another process.
    let client = start_client_with_grant(&lab, ECHO);
    let error = open_grant(right, |builder| builder).unwrap_err();
    assert!(matches!(error, OpenError::Xdp(xdp::Error::Occupied { .. })), "{error}");
    echo_packets_of_many_sizes(&lab);
    client.end();
}

#[test]
fn too_little_locked_memory_is_an_error_that_leaves_no_program() {
    let lab = lab!();
    let mut client = RunningClient::start(lab.right(), POOR);
    open_grant(lab.right(), |builder| builder).unwrap().send(&client.stream).unwrap();
    let said = client.next_line();
    for words in ["error: nc1 queue 0: the kernel could not pin", "ulimit -l", "fewer frames"] {
        assert!(said.contains(words), "{said}");
    }
    wait_until_program_is_detached(lab.right());
}

/// A grant in transit, to be modified.
struct RawGrant {
    bytes: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

impl RawGrant {
    fn capture_sent_grant(granted: Grant) -> Self {
        let (ours, theirs) = UnixStream::pair().unwrap();
        granted.send(&ours).unwrap();
        Self::receive_raw(&theirs)
    }

    /// Receives a grant.
    fn receive_raw(stream: &UnixStream) -> Self {
        let (mut bytes, mut space) = ([0; 256], [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))]);
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let message = recvmsg(stream, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
        let descriptors = control.drain().flat_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => descriptors.collect::<Vec<_>>(),
            _ => Vec::new(),
        });
        let descriptors = descriptors.collect();
        Self { bytes: bytes[..message.bytes].to_vec(), descriptors }
    }

    fn borrowed_descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.descriptors.iter().map(AsFd::as_fd).collect()
    }

    /// The grant with another queue in it.
    fn with_queue(&self, queue: u32) -> Result<Grant, GrantError> {
        let mut bytes = self.bytes.clone();
        bytes[32..36].copy_from_slice(&queue.to_ne_bytes());
        Grant::receive(&stream_with_message(&bytes, &self.borrowed_descriptors()))
    }
}

/// A stream with such a message, and nothing after it.
fn stream_with_message(bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> UnixStream {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    assert!(descriptors.is_empty() || control.push(SendAncillaryMessage::ScmRights(descriptors)));
    sendmsg(&ours, &[IoSlice::new(bytes)], &mut control, SendFlags::empty()).unwrap();
    theirs
}

const ELSEWHERE: &str = "nc1: cannot be used; the port was granted in another network namespace; start both programs in the same one";
const DETACHED: &str = "nc1: cannot be used; the XDP program of the grant is no longer attached: the interface was deleted, or the program detached; grant the port again";
const RING: &str =
    "grant: refused; its size of the rx ring is impossible; connect to a program that grants ports";

/// The receiver's error for such a message.
fn grant_refusal_text(bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> String {
    Grant::receive(&stream_with_message(bytes, descriptors)).map(drop).unwrap_err().to_string()
}

#[test]
fn modified_grants_are_refused() {
    let lab = lab!();
    let right = lab.right();
    let parcel = RawGrant::capture_sent_grant(open_grant(right, |builder| builder).unwrap());
    let other = RawGrant::capture_sent_grant(open_grant(lab.left(), |builder| builder).unwrap());
    let null: OwnedFd = fs::File::open("/dev/null").unwrap().into();
    let udp: OwnedFd = std::net::UdpSocket::bind("127.0.0.1:0").unwrap().into();
    let elsewhere = rustix::net::socket(AddressFamily::XDP, SocketType::RAW, None).unwrap();
    right.namespace().run(|| {
        let bytes = &parcel.bytes;
        let [socket, link] = parcel.borrowed_descriptors()[..] else { panic!("two descriptors") };
        let changed = |at: usize, byte: u8| {
            let mut bytes = bytes.clone();
            bytes[at] = byte;
            grant_refusal_text(&bytes, &[socket, link])
        };
        let with_version_1 = |descriptors: &[BorrowedFd<'_>]| {
            let mut bytes = bytes.clone();
            bytes[8] = 1;
            grant_refusal_text(&bytes, descriptors)
        };
        let ring_of = |entries: u32| {
            let mut bytes = bytes.clone();
            bytes[44..48].copy_from_slice(&entries.to_ne_bytes());
            grant_refusal_text(&bytes, &[socket, link])
        };
        let refused = |descriptors: &[BorrowedFd<'_>]| grant_refusal_text(bytes, descriptors);
        let mut promiscuous = bytes.clone();
        promiscuous[41] = 1;
        let mut sentences = ErrorTexts::default();
        for (said, expected) in [
            (
                grant_refusal_text(&[], &[]),
                "grant: not received; the other end closed the connection; look at the error of the program that opens the port",
            ),
            (
                grant_refusal_text(&bytes[..10], &[socket, link]),
                "grant: incomplete; it has 10 B of 64; connect to a program that grants ports",
            ),
            (
                changed(0, b'x'),
                "grant: not recognised; the message does not begin like a grant; connect to a program that grants ports",
            ),
            (
                // Of a program that also sent the map.
                with_version_1(&[socket, null.as_fd(), link]),
                "grant: cannot be read; it is of version 1, and this program reads version 2; build both programs with the same nocopy",
            ),
            (changed(12, !bytes[12]), ELSEWHERE),
            (changed(40, 2), DETACHED),
            (
                changed(41, 1),
                "grant: refused; it came with 2 descriptor(s), not with 3; connect to a program that grants ports, and raise 'ulimit -n' if this process has too many files open",
            ),
            // Claims 64, 2048, 8192 and 2^31 entries; the ring has 4096.
            (ring_of(64), RING),
            (ring_of(2048), RING),
            (ring_of(8192), RING),
            (ring_of(1 << 31), RING),
            (
                refused(&[]),
                "grant: refused; it came with 0 descriptor(s), not with 2; connect to a program that grants ports, and raise 'ulimit -n' if this process has too many files open",
            ),
            (
                refused(&[socket]),
                "grant: refused; it came with 1 descriptor(s), not with 2; connect to a program that grants ports, and raise 'ulimit -n' if this process has too many files open",
            ),
            (
                refused(&[socket; 12]),
                "grant: refused; it came with … descriptor(s) or more, not with 2; connect to a program that grants ports, and raise 'ulimit -n' if this process has too many files open",
            ),
            (
                refused(&[null.as_fd(), link]),
                "grant: refused; its AF_XDP socket is /dev/null; connect to a program that grants ports",
            ),
            (
                refused(&[udp.as_fd(), link]),
                "grant: refused; its AF_XDP socket is a socket of family 2; connect to a program that grants ports",
            ),
            (refused(&[elsewhere.as_fd(), link]), ELSEWHERE),
            (
                refused(&[link, socket]),
                "grant: refused; its AF_XDP socket is anon_inode:…; connect to a program that grants ports",
            ),
            (
                refused(&[socket, socket]),
                "grant: refused; its link is socket:…; connect to a program that grants ports",
            ),
            (refused(&[socket, other.borrowed_descriptors()[1]]), DETACHED),
            (
                grant_refusal_text(&promiscuous, &[socket, link, udp.as_fd()]),
                "grant: refused; its promiscuous membership is a socket of family 2; connect to a program that grants ports",
            ),
            (
                with_refused_calls(&[Refused::always(libc::SYS_openat, libc::EACCES)], || {
                    refused(&[socket, link])
                }),
                "nc1: the grant cannot be checked; cannot look at its link (EACCES); permission denied; mount /proc for this process",
            ),
        ] {
            sentences.expect_text(Err::<(), _>(said), expected);
        }
        sentences.assert_all_matched();
    });
    assert_eq!(grant_refusal_text(&parcel.bytes, &parcel.borrowed_descriptors()), ELSEWHERE);
    let open = |queue| Port::builder("").open_granted(parcel.with_queue(queue).unwrap());
    let none = right.namespace().run(|| open(200).unwrap_err());
    assert!(matches!(none, OpenError::QueueOutOfRange { queue: 200, .. }), "{none}");
    drop(right.namespace().run(|| open(0).unwrap()));
    lab.delete_pair().unwrap();
    let said = right.namespace().run(|| grant_refusal_text(&parcel.bytes, &parcel.borrowed_descriptors()));
    assert!(said.contains("no longer attached") || said.contains("(ENODEV)"), "{said}");
}
