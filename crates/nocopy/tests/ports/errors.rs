//! Errors of ports and captures as programs print them: `subject: what failed (ERRNO); cause; what to do`.

use std::os::unix::net::UnixStream;
use std::time::Duration;

use nocopy::area::AreaConfig;
use nocopy::filter::Program;
use nocopy::integration::PortTuning;
use nocopy::integration::statistics::Snapshot;
use nocopy::port::{Grant, PortBuilder};
use nocopy::{Area, Capture, Mode, Port};
use nocopy_lab::{End, Lab};

use crate::common::errors::{ErrorTexts, NO_MEMORY, Refused, can_refuse, with_refused_calls};
use crate::common::{area_with_frames_of, lab, open_port, open_port_with};

fn refuse_call(call: libc::c_long, errno: i32) -> [Refused; 1] {
    [Refused::always(call, errno)]
}

fn refuse_socket_option(name: i32, errno: i32) -> [Refused; 1] {
    [Refused::with(libc::SYS_setsockopt, errno, (2, name))]
}

fn refuse_socket_family(family: i32, errno: i32) -> [Refused; 1] {
    [Refused::with(libc::SYS_socket, errno, (0, family))]
}

fn refuse_bpf_command(command: i32, errno: i32) -> [Refused; 1] {
    [Refused::with(libc::SYS_bpf, errno, (0, command))]
}

/// Of bpf(2).
const PROGRAM_LOAD: i32 = 5;
const LINK_CREATE: i32 = 28;
const LINK_UPDATE: i32 = 29;

#[test]
fn refused_areas_name_the_cause() {
    if !nocopy_lab::descriptors_or_skip() {
        return;
    }
    let mut sentences = ErrorTexts::default();
    let mut refused = |refused: &[Refused], config: AreaConfig, expected| {
        if !can_refuse(refused) {
            return;
        }
        sentences.expect_text(with_refused_calls(refused, || Area::new(config).map(drop)), expected);
    };
    let usual = AreaConfig { frame_count: 16, ..AreaConfig::default() };
    refused(
        &[],
        AreaConfig { frame_bytes: 3000, ..usual },
        "frame size 3000 B: not possible; a frame must be a power of two from 2048 to 32768 bytes; use 2048 for MTU 1500 or 4096 for more",
    );
    refused(
        &[],
        AreaConfig { frame_count: 0, ..usual },
        "0 frames: not possible; an area holds from 1 to … frames; ask for fewer",
    );
    refused(
        &[],
        AreaConfig { headroom_bytes: 4000, ..usual },
        "headroom 4000 B: too large; with the kernel's 256 B it leaves no room in a frame of 2048 B; ask for less headroom or larger frames",
    );
    refused(
        &[NO_MEMORY],
        usual,
        "area of 32768 B: the kernel gave no memory (ENOMEM); cannot allocate memory; ask for fewer or smaller frames, or free memory",
    );
    refused(
        &refuse_call(libc::SYS_mbind, libc::EINVAL),
        AreaConfig { numa_node: Some(0), ..usual },
        "NUMA node 0: the kernel takes no memory from there (EINVAL); invalid argument; 'numactl --hardware' lists nodes, or leave it out",
    );
    let small = Area::new(usual).unwrap();
    sentences.expect_text(
        Port::memory_builder().area(&small).frame_count(16, 8).ring_sizes(8, 8).memory_pair(),
        "area of 16 frames: no pool of 8; only 0 are free; make the area larger",
    );
    let area = Area::new(AreaConfig { frame_count: 1 << 14, ..usual }).unwrap();
    let pair = || Port::memory_builder().area(&area).frame_count(8, 8).ring_sizes(8, 8).memory_pair();
    let mut pairs = Vec::new();
    let last = loop {
        match pair() {
            Ok(pair) => pairs.push(pair),
            Err(error) => break error,
        }
    };
    sentences.expect_text(Err::<(), _>(last), "area: no further pool; it has 512 already, as many as are possible; close a port or make another area");
    sentences.assert_all_matched();
}

