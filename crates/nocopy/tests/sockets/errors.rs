//! Errors of sockets as programs print them: `subject: what failed (ERRNO); cause; what to do`.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use nocopy::tcp::{self, Listener, Published, Stream};
use nocopy::udp::{self, Socket};
use nocopy::{Pool, Port};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::common::errors::{ErrorTexts, NO_MEMORY, Refused, can_refuse, with_refused_calls};
use crate::common::lab;

const HERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Not of this host (RFC 5737).
const ELSEWHERE: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 0);

fn refuse_call(call: libc::c_long, errno: i32) -> [Refused; 1] {
    [Refused::always(call, errno)]
}

fn refuse_socket_option(name: i32, errno: i32) -> [Refused; 1] {
    [Refused::with(libc::SYS_setsockopt, errno, (2, name))]
}

#[test]
fn refused_udp_sockets_name_the_cause() {
    let mut sentences = ErrorTexts::default();
    let mut refused = |refused: &[Refused], builder: udp::Builder, expected| {
        if !can_refuse(refused) {
            return;
        }
        sentences.expect_text(with_refused_calls(refused, || builder.bind(HERE)), expected);
    };
    refused(
        &refuse_call(libc::SYS_socket, libc::EMFILE),
        Socket::builder(),
        "UDP socket: not made (EMFILE); too many open files; raise 'ulimit -n', or run it where no sandbox forbids sockets",
    );
    refused(
        &refuse_socket_option(libc::SO_SNDBUF, libc::EPERM),
        Socket::builder().send_buffer(1 << 20),
        "send buffer: refused (EPERM); operation not permitted; leave it out, or use a kernel that knows it",
    );
    refused(
        &refuse_call(libc::SYS_io_uring_setup, libc::EPERM),
        Socket::builder().method(udp::Method::UringZeroCopy),
        "method uring-zerocopy: not available; io_uring: refused (EPERM); operation not permitted; run it where no sandbox forbids it; leave the choice to measurement",
    );
    refused(
        &refuse_call(libc::SYS_io_uring_setup, libc::ENOMEM),
        Socket::builder().method(udp::Method::UringZeroCopy),
        "method uring-zerocopy: not available; io_uring: no memory can be locked for its ring (ENOMEM); cannot allocate memory; raise the limit ('ulimit -l'), which all processes of the user share; leave the choice to measurement",
    );
    refused(
        &[NO_MEMORY],
        Socket::builder(),
        "UDP socket: no memory for buffers (ENOMEM); cannot allocate memory; ask for fewer",
    );
    refused(
        &refuse_socket_option(libc::IP_ADD_MEMBERSHIP, libc::ENODEV),
        Socket::builder().group(Ipv4Addr::new(239, 1, 1, 1).into()),
        "239.1.1.1: not joined (ENODEV); no such device; name the interface to join it on ('ip maddress' lists what is joined)",
    );
    refused(
        &[],
        Socket::builder().group(Ipv4Addr::new(10, 1, 1, 1).into()),
        "10.1.1.1: cannot be joined; a socket on 127.0.0.1:0 receives only from multicast addresses of its IP version; give one of these",
    );
    sentences.expect_text(
        Socket::bind(ELSEWHERE),
        "192.0.2.1:0: not bound (EADDRNOTAVAIL); cannot assign requested address; this host has no such address; 'ip address' lists them",
    );
    sentences.expect_text(
        Socket::builder().checksum(udp::UdpChecksum::Omitted).bind("[::1]:0"),
        "[::1]:0: the UDP checksum cannot be omitted; IPv6 demands it; compute it, or leave it to the card",
    );
    sentences.assert_all_matched();
}

#[test]
fn udp_buffers_that_cannot_be_registered_name_the_cause() {
    if !nocopy_lab::io_uring_or_skip() {
        return;
    }
    let mut sentences = ErrorTexts::default();
    let refused = [Refused::with(libc::SYS_io_uring_register, libc::ENOMEM, (1, 0))];
    let builder = Socket::builder().method(udp::Method::UringZeroCopy);
    sentences.expect_text(
        with_refused_calls(&refused, || builder.bind(HERE)),
        "method uring-zerocopy: not available; io_uring: … bytes cannot be locked (ENOMEM); cannot allocate memory; raise the limit ('ulimit -l'), or use fewer buffers; leave the choice to measurement",
    );
    sentences.assert_all_matched();
}

#[test]
fn receiving_without_a_free_buffer_names_the_cause() {
    let mut sentences = ErrorTexts::default();
    let pool = Pool::new(1, 2048).unwrap();
    let buffer = pool.take();
    let mut socket = Socket::builder().receive_pool(&pool).bind(HERE).unwrap();
    sentences.expect_text(
        socket.receiver().try_receive().map(drop),
        "receive: no buffer; all 1 of the pool are in use; drop or send some of the datagrams that were taken, or make the pool larger",
    );
    drop(buffer);
    sentences.assert_all_matched();
}

