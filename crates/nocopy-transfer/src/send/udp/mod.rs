//! `nocopy send udp://HOST:PORT`: sends datagrams to a host, and prints the receiver's report.

mod by_port;
mod by_socket;
mod connect;
mod dropped;
mod error;
mod payload;
mod session;
mod summary;
mod transmitter;
mod transport;
mod writer;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nocopy::udp::{DATAGRAM_BYTES_MAX, Method};
use nocopy_lab::Interface;
use rustix::thread::CapabilitySet;

use super::PATIENCE;
use super::input::Input;
use super::pacer::Pace;
use super::pattern::Pattern;
use super::queue::{Goal, Schedule};
use super::run::{self, Run};
use crate::arguments::{HostArguments, MethodName, SendArguments};
use crate::endpoint::Endpoint;
use crate::transfer::{HEADER_BYTES, SenderRun};
use crate::{Failure, processor};
use by_port::ByPort;
use by_socket::BySocket;
use dropped::InterfaceDrops;
use error::Error;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, input_file, print};
use payload::{Payload, Shape};
use session::Session;
use summary::Summary;
use transmitter::DatagramTransmitter;
use transport::Transport;

/// Fits an MTU of 1,500 with all headers, even in tunnels.
const DATAGRAM_BYTES: u64 = 1400;

/// The most bytes written before a hand-over: a buffer of the socket's pool.
const BATCH_BYTES: usize = 64 << 10;

pub(super) fn run(
    target: &Endpoint,
    arguments: &SendArguments,
    interrupt: Interrupt,
) -> Result<Outcome, Failure> {
    // A combination that clap cannot refuse: a raw TCP stream does wait for its receiver.
    if arguments.host.raw && arguments.host.connect_timeout.is_some() {
        return Err(Error::NeedlessTimeout.into());
    }
    let shape = shape(arguments)?;
    // Files are opened with the rights of the user, before capabilities are dropped.
    let (path, payload) = open(&arguments.host, shape)?;
    let choice = MethodChoice::of(arguments.host.method);
    capability::drop_all_but(choice.needs())?;
    let addresses = target
        .resolve(arguments.family())
        .map_err(|source| Error::Resolve { target: target.clone(), source })?;
    let open = |to, patience| open_session(to, choice, arguments, shape, patience);
    let (session, to, is_connected) = connect::connect((target, &addresses), arguments, &interrupt, open)?;
    capability::drop_all_but(capability::NONE)?;
    let pace = arguments.rate.map_or(Pace::FlatOut, Pace::Rate);
    let schedule = Schedule::new(pace, Goal::of(arguments));
    let batch = BATCH_BYTES / shape.datagram_bytes;
    let mut transmitter = DatagramTransmitter { session, schedule, payload, path, shape, batch, poll_ns: 0 };
    let (dropped, start) = (InterfaceDrops::now(), processor::StartTime::now());
    let mut run = match is_connected {
        true => run::run(&mut transmitter, &interrupt),
        false => Run::interrupted(),
    };
    let ended = if transmitter.session.is_ended_by_receiver() { CommandEnd::ByReceiver } else { run.ended() };
    if is_connected && run.failure.is_none() {
        run.failure = finish(&mut transmitter).err().map(Failure::from);
    }
    let used = start.used(transmitter.schedule.tally.packets);
    let target_and_address = (target.to_string(), to);
    let summary = Summary::new(arguments, target_and_address, &mut transmitter, (pace, &run, ended), used)
        .with_lines(InterfaceDrops::now().since(&dropped));
    print::finish(&summary, arguments.json, run.failure)
}

fn shape(arguments: &SendArguments) -> Result<Shape, Error> {
    let header_bytes = if arguments.host.raw { 0 } else { HEADER_BYTES };
    let (bytes, bytes_min) = (arguments.size.unwrap_or(DATAGRAM_BYTES), header_bytes + 1);
    let why = match bytes {
        _ if bytes < bytes_min as u64 => "there is nothing behind nocopy's header, which --raw leaves out",
        _ if bytes > DATAGRAM_BYTES_MAX as u64 => "UDP takes no more",
        _ => return Ok(Shape { header_bytes, datagram_bytes: bytes as usize }),
    };
    Err(Error::Size { bytes, why, bytes_min, bytes_max: DATAGRAM_BYTES_MAX })
}

