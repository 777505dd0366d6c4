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
use super::pattern::PayloadPattern;
use super::queue::{Schedule, SendLimits};
use super::run::{self, SendRunResult};
use crate::arguments::{HostArguments, SendArguments, SendMethodArgument};
use crate::endpoint::Endpoint;
use crate::transfer::{HEADER_BYTES, SenderRun};
use crate::{Failure, processor};
use by_port::PortTransport;
use by_socket::SocketTransport;
use dropped::InterfaceDrops;
use error::Error;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, input_file, print};
use payload::{DatagramLayout, PayloadSource};
use session::UdpSendSession;
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
    let shape = datagram_layout(arguments)?;
    // Files are opened with the rights of the user, before capabilities are dropped.
    let (path, payload) = open_payload(&arguments.host, shape)?;
    let choice = TransportChoice::from_name(arguments.host.method);
    capability::drop_all_but(choice.needed_capabilities())?;
    let addresses = target
        .resolve(arguments.address_family())
        .map_err(|source| Error::Resolve { target: target.clone(), source })?;
    let open = |to, patience| open_session(to, choice, arguments, shape, patience);
    let (session, to, is_connected) =
        connect::connect_session((target, &addresses), arguments, &interrupt, open)?;
    capability::drop_all_but(capability::NONE)?;
    let pace = arguments.rate.map_or(Pace::FlatOut, Pace::Rate);
    let schedule = Schedule::new(pace, SendLimits::from_arguments(arguments));
    let batch = BATCH_BYTES / shape.datagram_bytes;
    let mut transmitter = DatagramTransmitter { session, schedule, payload, path, shape, batch, poll_ns: 0 };
    let (dropped, start) = (InterfaceDrops::read(), processor::ProcessorTimeSnapshot::now());
    let mut run = match is_connected {
        true => run::run_transmitter(&mut transmitter, &interrupt),
        false => SendRunResult::interrupted_before_start(),
    };
    let ended =
        if transmitter.session.is_ended_by_receiver() { CommandEnd::ByReceiver } else { run.end_reason() };
    if is_connected && run.failure.is_none() {
        run.failure = finish_sending(&mut transmitter).err().map(Failure::from);
    }
    let used = start.usage_since(transmitter.schedule.tally.packets);
    let target_and_address = (target.to_string(), to);
    let summary = Summary::new(arguments, target_and_address, &mut transmitter, (pace, &run, ended), used)
        .with_explanation_lines(InterfaceDrops::read().increases_since(&dropped));
    print::print_summary(&summary, arguments.json, run.failure)
}

fn datagram_layout(arguments: &SendArguments) -> Result<DatagramLayout, Error> {
    let header_bytes = if arguments.host.raw { 0 } else { HEADER_BYTES };
    let (bytes, bytes_min) = (arguments.size.unwrap_or(DATAGRAM_BYTES), header_bytes + 1);
    let why = match bytes {
        _ if bytes < bytes_min as u64 => "there is nothing behind nocopy's header, which --raw leaves out",
        _ if bytes > DATAGRAM_BYTES_MAX as u64 => "UDP takes no more",
        _ => return Ok(DatagramLayout { header_bytes, datagram_bytes: bytes as usize }),
    };
    Err(Error::Size { bytes, why, bytes_min, bytes_max: DATAGRAM_BYTES_MAX })
}

fn open_payload(arguments: &HostArguments, shape: DatagramLayout) -> Result<(PathBuf, PayloadSource), Error> {
    let path = match &arguments.file {
        Some(path) => path.as_path(),
        None if !arguments.stdin => {
            let pattern = PayloadPattern::new(shape.datagram_bytes - shape.header_bytes);
            return Ok((PathBuf::new(), PayloadSource::Pattern(pattern)));
        }
        None => Path::new("-"),
    };
    let name = input_file::display_name(path);
    let input =
        Input::open_without_waiting(path).map_err(|source| Error::Input { path: name.clone(), source })?;
    Ok((name, PayloadSource::Stream(input)))
}

fn open_session(
    to: SocketAddr,
    choice: TransportChoice,
    arguments: &SendArguments,
    shape: DatagramLayout,
    patience: Duration,
) -> Result<UdpSendSession, Failure> {
    let HostArguments { raw, verify, .. } = arguments.host;
    if to.ip().is_multicast() && !raw {
        return Err(Error::Multicast { to }.into());
    }
    let interface = arguments.datagrams.interface.as_deref();
    let interface = interface
        .map(|name| Interface::find(name).map_err(Failure::from_interface_lookup(name)))
        .transpose()?;
    let transport: Box<dyn Transport> = match (choice, interface) {
        (TransportChoice::OverPort { copied }, Some(interface)) => {
            Box::new(PortTransport::open(&interface, to, copied, shape.datagram_bytes)?)
        }
        (TransportChoice::OverPort { .. }, None) => unreachable!("clap requires --interface"),
        (_, Some(_)) if !to.ip().is_multicast() => return Err(Error::NeedlessInterface.into()),
        (TransportChoice::Measured, interface) => {
            Box::new(SocketTransport::open(to, None, interface.map(|found| found.index))?)
        }
        (TransportChoice::By(method), interface) => {
            Box::new(SocketTransport::open(to, Some(method), interface.map(|found| found.index))?)
        }
    };
    let run = match raw {
        true => None,
        false => Some(SenderRun::new(super::random_run_number().map_err(Error::Random)?, verify, patience)),
    };
    Ok(UdpSendSession::new(transport, to, run))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TransportChoice {
    /// A socket, with the method measured to be best.
    Measured,
    By(Method),
    OverPort {
        copied: bool,
    },
}

impl TransportChoice {
    fn from_name(name: SendMethodArgument) -> Self {
        Self::By(match name {
            SendMethodArgument::Auto => return Self::Measured,
            SendMethodArgument::XdpUdp => return Self::OverPort { copied: false },
            SendMethodArgument::XdpCopy => return Self::OverPort { copied: true },
            SendMethodArgument::Socket => Method::Socket,
            SendMethodArgument::Sendmmsg => Method::SendMmsg,
            SendMethodArgument::Gso => Method::Gso,
            SendMethodArgument::Zerocopy => Method::ZeroCopy,
            SendMethodArgument::ZerocopyGso => Method::ZeroCopyGso,
            SendMethodArgument::UringZerocopy => Method::UringZeroCopy,
            SendMethodArgument::UringZerocopyGso => Method::UringZeroCopyGso,
            SendMethodArgument::Plain | SendMethodArgument::Published | SendMethodArgument::Sendfile => {
                unreachable!("clap requires a TCP target")
            }
        })
    }

    /// Capabilities for opening: only with `CAP_IPC_LOCK` may a ring register memory beyond the limit.
    fn needed_capabilities(self) -> CapabilitySet {
        match self {
            Self::Measured => capability::NONE,
            Self::By(_) => CapabilitySet::IPC_LOCK,
            Self::OverPort { .. } => capability::NETWORK,
        }
    }
}

fn finish_sending(transmitter: &mut DatagramTransmitter) -> Result<(), Error> {
    transmitter.session.transport.drain(PATIENCE)?;
    transmitter.session.finish()
}