#[test]
fn udp_over_a_port_names_refused_settings() {
    let lab = lab!();
    let (end, mut sentences) = (lab.left(), ErrorTexts::default());
    let address = SocketAddr::from((end.ipv4(), 7000));
    let over = || Socket::builder().port(Port::builder(end.interface()));
    let mut refused = |refused: &[Refused], builder: udp::Builder, address, expected| {
        let tried = end.namespace().run(|| with_refused_calls(refused, || builder.bind(address).map(drop)));
        sentences.expect_text(tried, expected);
    };
    refused(
        &[],
        over(),
        (Ipv4Addr::UNSPECIFIED, 7000).into(),
        "0.0.0.0:7000: not an address of this host; packet headers and the filter need one; give the address of the port's interface",
    );
    let many = (1..=101).fold(over(), |builder, host| builder.group(Ipv4Addr::new(239, 1, 1, host).into()));
    refused(
        &[],
        many,
        address,
        "101 groups: too many; a socket over a port takes up to 100; open several sockets",
    );
    refused(
        &refuse_call(libc::SYS_epoll_create1, libc::EMFILE),
        over(),
        address,
        "UDP socket: no descriptor to wait on (EMFILE); too many open files; raise the limit of open files ('ulimit -n')",
    );
    refused(
        &[Refused::with(libc::SYS_setsockopt, libc::EPERM, (1, libc::SOL_NETLINK))],
        over(),
        address,
        "routes: cannot be read (EPERM); operation not permitted; run it where netlink sockets are allowed",
    );
    let mut socket = end.namespace().run(|| over().bind(address)).unwrap();
    sentences.expect_text(
        end.namespace().run(|| socket.sender().send_copy_to(b"x", SocketAddr::new(ELSEWHERE.ip(), 9))),
        "192.0.2.1: no route (ENETUNREACH); network is unreachable; 'ip route get 192.0.2.1' shows what the host would do",
    );
    sentences.assert_all_matched();
}

#[test]
fn refused_streams_name_the_cause() {
    let mut sentences = ErrorTexts::default();
    let listener = TcpListener::bind(HERE).unwrap();
    let to = listener.local_addr().unwrap();
    let mut refused = |refused: &[Refused], builder: tcp::Builder, expected| {
        if !can_refuse(refused) {
            return;
        }
        sentences.expect_text(with_refused_calls(refused, || builder.connect(to)), expected);
    };
    refused(
        &refuse_call(libc::SYS_socket, libc::EMFILE),
        Stream::builder(),
        "TCP socket: not made (EMFILE); too many open files; raise 'ulimit -n', or run it where no sandbox forbids sockets",
    );
    refused(
        &refuse_socket_option(libc::TCP_NODELAY, libc::EPERM),
        Stream::builder(),
        "no delay: refused (EPERM); operation not permitted; leave it out, or use a kernel that knows it",
    );
    refused(
        &refuse_call(libc::SYS_io_uring_setup, libc::EPERM),
        Stream::builder().method(tcp::Method::UringZeroCopy),
        "method uring-zerocopy: not available; io_uring: refused (EPERM); operation not permitted; run it where no sandbox forbids it; leave the choice to measurement",
    );
    refused(
        &[NO_MEMORY],
        Stream::builder(),
        "TCP socket: no memory for buffers (ENOMEM); cannot allocate memory; ask for fewer",
    );
    let pool = Pool::new(4, 2048).unwrap();
    refused(
        &[],
        Stream::builder().receive_pool(&pool).receive_method(tcp::ReceiveMethod::Recv { bytes: 1 << 20 }),
        "chunks of 1048576 bytes: refused; a buffer of the pool takes 1 to 4096; give such a length, or make a pool of larger buffers",
    );
    drop(listener);
    sentences
        .expect_text(Stream::connect(to), &format!("{to}: not connected (ECONNREFUSED); connection refused; no program listens there; start the receiver first"));
    sentences.expect_text(
        Listener::bind(ELSEWHERE),
        "192.0.2.1:0: not bound (EADDRNOTAVAIL); cannot assign requested address; this host has no such address; 'ip address' lists them",
    );
    let listener = Listener::bind(HERE).unwrap();
    listener.set_nonblocking(true).unwrap();
    sentences.expect_text(
        listener.accept(),
        "listener: no connection was accepted (EAGAIN); resource temporarily unavailable; try again when the listener is readable",
    );
    sentences.assert_all_matched();
}

/// A stream, and its peer.
fn connected_pair(builder: tcp::Builder) -> (Stream, TcpStream) {
    let listener = TcpListener::bind(HERE).unwrap();
    let stream = builder.connect(listener.local_addr().unwrap()).unwrap();
    (stream, listener.accept().unwrap().0)
}