fn open(arguments: &HostArguments, shape: Shape) -> Result<(PathBuf, Payload), Error> {
    let path = match &arguments.file {
        Some(path) => path.as_path(),
        None if !arguments.stdin => {
            let pattern = Pattern::new(shape.datagram_bytes - shape.header_bytes);
            return Ok((PathBuf::new(), Payload::Pattern(pattern)));
        }
        None => Path::new("-"),
    };
    let name = input_file::name(path);
    let input =
        Input::open_without_waiting(path).map_err(|source| Error::Input { path: name.clone(), source })?;
    Ok((name, Payload::Stream(input)))
}

fn open_session(
    to: SocketAddr,
    choice: MethodChoice,
    arguments: &SendArguments,
    shape: Shape,
    patience: Duration,
) -> Result<Session, Failure> {
    let HostArguments { raw, verify, .. } = arguments.host;
    if to.ip().is_multicast() && !raw {
        return Err(Error::Multicast { to }.into());
    }
    let interface = arguments.datagrams.interface.as_deref();
    let interface = interface.map(|name| Interface::find(name).map_err(Failure::lookup(name))).transpose()?;
    let transport: Box<dyn Transport> = match (choice, interface) {
        (MethodChoice::OverPort { copied }, Some(interface)) => {
            Box::new(ByPort::open(&interface, to, copied, shape.datagram_bytes)?)
        }
        (MethodChoice::OverPort { .. }, None) => unreachable!("clap requires --interface"),
        (_, Some(_)) if !to.ip().is_multicast() => return Err(Error::NeedlessInterface.into()),
        (MethodChoice::Measured, interface) => {
            Box::new(BySocket::open(to, None, interface.map(|found| found.index))?)
        }
        (MethodChoice::By(method), interface) => {
            Box::new(BySocket::open(to, Some(method), interface.map(|found| found.index))?)
        }
    };
    let run = match raw {
        true => None,
        false => Some(SenderRun::new(super::run_number().map_err(Error::Random)?, verify, patience)),
    };
    Ok(Session::new(transport, to, run))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MethodChoice {
    /// A socket, with the method measured to be best.
    Measured,
    By(Method),
    OverPort {
        copied: bool,
    },
}

impl MethodChoice {
    fn of(name: MethodName) -> Self {
        Self::By(match name {
            MethodName::Auto => return Self::Measured,
            MethodName::XdpUdp => return Self::OverPort { copied: false },
            MethodName::XdpCopy => return Self::OverPort { copied: true },
            MethodName::Socket => Method::Socket,
            MethodName::Sendmmsg => Method::SendMmsg,
            MethodName::Gso => Method::Gso,
            MethodName::Zerocopy => Method::ZeroCopy,
            MethodName::ZerocopyGso => Method::ZeroCopyGso,
            MethodName::UringZerocopy => Method::UringZeroCopy,
            MethodName::UringZerocopyGso => Method::UringZeroCopyGso,
            MethodName::Plain | MethodName::Published | MethodName::Sendfile => {
                unreachable!("clap requires a TCP target")
            }
        })
    }

    /// Capabilities for opening: only with `CAP_IPC_LOCK` may a ring register memory beyond the limit.
    fn needs(self) -> CapabilitySet {
        match self {
            Self::Measured => capability::NONE,
            Self::By(_) => CapabilitySet::IPC_LOCK,
            Self::OverPort { .. } => capability::NETWORK,
        }
    }
}

fn finish(transmitter: &mut DatagramTransmitter) -> Result<(), Error> {
    transmitter.session.transport.drain(PATIENCE)?;
    transmitter.session.finish()
}