#[test]
fn refused_ports_name_the_cause() {
    let lab = lab!();
    let end = lab.right();
    let mut sentences = ErrorTexts::default();
    let mut refused =
        |refused: &[Refused], set: &(dyn Fn(PortBuilder) -> PortBuilder + Sync), expected: &str| {
            let builder = || set(Port::builder(end.interface()).mode(Mode::XdpCopyGeneric));
            let tried = end.namespace().run(|| with_refused_calls(refused, || builder().open().map(drop)));
            sentences.expect_text(tried, expected);
        };
    refused(
        &refuse_socket_family(libc::AF_XDP, libc::EPERM),
        &|port| port,
        "nc1 queue 0: cannot make an AF_XDP socket (EPERM); operation not permitted; run it as root, or where no sandbox forbids the call",
    );
    refused(
        &refuse_socket_family(libc::AF_XDP, libc::EAFNOSUPPORT),
        &|port| port,
        "AF_XDP: not available; this is Linux …; use Linux 5.9 or newer, built with CONFIG_XDP_SOCKETS",
    );
    refused(
        &refuse_socket_option(libc::XDP_UMEM_REG, libc::ENOBUFS),
        &|port| port,
        "nc1 queue 0: the kernel could not pin 12582912 B for the area (ENOBUFS); no buffer space available; raise the limit with 'ulimit -l unlimited', grant CAP_IPC_LOCK, or ask for fewer frames",
    );
    refused(
        &refuse_socket_option(libc::XDP_RX_RING, libc::EINVAL),
        &|port| port,
        "nc1 queue 0: cannot make the rx ring (EINVAL); invalid argument; 'nocopy doctor' shows what this kernel and its interfaces support",
    );
    refused(
        &refuse_bpf_command(PROGRAM_LOAD, libc::EPERM),
        &|port| port,
        "XDP: cannot load an XDP program (EPERM); operation not permitted; run it as root, or where no sandbox forbids the call",
    );
    refused(
        &refuse_bpf_command(LINK_CREATE, libc::EINVAL),
        &|port| port,
        "XDP: cannot attach an XDP program (EINVAL); invalid argument; 'nocopy doctor' shows what this kernel and its interfaces support",
    );
    refused(
        &refuse_call(libc::SYS_getrandom, libc::EPERM),
        &|port| port,
        "XDP: cannot draw a random number (EPERM); operation not permitted; run it as root, or where no sandbox forbids the call",
    );
    refused(
        &refuse_bpf_command(LINK_CREATE, libc::ERANGE),
        &|port| port,
        "nc1: MTU 1500 is too large for XDP without multi-buffer support (ERANGE); numerical result out of range; lower it, for example 'ip link set dev nc1 mtu 1500'",
    );
    refused(
        &[],
        &|port| port.ring_sizes(3, 4),
        "rx ring of 3 entries: not possible; rings have a power of two; try 4",
    );
    refused(
        &[],
        &|port| port.batch(0),
        "batch of 0 packets: not possible; nothing could ever be received; use at least 1",
    );
    refused(
        &[],
        &|port| port.area(&area_with_frames_of(8192)),
        "frames of 8192 B: too long; AF_XDP allows at most a page (4096 B); use 2048 or 4096, or the mode 'packet ring'",
    );
    refused(
        &[],
        &|port| port.mode(Mode::Memory),
        "mode 'memory': cannot be opened on an interface; memory ports have none; use Port::memory_pair",
    );
    refused(
        &[],
        &|port| port.queue(7),
        "nc1 queue 7: no such queue; the interface has 1, counted from 0; try a lower queue, or 'ethtool -L nc1 combined 8'",
    );
    let none = end.namespace().run(|| Port::builder(end.interface()).open_queues(3..3).map(drop));
    sentences.expect_text(
        none,
        "nc1: no queue; the range is empty; queues are counted from 0, and '..' means all",
    );
    let generic = open_port_with(end, |port| port.mode(Mode::XdpCopyGeneric)).unwrap();
    let mut again = |set: &(dyn Fn(PortBuilder) -> PortBuilder + Sync), expected: &str| {
        let builder = || set(Port::builder(end.interface()).mode(Mode::XdpCopyGeneric));
        sentences.expect_text(end.namespace().run(|| builder().open().map(drop)), expected);
    };
    again(
        &|port| port,
        "nc1 queue 0: in use; another AF_XDP socket is bound to it; close that port, or take another queue",
    );
    again(
        &|port| port.multi_buffer(true),
        "nc1: packets of several buffers are not possible; the XDP program that a port of this process has there takes packets of one buffer; open that port with multi_buffer, too",
    );
    let some = Program::parse("1\n6 0 0 65535").unwrap();
    again(
        &|port| port.filter(&some),
        "nc1: the filter cannot be used; another port of this process has another filter, or none, on this interface, and both share one XDP program; give them one filter, or close that port",
    );
    drop(generic);
    sentences.assert_all_matched();
}

