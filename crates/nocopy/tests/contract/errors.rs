//! Every error type converts into `io::Error`, of a matching kind, and `get_ref` returns the error itself.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use nocopy::area::AreaError;
use nocopy::integration::xdp;
use nocopy::message::{LostReason, PutRefusal};
use nocopy::metadata::Unsupported;
use nocopy::port::ToHostError;
use nocopy::{Buffer, Chain, Frame, Pool, Port, Reason, Rejected, capture, filter, message, port, tcp, udp};
use nocopy_proto::filter::InvalidProgram;

const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 1);

fn refused() -> io::Error {
    io::Error::from_raw_os_error(libc::EACCES)
}

fn interface() -> String {
    "nc0".into()
}

/// Converts errors of one type, and compares the kinds; adds the type's name to `$names`.
macro_rules! convert {
    ($names:ident, $type:ty { $($error:expr => $kind:ident),+ $(,)? }) => {
        $names.push(stringify!($type).replace(' ', ""));
        $({
            let error: $type = $error;
            let text = error.to_string();
            let converted = io::Error::from(error);
            assert_eq!(converted.kind(), ErrorKind::$kind, "{text}");
            let inner = converted.get_ref().and_then(|inner| inner.downcast_ref::<$type>());
            assert_eq!(inner.expect("of the same type").to_string(), text);
            assert_eq!(converted.to_string(), text);
        })+
    };
}

#[test]
fn every_error_converts_into_io_error_and_back() {
    let mut names = Vec::new();
    convert!(names, nocopy::Reason {
        Reason::Full => WouldBlock,
        Reason::Gone => NotConnected,
        Reason::Finished => BrokenPipe,
        Reason::ForeignSource { address: [192, 0, 2, 1].into() } => AddrNotAvailable,
        Reason::Unsupported(Unsupported::Driver) => Unsupported,
        Reason::System(refused()) => PermissionDenied,
        Reason::System(io::Error::other("words")) => Other,
        Reason::Empty => InvalidInput,
    });
    convert!(names, nocopy::metadata::Unsupported { Unsupported::Driver => Unsupported });
    convert!(names, nocopy::TooLong {
        Pool::new(1, 4096).unwrap().take().unwrap().fill(&[0; 5000]).unwrap_err() => InvalidInput,
    });
    convert!(names, nocopy::area::AreaError {
        AreaError::Memory { bytes: 1, source: io::Error::from_raw_os_error(libc::ENOMEM) } => OutOfMemory,
        AreaError::FrameCount(0) => InvalidInput,
        AreaError::PoolsExhausted => OutOfMemory,
    });
    convert!(names, nocopy::capture::OpenError {
        port::InterfaceError::NotFound { interface: interface() }.into() => NotFound,
        capture::OpenError::Capability { interface: interface() } => PermissionDenied,
        capture::OpenError::Blocks { count: 1, bytes: 1 } => InvalidInput,
        capture::OpenError::Memory { interface: interface(), bytes: 1, source: refused() }
            => PermissionDenied,
    });
    convert!(names, nocopy::filter::CompileError {
        filter::CompileError::NoLibrary { expression: "ip".into(), reason: "none".into() } => NotFound,
        filter::CompileError::Program { expression: "ip".into(), source: InvalidProgram::Empty }
            => InvalidInput,
    });
    convert!(names, nocopy::message::OpenError {
        udp::OpenError::Bind { address: ADDRESS, source: refused() }.into() => PermissionDenied,
        message::OpenError::Random { source: io::ErrorKind::WouldBlock.into() } => WouldBlock,
        message::OpenError::TooLittleMemory { memory_bytes: 1, needed_bytes: 2 } => InvalidInput,
    });
    convert!(names, nocopy::message::Error {
        message::Error::TooManyPeers { peers_max: 1 } => QuotaExceeded,
        message::Error::NotConnected { address: ADDRESS, reason: LostReason::Full } => ConnectionRefused,
        message::Error::ConnectTimedOut { address: ADDRESS, timeout: Duration::ZERO } => TimedOut,
        message::Error::TimedOut { timeout: Duration::ZERO } => TimedOut,
        message::Error::NotSent(Reason::Full) => WouldBlock,
        message::Error::NotSent(Reason::System(refused())) => PermissionDenied,
        message::Error::Lost => ConnectionAborted,
        message::Error::TooManyOthers => OutOfMemory,
        message::Error::Network(refused()) => PermissionDenied,
    });
    convert!(names, nocopy::message::LostReason {
        LostReason::NoAnswer => TimedOut,
        LostReason::Restarted => ConnectionReset,
        LostReason::Aborted { code: 1 } => ConnectionAborted,
    });
    convert!(names, nocopy::message::PutRefusal {
        PutRefusal::NoRegion => NotFound,
        PutRefusal::OutOfRange => InvalidInput,
        PutRefusal::Unknown => ConnectionAborted,
    });
    convert!(names, nocopy::port::GrantError {
        port::GrantError::Closed => UnexpectedEof,
        port::GrantError::Foreign => InvalidData,
        port::GrantError::Receive(refused()) => PermissionDenied,
    });
    convert!(names, nocopy::port::InterfaceError {
        port::InterfaceError::NotFound { interface: interface() } => NotFound,
        port::InterfaceError::Down { interface: interface() } => NetworkDown,
    });
    convert!(names, nocopy::integration::xdp::Error {
        xdp::Error::NoInterface { interface: interface() } => NotFound,
        xdp::Error::System { operation: "load", source: refused() } => PermissionDenied,
    });
    convert!(names, nocopy::port::OpenError {
        port::InterfaceError::Down { interface: interface() }.into() => NetworkDown,
        port::OpenError::QueueTaken { interface: interface(), queue: 0 } => ResourceBusy,
        port::OpenError::Batch => InvalidInput,
        AreaError::PoolsExhausted.into() => OutOfMemory,
        xdp::Error::Occupied { interface: interface(), program_id: 1 }.into() => ResourceBusy,
        port::OpenError::Filter { source: ToHostError::MemoryPort.into() } => Unsupported,
    });
    convert!(names, nocopy::port::ToHostError {
        ToHostError::Gone { interface: interface() } => NotConnected,
        ToHostError::TooShort { interface: interface(), bytes: 1 } => InvalidInput,
        xdp::Error::System { operation: "load", source: refused() }.into() => PermissionDenied,
    });
    convert!(names, nocopy::tcp::OpenError {
        tcp::OpenError::Accept(io::ErrorKind::WouldBlock.into()) => WouldBlock,
        tcp::OpenError::Method { method: tcp::Method::ZeroCopy, source: io::Error::other("it") }
            => Unsupported,
        tcp::OpenError::Method { method: tcp::Method::ZeroCopy, source: refused() }
            => PermissionDenied,
        tcp::OpenError::ChunkLength { bytes: 2, buffer_bytes: 1 } => InvalidInput,
    });
    convert!(names, nocopy::tcp::PublishError {
        tcp::PublishError::Seal(refused()) => PermissionDenied,
        tcp::PublishError::Sparse { bytes: 1 } => InvalidInput,
    });
    convert!(names, nocopy::udp::OpenError {
        udp::OpenError::Bind { address: ADDRESS, source: refused() } => PermissionDenied,
        udp::OpenError::Unspecified { address: ADDRESS } => AddrNotAvailable,
        udp::OpenError::Placing { setting: "rows of a chunk", value: 0, least: 1, most: 10 } => InvalidInput,
        port::OpenError::Batch.into() => InvalidInput,
        port::OpenError::QueueTaken { interface: interface(), queue: 0 }.into() => ResourceBusy,
    });
    convert!(names, nocopy::udp::SendError {
        udp::SendError { to: None, refused: 1, source: refused() } => PermissionDenied,
    });
    let missing = public_error_types().into_iter().filter(|name| !names.contains(name));
    assert_eq!(missing.collect::<Vec<_>>(), Vec::<String>::new());
}

