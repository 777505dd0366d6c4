//! `nocopy send udp://HOST:PORT`: datagrams to a host, and what its receiver says of them.

mod belt;
mod error;
mod line;
mod payload;
mod summary;

use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

use nocopy::socket::udp::{DATAGRAM_BYTES_MAX, Method, Socket};
use rustix::rand::{GetRandomFlags, getrandom};

use super::input::Input;
use super::pacer::Pace;
use super::queue::{Goal, Schedule};
use super::run::{self, Run};
use super::{PATIENCE, summary::Ended};
use crate::arguments::{DatagramArguments, MethodName, SendArguments};
use crate::endpoint::Endpoint;
use crate::interrupt::Interrupt;
use crate::transfer::{DATA_HEADER_BYTES, Sending};
use crate::{Failure, Outcome, capability, processor};
use belt::DatagramBelt;
pub(crate) use error::Error;
use line::Line;
use payload::{Pattern, Payload, Shape};
use summary::Summary;

/// Fits an MTU of 1,500 with all headers, over tunnels too.
const DATAGRAM_BYTES: u64 = 1400;

/// A buffer of the socket's pool.
const BUFFER_BYTES: usize = 64 << 10;

pub(super) fn run(
    target: &Endpoint,
    arguments: &SendArguments,
    interrupt: Interrupt,
) -> Result<Outcome, Failure> {
    let shape = shape(arguments)?;
    // Files are opened with all that whoever started this may read.
    let (path, payload) = open(&arguments.datagrams, shape)?;
    capability::drop_all_but(capability::NONE)?;
    let to = target
        .resolve(arguments.family())
        .map_err(|source| Error::Resolve { target: target.clone(), source })?;
    let line = open_line(to, &arguments.datagrams)?;
    let pace = arguments.rate.map_or(Pace::FlatOut, Pace::Rate);
    let schedule = Schedule::new(pace, Goal::of(arguments));
    let batch = BUFFER_BYTES / shape.datagram_bytes;
    let mut belt = DatagramBelt { line, schedule, payload, path, shape, batch, look_ns: 0 };
    let is_there = belt.line.connect(&interrupt)?;
    let start = processor::Start::now();
    let mut run = match is_there {
        true => run::run(&mut belt, &interrupt),
        false => Run::interrupted(),
    };
    let ended = if belt.line.is_ended_by_receiver() { Ended::ByReceiver } else { Ended::from(&run) };
    if is_there && run.failure.is_none() {
        run.failure = finish(&mut belt).err().map(Failure::from);
    }
    let used = start.used(belt.schedule.tally.packets);
    let whom = (target.to_string(), to);
    let summary = Summary::new(arguments, whom, &mut belt, (pace, &run, ended), used);
    print(&summary, arguments.json, run)
}

fn shape(arguments: &SendArguments) -> Result<Shape, Error> {
    let header_bytes = if arguments.datagrams.raw { 0 } else { DATA_HEADER_BYTES };
    let (bytes, bytes_min) = (arguments.size.unwrap_or(DATAGRAM_BYTES), header_bytes + 1);
    let why = match bytes {
        _ if bytes < bytes_min as u64 => "there is nothing behind nocopy's header, which --raw leaves out",
        _ if bytes > DATAGRAM_BYTES_MAX as u64 => "UDP takes no more",
        _ => return Ok(Shape { header_bytes, datagram_bytes: bytes as usize }),
    };
    Err(Error::Size { bytes, why, bytes_min, bytes_max: DATAGRAM_BYTES_MAX })
}

fn open(arguments: &DatagramArguments, shape: Shape) -> Result<(PathBuf, Payload), Error> {
    let path = match &arguments.file {
        Some(path) if path != Path::new("-") => path.clone(),
        None if !arguments.stdin => {
            let pattern = Pattern::new(shape.datagram_bytes - shape.header_bytes);
            return Ok((PathBuf::new(), Payload::Pattern(pattern)));
        }
        _ => PathBuf::from("standard input"),
    };
    let opened = match &arguments.file {
        Some(file) if *file == path => Input::open_at_once(file),
        _ => Input::of_standard_input(),
    };
    let input = opened.map_err(|source| Error::Input { path: path.clone(), source })?;
    Ok((path, Payload::Stream(input)))
}

fn open_line(to: SocketAddr, arguments: &DatagramArguments) -> Result<Line, Error> {
    if to.ip().is_multicast() && !arguments.raw {
        return Err(Error::Multicast { to });
    }
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let builder = match method(arguments.method) {
        None => Socket::builder(),
        Some(method) => Socket::builder().method(method),
    };
    let mut socket = builder.bind((any, 0).into())?;
    socket.connect(to).map_err(|source| Error::Connect { to, source })?;
    let sending = match arguments.raw {
        true => None,
        false => Some(Sending::new(random()?, arguments.verify, arguments.connect_timeout)),
    };
    Ok(Line::new(socket, to, sending))
}

fn method(name: MethodName) -> Option<Method> {
    Some(match name {
        MethodName::Auto => return None,
        MethodName::Socket => Method::Socket,
        MethodName::Sendmmsg => Method::SendMmsg,
        MethodName::Gso => Method::Gso,
        MethodName::Zerocopy => Method::ZeroCopy,
        MethodName::ZerocopyGso => Method::ZeroCopyGso,
        MethodName::UringZerocopy => Method::UringZeroCopy,
    })
}

/// Never short: so few bytes come at once (getrandom(2)).
fn random() -> Result<u64, Error> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|errno| Error::Random(errno.into()))?;
    Ok(u64::from_ne_bytes(bytes))
}

fn finish(belt: &mut DatagramBelt) -> Result<(), Error> {
    belt.line.socket.sender().drain(PATIENCE).map(drop).or_else(Line::forgive)?;
    belt.line.finish()
}

fn print(summary: &Summary, json: bool, run: Run) -> Result<Outcome, Failure> {
    let text = if json { summary.json() } else { summary.table() };
    let mut output = io::stdout().lock();
    let printed = output.write_all(text.as_bytes()).and_then(|()| output.flush()).map_err(Failure::Print);
    match (run.failure, printed) {
        (Some(failure), _) => Err(failure),
        (None, Err(failure)) if !failure.is_broken_pipe() => Err(failure),
        // Whether or not anybody reads it, it went as it went.
        (None, _) => Ok(summary.outcome()),
    }
}