#[test]
fn unusable_interfaces_name_the_cause() {
    let lab = lab!();
    let (left, right) = (lab.left(), lab.right());
    let mut sentences = ErrorTexts::default();
    let tuning = || PortTuning { carrier_timeout: Duration::ZERO, ..PortTuning::default() };
    let opened =
        |end: &End| end.namespace().run(|| Port::builder(end.interface()).tuning(tuning()).open().map(drop));
    right.set_mtu(9000).unwrap();
    sentences.expect_text(open_port_with(right, |port| port.mode(Mode::XdpCopyNative)).map(drop), "nc1: frames of 4096 B are too short; its MTU of 9000 needs 9278 B; receive packets in several frames (PortBuilder::multi_buffer), or lower the MTU to 3,818 or less");
    right.set_mtu(1500).unwrap();
    right.set_down().unwrap();
    sentences.expect_text(
        opened(right),
        "nc1: cannot be used; the interface is down; bring it up with 'ip link set dev nc1 up'",
    );
    sentences.expect_text(
        opened(left),
        "nc0: no carrier; nothing is connected, or the other end is down; check both",
    );
    let refused = refuse_socket_family(libc::AF_NETLINK, libc::EPERM);
    sentences.expect_text(
        left.namespace().run(|| with_refused_calls(&refused, || Snapshot::of_interface("nc0").map(drop))),
        "nc0: cannot read its counters (EPERM); operation not permitted; run it as root, or where no sandbox forbids the call",
    );
    let native = left.namespace().run(|| Port::builder("lo").mode(Mode::XdpCopyNative).open().map(drop));
    sentences.expect_text(native, "lo queue 0: cannot be opened in any mode; xdp copy native: not available (EOPNOTSUPP); operation not supported; its driver has no native XDP, or not with its present settings (offloads); 'nocopy doctor' shows which; 'nocopy doctor lo' shows what each mode needs");
    sentences.assert_all_matched();
}

#[test]
fn a_port_reports_its_removed_interface() {
    let lab = lab!();
    let mut port = open_port(lab.right());
    lab.delete_pair().unwrap();
    let mut sentences = ErrorTexts::default();
    sentences.expect_text(
        port.receiver().receive().map(drop),
        "nc1 queue 0: the port failed (ENXIO); no such device or address; the interface was removed; open a port on another one",
    );
    sentences.assert_all_matched();
}

#[test]
fn unusable_filters_name_their_cause() {
    let mut sentences = ErrorTexts::default();
    let of_type = Program::parse("2\n40 0 0 4294963204\n22 0 0 0").unwrap();
    sentences.expect_text(
        Port::memory_builder().filter(&of_type).memory_pair(),
        "filter: cannot run as an XDP program; instruction 0 asks for the packet's type, which depends on the device's addresses; run the filter on a packet socket, or use the mode 'packet ring'",
    );
    sentences.expect_text(
        nocopy::filter::compile("ether[4294967295] = 1"),
        "filter 'ether[4294967295] = 1': cannot be used; instruction 0 reads outside the packet; Linux has no data at offset -1; correct it, or give the output of 'tcpdump -ddd EXPRESSION'",
    );
    sentences.assert_all_matched();
}

#[test]
fn refused_captures_name_the_cause() {
    let lab = lab!();
    let end = lab.left();
    let mut sentences = ErrorTexts::default();
    let mut refused = |refused: &[Refused],
                       set: &(dyn Fn(nocopy::capture::Builder) -> nocopy::capture::Builder + Sync),
                       expected: &str| {
        if !can_refuse(refused) {
            return;
        }
        let builder = || set(Capture::builder(end.interface()));
        sentences.expect_text(
            end.namespace().run(|| with_refused_calls(refused, || builder().open().map(drop))),
            expected,
        );
    };
    refused(
        &refuse_socket_family(libc::AF_PACKET, libc::EPERM),
        &|capture| capture,
        "nc0: cannot be captured from; this process lacks CAP_NET_RAW; run as root, or grant it with 'setcap'",
    );
    refused(
        &[],
        &|capture| capture.blocks(1000, 2),
        "2 blocks of 1000 B: cannot be used; a block is a power of two from 4096 B to … B, with at least 2 blocks and less than 4 GiB in all; ask for others",
    );
    refused(
        &refuse_socket_option(libc::PACKET_VERSION, libc::EINVAL),
        &|capture| capture,
        "nc0: cannot open a packet socket on it (EINVAL); invalid argument; 'nocopy doctor' shows what this kernel and its interfaces support",
    );
    refused(
        &[NO_MEMORY],
        &|capture| capture,
        "nc0: the kernel has no 67108864 B for the blocks (ENOMEM); cannot allocate memory; ask for less",
    );
    sentences.assert_all_matched();
}