/// Error types in the list of the public API.
fn public_error_types() -> Vec<String> {
    let api = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/api.txt")).unwrap();
    let types = api.lines().filter_map(|line| line.strip_prefix("enum ").or(line.strip_prefix("struct ")));
    let names = types.filter_map(|line| line.split(' ').next()).filter(|name| name.ends_with("Error"));
    // Not an error itself, but a report that has one.
    let errors: Vec<_> = names.filter(|name| *name != "nocopy::udp::PeerError").map(str::to_owned).collect();
    assert!(errors.len() > 10, "{errors:?}");
    errors
}

#[test]
fn refused_sends_convert_into_io_error_with_their_item() {
    fn converts<T>()
    where
        io::Error: From<Rejected<T>>,
    {
    }
    converts::<Buffer>();
    converts::<Chain<Frame>>();
    converts::<message::Payload>();
    converts::<udp::Message>();

    let (mut port, _peer) = Port::memory_pair().unwrap();
    let frame = port.sender().buffer().unwrap();
    let error = io::Error::from(port.sender().send(frame).unwrap_err());
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    let rejected = error.into_inner().unwrap().downcast::<Rejected<Frame>>().unwrap();
    assert!(matches!(rejected.reason, Reason::Empty) && rejected.item.is_empty());

    let refused = Rejected { item: (), reason: Reason::System(refused()) };
    assert_eq!(io::Error::from(refused).kind(), ErrorKind::PermissionDenied);
}
