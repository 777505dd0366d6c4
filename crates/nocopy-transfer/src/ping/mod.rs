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
use crate::attempts::{any, cause, cause_of_message, check_port, try_in_turn};
use crate::endpoint::{Endpoint, Scheme};
use crate::exchange::message::{CONNECT_MAX, EndpointSettings, Message};
use crate::exchange::over_port::{OverPort, source_address};
use crate::exchange::tcp::Tcp;
use crate::exchange::udp::{DATAGRAM_BYTES_MAX, Udp};
use crate::exchange::{Exchange, WaitMode};
use crate::failure::CommandError;
use crate::source::await_address;
use nocopy_report::address::{self, Attempts, Family};
use nocopy_report::{Interrupt, Outcome, capability, print};
use rounds::Rounds;
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
    #[error("{target}: cannot connect{cause}; {}", advice(source), cause = ErrorCause(.source))]
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
    #[error("{target}: cannot exchange messages any more{cause}; {}", advice(source), cause = ErrorCause(.source))]
    Exchange { target: Endpoint, source: io::Error },
}

impl CommandError for Error {}

fn advice(error: &io::Error) -> &'static str {
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
    check(arguments)?;
    let interrupt = Interrupt::catch()?;
    let addresses = resolve(&arguments.target)?;
    match arguments.target.scheme() {
        Scheme::Udp => {
            let (exchange, to) = answering(arguments, &addresses, &interrupt, |to| Ok(udp(arguments, to)?))?;
            play(arguments, interrupt, to, exchange)
        }
        Scheme::Xdp => {
            let (exchange, to) = answering(arguments, &addresses, &interrupt, |to| xdp(arguments, to))?;
            play(arguments, interrupt, to, exchange)
        }
        Scheme::Tcp => match tcp(arguments, &addresses, &interrupt)? {
            Some((exchange, to)) => play(arguments, interrupt, to, exchange),
            None => {
                print::print_status(format_args!(
                    "nocopy: {}: interrupted: not connected yet",
                    arguments.target
                ));
                Ok(Outcome::Negative)
            }
        },
        Scheme::Message => {
            let (exchange, to) = messages(arguments, &addresses)?;
            play(arguments, interrupt, to, exchange)
        }
    }
}

fn check(arguments: &PingArguments) -> Result<(), Error> {
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

pub fn resolve(target: &Endpoint) -> Result<Vec<SocketAddr>, Error> {
    target.resolve(Family::Any).map_err(|source| Error::Resolve { target: target.clone(), source })
}

fn not_connected(target: &Endpoint, failed: Attempts) -> Error {
    Error::Connect { target: target.clone(), source: failed.into_error() }
}

/// An exchange with the first address that answers. The only address need not: the rounds show whether it
/// does.
fn answering<E: Exchange>(
    arguments: &PingArguments,
    addresses: &[SocketAddr],
    interrupt: &Interrupt,
    open: impl Fn(SocketAddr) -> Result<E, Failure>,
) -> Result<(E, SocketAddr), Failure> {
    if let [to] = addresses {
        return Ok((open(*to)?, *to));
    }
    let found = try_in_turn(addresses, CONNECT_MAX, |to, share| {
        let mut exchange = open(to).map_err(cause)?;
        probe(&mut exchange, share, interrupt)?;
        Ok((exchange, to))
    });
    found.map_err(|failed| not_connected(&arguments.target, failed).into())
}

/// Asks until there is an answer.
fn probe(exchange: &mut impl Exchange, within: Duration, interrupt: &Interrupt) -> io::Result<()> {
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

fn udp(arguments: &PingArguments, to: SocketAddr) -> Result<Udp, Error> {
    let open = || {
        await_address(to);
        let socket = UdpSocket::bind((any(to), 0))?;
        socket.connect(to)?;
        Udp::new(socket, arguments.wait)
    };
    open().map_err(|source| Error::Connect { target: arguments.target.clone(), source })
}

/// `None`: interrupted.
fn tcp(
    arguments: &PingArguments,
    addresses: &[SocketAddr],
    interrupt: &Interrupt,
) -> Result<Option<(Tcp, SocketAddr)>, Error> {
    let connected = address::connect(addresses, CONNECT_MAX, |_| Ok(()), || interrupt.was_interrupted());
    let Some((stream, to)) = connected.map_err(|failed| not_connected(&arguments.target, failed))? else {
        return Ok(None);
    };
    let exchange = Tcp::new(stream, arguments.wait);
    let exchange = exchange.map_err(|source| Error::Connect { target: arguments.target.clone(), source })?;
    Ok(Some((exchange, to)))
}

fn messages(arguments: &PingArguments, addresses: &[SocketAddr]) -> Result<(Message, SocketAddr), Failure> {
    let open = |to| open(to, arguments.interface.as_deref(), arguments.wait, arguments.size);
    if let [to] = addresses {
        let endpoint = open(*to)?;
        capability::drop_all_but(capability::NONE)?;
        return Ok((Message::connect(endpoint, *to, CONNECT_MAX).map_err(Error::Message)?, *to));
    }
    capability::drop_all_but(needed(arguments.interface.as_deref()))?;
    let found = try_in_turn(addresses, CONNECT_MAX, |to, share| {
        check_port(to)?;
        let endpoint = open(to).map_err(cause)?;
        Ok((Message::connect(endpoint, to, share).map_err(cause_of_message)?, to))
    });
    found.map_err(|failed| not_connected(&arguments.target, failed).into())
}

/// The capabilities to open an endpoint for each address.
pub fn needed(interface: Option<&str>) -> CapabilitySet {
    interface.map_or(capability::NONE, |_| capability::NETWORK)
}

fn xdp(arguments: &PingArguments, to: SocketAddr) -> Result<OverPort, Failure> {
    let interface = arguments.interface.as_deref().unwrap_or_default();
    let at = address_on(interface, to)?;
    Ok(OverPort::open(interface, at, to, arguments.wait)?)
}

/// An endpoint for exchanges of messages of at most `bytes_max` bytes.
pub fn open(
    to: SocketAddr,
    interface: Option<&str>,
    waiting: WaitMode,
    message_bytes_max: usize,
) -> Result<MessageEndpoint, Failure> {
    let at = match interface {
        Some(interface) => address_on(interface, to)?,
        None => (any(to), 0).into(),
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
pub fn address_on(interface: &str, to: SocketAddr) -> Result<SocketAddr, Error> {
    if interface == LOOPBACK {
        return Err(Error::OwnInterface { interface: interface.into() });
    }
    source_address(to, interface).map_err(|source| Error::NoWay { to, interface: interface.into(), source })
}

fn play(
    arguments: &PingArguments,
    interrupt: Interrupt,
    to: SocketAddr,
    exchange: impl Exchange,
) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::NONE)?;
    let mut rounds = Rounds::new(arguments, interrupt);
    let failure = rounds.run(exchange).err();
    let failure = failure.map(|source| Error::Exchange { target: arguments.target.clone(), source }.into());
    let summary = Summary::of(arguments, to, &rounds, failure.is_some());
    print::finish(&summary, arguments.json, failure)
}
