//! `nocopy ping`: measures round trips of messages.

mod rounds;
mod summary;

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use nocopy::message::{self, Endpoint as MessageEndpoint};

use crate::Failure;
use crate::arguments::{LOOPBACK, PingArguments};
use crate::attempts::{
    check_port_is_open, io_error_from_failure, io_error_from_message_error, try_addresses_in_turn,
    wildcard_address,
};
use crate::endpoint::{Endpoint, Scheme};
use crate::exchange::message::{CONNECT_MAX, EndpointSettings, MessageExchange};
use crate::exchange::over_port::{PortExchange, source_address};
use crate::exchange::tcp::TcpExchange;
use crate::exchange::udp::{DATAGRAM_BYTES_MAX, UdpExchange};
use crate::exchange::{Exchange, WaitMode};
use crate::failure::CommandError;
use crate::source::await_source_address;
use nocopy_report::address::{self, FailedAttempts, Family};
use nocopy_report::{Interrupt, Outcome, capability, print};
use rounds::PingSession;
use rustix::thread::CapabilitySet;
use summary::Summary;

/// Default number of messages, if no time is given.
const COUNT: u64 = 10_000;

/// A message that asks whether an address answers: its number is that of no round.
const PROBE: [u8; 8] = [0x7f; 8];

const PROBE_INTERVAL: Duration = Duration::from_millis(250);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{target}: no such host{cause}; name one that resolves, or its address", cause = ErrorCause(.source))]
    Resolve { target: Endpoint, source: io::Error },
    #[error(transparent)]
    Message(message::Error),
    #[error("{target}: cannot connect{cause}; {}", connect_advice(source), cause = ErrorCause(.source))]
    Connect { target: Endpoint, source: io::Error },
    #[error("{to}: cannot be reached through {interface}{cause}; 'ip route get {ip}' shows the route", ip = to.ip(), cause = ErrorCause(.source))]
    NoWay { to: SocketAddr, interface: String, source: io::Error },
    #[error(
        "--interface: cannot be used here; it needs message:// or xdp://; leave it out, or ping by xdp://"
    )]
    NeedlessInterface,
    #[error("xdp://: cannot be used alone; it needs --interface; name the interface that leads there")]
    NoInterface,
    #[error(
        "{interface}: cannot be used; the kernel delivers to this host's addresses itself, not through an interface; leave out --interface"
    )]
    OwnInterface { interface: String },
    #[error(
        "--size: {bytes} bytes do not fit one datagram; UDP carries up to {DATAGRAM_BYTES_MAX}; give less with --size, or use message://"
    )]
    TooLong { bytes: usize },
    #[error(
        "{target}: cannot exchange messages any more{cause}; {}",
        connect_advice(source),
        cause = ErrorCause(.source)
    )]
    Exchange { target: Endpoint, source: io::Error },
}

impl CommandError for Error {}

fn connect_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => "no program listens there; start 'nocopy serve'",
        io::ErrorKind::TimedOut => "check that 'nocopy serve' runs there, and that no firewall is in between",
        io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
            "the other end closed the connection; look at what it printed"
        }
        _ => "'ip route get' shows the way to that address",
    }
}

pub fn run(arguments: &PingArguments) -> Result<Outcome, Failure> {
    check_arguments(arguments)?;
    let interrupt = Interrupt::catch()?;
    let addresses = resolve_target(&arguments.target)?;
    match arguments.target.scheme() {
        Scheme::Udp => {
            let (exchange, to) = first_answering_exchange(arguments, &addresses, &interrupt, |to| {
                Ok(open_udp_exchange(arguments, to)?)
            })?;
            run_session(arguments, interrupt, to, exchange)
        }
        Scheme::Xdp => {
            let (exchange, to) = first_answering_exchange(arguments, &addresses, &interrupt, |to| {
                open_xdp_exchange(arguments, to)
            })?;
            run_session(arguments, interrupt, to, exchange)
        }
        Scheme::Tcp => match connect_tcp_exchange(arguments, &addresses, &interrupt)? {
            Some((exchange, to)) => run_session(arguments, interrupt, to, exchange),
            None => {
                print::print_status(format_args!(
                    "nocopy: {}: interrupted: not connected yet",
                    arguments.target
                ));
                Ok(Outcome::Negative)
            }
        },
        Scheme::Message => {
            let (exchange, to) = connect_message_exchange(arguments, &addresses)?;
            run_session(arguments, interrupt, to, exchange)
        }
    }
}

fn check_arguments(arguments: &PingArguments) -> Result<(), Error> {
    let scheme = arguments.target.scheme();
    match (scheme, &arguments.interface) {
        (Scheme::Udp | Scheme::Tcp, Some(_)) => Err(Error::NeedlessInterface),
        (Scheme::Xdp, None) => Err(Error::NoInterface),
        (Scheme::Udp | Scheme::Xdp, _) if arguments.size > DATAGRAM_BYTES_MAX => {
            Err(Error::TooLong { bytes: arguments.size })
        }
        _ => Ok(()),
    }
}

pub fn resolve_target(target: &Endpoint) -> Result<Vec<SocketAddr>, Error> {
    target.resolve(Family::Any).map_err(|source| Error::Resolve { target: target.clone(), source })
}

fn connect_error(target: &Endpoint, failed: FailedAttempts) -> Error {
    Error::Connect { target: target.clone(), source: failed.into_error() }
}