fn reset_connection(peer: TcpStream) {
    socket2::SockRef::from(&peer).set_linger(Some(std::time::Duration::ZERO)).unwrap();
    drop(peer);
}

#[test]
fn failed_stream_receives_name_the_cause() {
    let mut sentences = ErrorTexts::default();
    let pool = Pool::new(1, 2048).unwrap();
    let by_copy =
        || Stream::builder().receive_pool(&pool).receive_method(tcp::ReceiveMethod::Recv { bytes: 2048 });

    let calls = [libc::SYS_recvfrom, libc::SYS_recvmsg, libc::SYS_read, libc::SYS_readv];

    let (mut socket, mut peer) = connected_pair(by_copy());
    peer.write_all(b"hello").unwrap();
    let buffer = socket.receiver().receive().unwrap();
    peer.write_all(b"hello").unwrap();
    sentences.expect_text(
        socket.receiver().receive(),
        "receive: no buffer; all 1 of the pool are in use; drop or send some of what was received, or make the pool larger",
    );
    drop((buffer, socket, peer));

    let (mut socket, peer) = connected_pair(by_copy());
    reset_connection(peer);
    sentences.expect_text(
        socket.receiver().receive(),
        "connection: broken (ECONNRESET); connection reset by peer; the bytes before were received, and the rest is lost; connect again",
    );
    sentences.expect_text(
        socket.receiver().receive(),
        "connection: broken, as the sending half has reported; the stream is incomplete; connect again",
    );

    // Calls of 'Read' have no other way to say it.
    let (mut socket, _peer) = connected_pair(by_copy());
    let nothing = calls.map(|call| Refused::always(call, libc::EAGAIN));
    sentences.expect_text(
        with_refused_calls(&nothing, || socket.receiver().read(&mut [0])),
        "receive: nothing received; no data has arrived yet; wait until the socket is readable",
    );
    let refused = calls.map(|call| Refused::always(call, libc::ENOTCONN));
    sentences.expect_text(
        with_refused_calls(&refused, || socket.receiver().receive().map(drop)),
        "receive: failed (ENOTCONN); transport endpoint is not connected; check that the socket is connected",
    );
    sentences.assert_all_matched();
}

/// A file in memory, and its seals.
fn sealed_memory_file(bytes: &[u8], seals: SealFlags) -> OwnedFd {
    let mut file = File::from(memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap());
    file.write_all(bytes).unwrap();
    fcntl_add_seals(&file, seals).unwrap();
    file.into()
}

#[test]
fn refused_published_data_name_the_cause() {
    const UNCHANGEABLE: SealFlags = SealFlags::WRITE.union(SealFlags::SHRINK);
    let mut sentences = ErrorTexts::default();
    let written = || Published::written(4096, |_| ()).map(drop);
    sentences.expect_text(
        with_refused_calls(&refuse_call(libc::SYS_memfd_create, libc::EMFILE), written),
        "published data: no memory for 4096 bytes (EMFILE); too many open files; publish less, or raise the memory limit of the process or its cgroup",
    );
    sentences.expect_text(
        with_refused_calls(&[Refused::with(libc::SYS_fcntl, libc::EBUSY, (1, libc::F_ADD_SEALS))], written),
        "published data: not sealed (EBUSY); device or resource busy; on EBUSY another process has opened its memory for writing, by /proc; end that process",
    );
    sentences.expect_text(
        Published::try_from(OwnedFd::from(File::open("/dev/null").unwrap())),
        "published data: the file cannot be sealed (EINVAL); invalid argument; make it by memfd_create with MFD_ALLOW_SEALING, or send it as a file",
    );
    sentences.expect_text(
        Published::try_from(sealed_memory_file(b"x", SealFlags::GROW)),
        "published data: the file can still be changed; it lacks F_SEAL_WRITE and F_SEAL_SHRINK; the program that made it has to add them by fcntl(F_ADD_SEALS)",
    );
    let long = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&long, 1 << 20).unwrap();
    fcntl_add_seals(&long, UNCHANGEABLE).unwrap();
    sentences.expect_text(
        Published::try_from(long),
        "published data: the sealed file of 1048576 bytes has holes; reading them would allocate memory charged to this process; the program that made it has to write all of it before sealing it",
    );
    if can_refuse(&[NO_MEMORY]) {
        let sealed = sealed_memory_file(b"x", UNCHANGEABLE);
        sentences.expect_text(
            with_refused_calls(&[NO_MEMORY], || Published::try_from(sealed).map(drop)),
            "published data: the sealed file cannot be mapped (ENOMEM); cannot allocate memory; it has to be open for reading, and to fit into the address space",
        );
    }
    sentences.assert_all_matched();
}
