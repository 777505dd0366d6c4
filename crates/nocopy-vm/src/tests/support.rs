use std::fmt::Debug;
use std::net::{TcpListener, UdpSocket};

use nocopy::integration::tc::CountingDrop;
use nocopy::metadata::{Arrival, Unsupported};
use nocopy::port::PortBuilder;
use nocopy::{Buffer, Evidence, Mode, Port, tcp, udp};
use nocopy_lab::End;
use serde_json::json;

use crate::facts::features::{self, Feature};
use crate::facts::kernel::KernelVersion;
use crate::guest::patience::ARRIVAL_MAX;
use crate::guest::{Guest, traffic};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "which features of docs/support.md work on this kernel with this driver; all that need nothing but a kernel do, from the \
             kernel on that the library names",
    on: &[Topology::Igb, Topology::Virtio],
    kernels: &[Kernel::Older, Kernel::Stable, Kernel::Newest],
    run,
};

/// Tries a feature. Error: why it does not work.
type Attempt = fn(&Guest) -> Result<(), Failure>;

const MODES: [(&str, Mode); 4] = [
    ("a port in the mode `xdp zero-copy`", Mode::XdpZeroCopy),
    ("a port in the mode `xdp copy native`", Mode::XdpCopyNative),
    ("a port in the mode `xdp copy generic`", Mode::XdpCopyGeneric),
    ("a port in the mode `packet ring`", Mode::PacketRing),
];

/// Those that work on every interface.
const OF_THE_KERNEL: [(Feature, Attempt); 7] = [
    (features::PORT, |guest| open(guest.lab().left(), |builder| builder).map(drop)),
    (features::GRANT, |guest| {
        let left = guest.lab().left();
        left.namespace().run(|| small_port_builder(left).grant())?;
        Ok(())
    }),
    (features::LIVE_FRAMES, |guest| {
        open(guest.lab().left(), |builder| builder)?.receiver().to_host()?;
        Ok(())
    }),
    (features::MULTI_BUFFER, |guest| {
        let settings = |builder: PortBuilder| builder.multi_buffer(true).mode(Mode::XdpCopyGeneric);
        open(guest.lab().left(), settings).map(drop)
    }),
    (features::TC_LINK, |guest| {
        let left = guest.lab().left();
        left.namespace().run(|| CountingDrop::attach(left.interface()))?;
        Ok(())
    }),
    (features::UDP_COALESCING, |guest| {
        let left = guest.lab().left();
        let mut socket = left.namespace().run(|| udp::Socket::bind((left.ipv4(), 0)))?;
        let explanation = socket.receiver().explain().to_string();
        if explanation.contains("(UDP_GRO)") { Ok(()) } else { Err(Failure(explanation)) }
    }),
    (features::URING_SEND, |guest| {
        let left = guest.lab().left();
        let builder = udp::Socket::builder().method(udp::Method::UringZeroCopy);
        left.namespace().run(|| builder.bind((left.ipv4(), 0)))?;
        Ok(())
    }),
];

/// Those that the driver, or its device, may lack.
const OF_DRIVERS: [(Feature, Attempt); 5] = [
    (features::RECEIVE_METADATA, |guest| {
        let arrival = receive_with_metadata(guest)?;
        offered(arrival.hash).or_else(|_| offered(arrival.timestamp))
    }),
    (features::RECEIVE_VLAN, |guest| offered(receive_with_metadata(guest)?.vlan)),
    (features::SEND_METADATA, |guest| {
        let settings = |builder: PortBuilder| builder.send_metadata(true).mode(Mode::XdpCopyNative);
        open(guest.lab().left(), settings)?.explain().checksum.map_err(|why| Failure(why.to_string()))
    }),
    (features::TCP_ZERO_COPY, send_stream_without_copy),
    (features::UDP_ZERO_COPY, send_datagram_without_copy),
];

