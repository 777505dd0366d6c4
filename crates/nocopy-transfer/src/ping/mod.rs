//! `nocopy ping`: measures round trips of messages.

mod rounds;
mod summary;

use nocopy_proto::errno::Why;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};

use nocopy::message::{self, Endpoint as MessageEndpoint};

use crate::Failure;
use crate::arguments::{LOOPBACK, PingArguments};
use crate::endpoint::{Endpoint, Family, Scheme};
use crate::exchange::message::{CONNECT_MAX, Message, Setting};
use crate::exchange::over_port::{OverPort, source_address};
use crate::exchange::tcp::Tcp;
use crate::exchange::udp::{DATAGRAM_BYTES_MAX, Udp};
use crate::exchange::{Exchange, Waiting};
use nocopy_report::{Interrupt, Outcome, capability, print};
use rounds::Rounds;
use summary::Summary;

/// Default number of messages, if no time is given.
const COUNT: u64 = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{target}: no such host{cause}; name one that resolves, or its address", cause = Why(.source))]
    Resolve { target: Endpoint, source: io::Error },
    #[error(transparent)]
    Message(message::Error),
    #[error("{target}: cannot connect{cause}; {}", advice(source), cause = Why(.source))]
    Connect { target: Endpoint, source: io::Error },
    #[error("{to}: cannot be reached through {interface}{cause}; 'ip route get {ip}' shows the route", ip = to.ip(), cause = Why(.source))]
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
    #[error("{target}: cannot exchange messages any more{cause}; {}", advice(source), cause = Why(.source))]
    Exchange { target: Endpoint, source: io::Error },
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Command(Box::new(error))
    }
}

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
    let interrupt = Interrupt::listen()?;
    let to = resolve(&arguments.target)?;
    match arguments.target.scheme() {
        Scheme::Udp => play(arguments, interrupt, to, udp(arguments, to)?),
        Scheme::Tcp => play(arguments, interrupt, to, tcp(arguments, to)?),
        Scheme::Xdp => play(arguments, interrupt, to, xdp(arguments, to)?),
        Scheme::Message => {
            let endpoint = open(to, arguments.interface.as_deref(), arguments.wait, arguments.size)?;
            capability::drop_all_but(capability::NONE)?;
            let exchange = Message::connect(endpoint, to).map_err(Error::Message)?;
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

pub fn resolve(target: &Endpoint) -> Result<SocketAddr, Error> {
    target.resolve(Family::Any).map_err(|source| Error::Resolve { target: target.clone(), source })
}

fn udp(arguments: &PingArguments, to: SocketAddr) -> Result<Udp, Error> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let open = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect(to)?;
        Udp::new(socket, arguments.wait)
    };
    open().map_err(|source| Error::Connect { target: arguments.target.clone(), source })
}

fn tcp(arguments: &PingArguments, to: SocketAddr) -> Result<Tcp, Error> {
    let stream = TcpStream::connect_timeout(&to, CONNECT_MAX);
    stream
        .and_then(|stream| Tcp::new(stream, arguments.wait))
        .map_err(|source| Error::Connect { target: arguments.target.clone(), source })
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
    waiting: Waiting,
    message_bytes_max: usize,
) -> Result<MessageEndpoint, Failure> {
    let any: IpAddr = if to.is_ipv4() { [0; 4].into() } else { [0_u16; 8].into() };
    let at = match interface {
        Some(interface) => address_on(interface, to)?,
        None => (any, 0).into(),
    };
    let setting = Setting {
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
    print::finish(&summary, arguments.json, false, failure)
}