#[test]
fn failed_hand_overs_to_the_host_name_the_cause() {
    let lab = lab!();
    let mut sentences = ErrorTexts::default();
    let (mut memory, _other) = Port::memory_pair().unwrap();
    sentences.expect_text(
        memory.receiver().to_host(),
        "memory port: nothing can be handed to the host; it has no interface; open a port on an interface",
    );
    let mut ring = open_port_with(lab.right(), |port| port.mode(Mode::PacketRing)).unwrap();
    sentences.expect_text(
        ring.receiver().to_host(),
        "nc1: not handed to the host; in packet ring mode it gets every packet anyway; do not hand packets over in this mode",
    );
    drop(ring);
    let end = lab.right();
    let mut granted = end.namespace().run(|| {
        let builder = || Port::builder(end.interface()).mode(Mode::XdpCopyGeneric);
        let (ours, theirs) = UnixStream::pair().unwrap();
        builder().grant().unwrap().send(&ours).unwrap();
        builder().open_granted(Grant::receive(&theirs).unwrap()).unwrap()
    });
    sentences.expect_text(
        granted.receiver().to_host(),
        "nc1: not handed to the host; a granted port in generic mode does not know the secret by which the XDP program recognises these packets; grant a port in another mode",
    );
    drop(granted);
    let (ours, _theirs) = UnixStream::pair().unwrap();
    sentences.expect_text(
        with_refused_calls(&refuse_call(libc::SYS_recvmsg, libc::EPERM), || Grant::receive(&ours).map(drop)),
        "grant: cannot be received (EPERM); operation not permitted; give a Unix socket that is connected to the program that opens the port",
    );
    let mut port = open_port(end);
    let mut host = port.receiver().to_host().unwrap();
    sentences.expect_text(
        end.namespace().run(|| host.hand_over(&[0; 13])),
        "nc1: a packet of 13 B was not handed to the host; it is shorter than an Ethernet header (14 B); drop it",
    );
    sentences.expect_text(
        end.namespace().run(|| host.hand_over(&[0; 5000])),
        "nc1: a packet of 5000 B was not handed to the host; it is too long: the kernel accepts one page, less its own overhead (some 3,300 B); lower the interface's MTU",
    );
    lab.delete_pair().unwrap();
    sentences.expect_text(
        port.receiver().to_host(),
        "nc1: not handed to the host; the interface was removed; open a port on another one",
    );
    sentences.assert_all_matched();
}

#[test]
fn failed_filter_replacements_name_the_cause() {
    let lab: Lab = lab!();
    let end = lab.right();
    let mut sentences = ErrorTexts::default();
    let queues =
        |mode| end.namespace().run(|| Port::builder(end.interface()).mode(mode).open_queues(..).unwrap());
    let ring = queues(Mode::PacketRing);
    sentences.expect_text(
        ring.filter_control(),
        "nc1: the filter cannot be replaced; a port in mode 'packet ring' has no XDP program of this process; open the port in an AF_XDP mode, and not from a grant",
    );
    drop(ring);
    let port = queues(Mode::XdpCopyGeneric);
    let refused = [Refused::with(libc::SYS_fcntl, libc::EMFILE, (1, libc::F_DUPFD_CLOEXEC))];
    let (refused, port) = with_refused_calls(&refused, move || (port.filter_control().map(drop), port));
    sentences.expect_text(
        refused,
        "nc1: cannot duplicate a descriptor (EMFILE); too many open files; raise 'ulimit -n'",
    );
    let control = port.filter_control().unwrap();
    let some = Program::parse("1\n6 0 0 65535").unwrap();
    let refused = refuse_bpf_command(LINK_UPDATE, libc::ENOLINK);
    sentences.expect_text(
        end.namespace().run(|| with_refused_calls(&refused, || control.set_filter(Some(&some)))),
        "nc1: the XDP program was not replaced (ENOLINK); link has been severed; check that the interface still exists",
    );
    sentences.assert_all_matched();
}