/// An exchange with the first address that answers. The only address need not: the rounds show whether it
/// does.
fn first_answering_exchange<E: Exchange>(
    arguments: &PingArguments,
    addresses: &[SocketAddr],
    interrupt: &Interrupt,
    open: impl Fn(SocketAddr) -> Result<E, Failure>,
) -> Result<(E, SocketAddr), Failure> {
    if let [to] = addresses {
        return Ok((open(*to)?, *to));
    }
    let found = try_addresses_in_turn(addresses, CONNECT_MAX, |to, share| {
        let mut exchange = open(to).map_err(io_error_from_failure)?;
        await_first_answer(&mut exchange, share, interrupt)?;
        Ok((exchange, to))
    });
    found.map_err(|failed| connect_error(&arguments.target, failed).into())
}

/// Asks until there is an answer.
fn await_first_answer(
    exchange: &mut impl Exchange,
    within: Duration,
    interrupt: &Interrupt,
) -> io::Result<()> {
    let start = Instant::now();
    let mut asked = None;
    while !interrupt.was_interrupted() {
        if asked.is_none_or(|asked: Instant| asked.elapsed() >= PROBE_INTERVAL) {
            exchange.send(&PROBE)?;
            asked = Some(Instant::now());
        }
        if exchange.receive(|_| ())? {
            return Ok(());
        }
        if start.elapsed() >= within {
            return Err(io::ErrorKind::TimedOut.into());
        }
    }
    Ok(())
}

fn open_udp_exchange(arguments: &PingArguments, to: SocketAddr) -> Result<UdpExchange, Error> {
    let open = || {
        await_source_address(to);
        let socket = UdpSocket::bind((wildcard_address(to), 0))?;
        socket.connect(to)?;
        UdpExchange::new(socket, arguments.wait)
    };
    open().map_err(|source| Error::Connect { target: arguments.target.clone(), source })
}

/// `None`: interrupted.
fn connect_tcp_exchange(
    arguments: &PingArguments,
    addresses: &[SocketAddr],
    interrupt: &Interrupt,
) -> Result<Option<(TcpExchange, SocketAddr)>, Error> {
    let connected = address::connect(addresses, CONNECT_MAX, |_| Ok(()), || interrupt.was_interrupted());
    let Some((stream, to)) = connected.map_err(|failed| connect_error(&arguments.target, failed))? else {
        return Ok(None);
    };
    let exchange = TcpExchange::new(stream, arguments.wait);
    let exchange = exchange.map_err(|source| Error::Connect { target: arguments.target.clone(), source })?;
    Ok(Some((exchange, to)))
}

fn connect_message_exchange(
    arguments: &PingArguments,
    addresses: &[SocketAddr],
) -> Result<(MessageExchange, SocketAddr), Failure> {
    let open = |to| open_message_endpoint(to, arguments.interface.as_deref(), arguments.wait, arguments.size);
    if let [to] = addresses {
        let endpoint = open(*to)?;
        capability::drop_all_but(capability::NONE)?;
        return Ok((MessageExchange::connect(endpoint, *to, CONNECT_MAX).map_err(Error::Message)?, *to));
    }
    capability::drop_all_but(needed_capabilities(arguments.interface.as_deref()))?;
    let found = try_addresses_in_turn(addresses, CONNECT_MAX, |to, share| {
        check_port_is_open(to)?;
        let endpoint = open(to).map_err(io_error_from_failure)?;
        Ok((MessageExchange::connect(endpoint, to, share).map_err(io_error_from_message_error)?, to))
    });
    found.map_err(|failed| connect_error(&arguments.target, failed).into())
}

/// The capabilities to open an endpoint for each address.
pub fn needed_capabilities(interface: Option<&str>) -> CapabilitySet {
    interface.map_or(capability::NONE, |_| capability::NETWORK)
}

fn open_xdp_exchange(arguments: &PingArguments, to: SocketAddr) -> Result<PortExchange, Failure> {
    let interface = arguments.interface.as_deref().unwrap_or_default();
    let at = source_address_on(interface, to)?;
    Ok(PortExchange::open(interface, at, to, arguments.wait)?)
}

/// An endpoint for exchanges of messages of at most `bytes_max` bytes.
pub fn open_message_endpoint(
    to: SocketAddr,
    interface: Option<&str>,
    waiting: WaitMode,
    message_bytes_max: usize,
) -> Result<MessageEndpoint, Failure> {
    let at = match interface {
        Some(interface) => source_address_on(interface, to)?,
        None => (wildcard_address(to), 0).into(),
    };
    let setting = EndpointSettings {
        at,
        interface,
        waiting,
        message_bytes_max,
        datagram_bytes: None,
        accept: false,
        streams: true,
    };
    Ok(setting.open()?)
}

/// The source address for a port of that interface.
pub fn source_address_on(interface: &str, to: SocketAddr) -> Result<SocketAddr, Error> {
    if interface == LOOPBACK {
        return Err(Error::OwnInterface { interface: interface.into() });
    }
    source_address(to, interface).map_err(|source| Error::NoWay { to, interface: interface.into(), source })
}

fn run_session(
    arguments: &PingArguments,
    interrupt: Interrupt,
    to: SocketAddr,
    exchange: impl Exchange,
) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::NONE)?;
    let mut rounds = PingSession::new(arguments, interrupt);
    let failure = rounds.run(exchange).err();
    let failure = failure.map(|source| Error::Exchange { target: arguments.target.clone(), source }.into());
    let summary = Summary::from_rounds(arguments, to, &rounds, failure.is_some());
    print::print_summary(&summary, arguments.json, failure)
}