fn run(guest: &Guest) -> Result<(), Failure> {
    let running = KernelVersion::running().ok_or_else(|| Failure("the kernel has no version".into()))?;
    for (name, mode) in MODES {
        let opened = open(guest.lab().left(), |builder| builder.mode(mode));
        record(guest, name, &opened.map(drop));
    }
    for (feature, attempt) in OF_THE_KERNEL {
        let result = attempt(guest);
        record(guest, feature.name, &result);
        // A maintained kernel may have a feature of a later one.
        assert!(result.is_ok() || running < feature.kernel, "{}: {result:?}", feature.name);
    }
    for (feature, attempt) in OF_DRIVERS {
        record(guest, feature.name, &attempt(guest));
    }
    Ok(())
}

fn record(guest: &Guest, feature: &str, result: &Result<(), Failure>) {
    let refused = result.as_ref().err().map(|Failure(why)| why);
    guest.record_measurement(&json!({ "feature": feature, "refused": refused }));
}

fn small_port_builder(end: &End) -> PortBuilder {
    Port::builder(end.interface()).ring_sizes(256, 256).frame_count(512, 256)
}

fn open(end: &End, set: impl Fn(PortBuilder) -> PortBuilder + Sync) -> Result<Port, Failure> {
    Ok(end.namespace().run(|| set(small_port_builder(end)).open())?)
}

/// The metadata of one packet that a port in native mode receives.
fn receive_with_metadata(guest: &Guest) -> Result<Arrival, Failure> {
    let settings = |builder: PortBuilder| builder.receive_metadata(true).mode(Mode::XdpCopyNative);
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let (mut from, mut to) = (open(left, settings)?, open(right, settings)?);
    guest.lab().wait_for_carrier()?;
    let mut frame = from.sender().buffer().expect("more frames than packets");
    frame.fill(&traffic::numbered_packet(right, 1, 64)).expect("a packet fits a frame");
    from.sender().send(frame)?;
    from.sender().flush()?;
    let mut batch = to.receiver().receive_timeout(ARRIVAL_MAX)?;
    Ok(batch.next().ok_or_else(|| Failure("a packet did not arrive".to_owned()))?.arrival())
}

/// A packet without a value says nothing against the driver.
fn offered<T: Debug>(value: Result<T, Unsupported>) -> Result<(), Failure> {
    match value {
        Ok(_) | Err(Unsupported::Absent) => Ok(()),
        Err(why) => Err(Failure(why.to_string())),
    }
}

fn send_stream_without_copy(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    guest.lab().wait_for_carrier()?;
    let listener = right.namespace().run(|| TcpListener::bind((right.ipv4(), 0)))?;
    let to = listener.local_addr()?;
    let builder = tcp::Stream::builder().method(tcp::Method::ZeroCopy);
    let mut stream = left.namespace().run(|| builder.connect(to))?;
    let _peer = listener.accept()?;
    let sender = stream.sender();
    sender.send(Buffer::from(vec![7; 16 << 10]))?;
    sender.flush()?;
    sender.drain(ARRIVAL_MAX)?;
    without_copy(&sender.ledger())
}

fn send_datagram_without_copy(guest: &Guest) -> Result<(), Failure> {
    let (left, right) = (guest.lab().left(), guest.lab().right());
    let receiver = right.namespace().run(|| UdpSocket::bind((right.ipv4(), 0)))?;
    let builder = udp::Socket::builder().method(udp::Method::ZeroCopy);
    let mut socket = left.namespace().run(|| builder.bind((left.ipv4(), 0)))?;
    socket.connect(receiver.local_addr()?)?;
    let sender = socket.sender();
    sender.send(Buffer::from(vec![7; 1400]))?;
    sender.flush()?;
    sender.drain(ARRIVAL_MAX)?;
    without_copy(&sender.ledger())
}

fn without_copy(ledger: &nocopy::Ledger) -> Result<(), Failure> {
    match ledger.bytes_of(Evidence::ZeroCopy) > 0 && ledger.bytes_of(Evidence::ZeroCopy) == ledger.bytes() {
        true => Ok(()),
        false => Err(Failure(ledger.to_string())),
    }
}
