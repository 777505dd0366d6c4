//! `nocopy recv udp://…`: receives datagrams from a host, and reports what is missing.

mod output;
mod reorder_buffer;
mod summary;
mod tally;

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::net::{SocketAddr, SocketAddrV6};
use std::time::{Duration, Instant};

use nocopy::udp::{Builder, Metadata, OpenError, Receiver, Sender, Socket};

use nocopy::integration::Run;
use nocopy_lab::Interface;

use crate::Failure;
use crate::arguments::RecvArguments;
use crate::endpoint::Endpoint;
use crate::failure::CommandError;
use nocopy_report::address::{FailedAttempts, is_address_not_local};
use nocopy_report::live::LiveLine;
use nocopy_report::quantity::short_number;
use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, print};
use output::DatagramOutput;
use summary::Summary;
use tally::{DatagramAction, Tally};

/// The longest wait for datagrams: after it the live line is updated, and the user may interrupt.
const WAIT: Duration = Duration::from_millis(20);

/// How often to read the kernel's drops while datagrams arrive.
const DROPS_INTERVAL: Duration = Duration::from_millis(10);

/// The kernel's buffer for unreceived datagrams.
const BUFFER_BYTES: u64 = 8 << 20;

#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("{address}: no address to receive at{cause}; name an address of this host, or leave it out", cause = ErrorCause(.source))]
    Resolve { address: Endpoint, source: io::Error },
    #[error("{address}: cannot receive there{cause}; name an address of this host, and a port that is free", cause = ErrorCause(.source))]
    Bind { address: Endpoint, source: io::Error },
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(
        "{to}: needs --raw; it is a multicast address, and senders to a group do not announce what they send; add --raw"
    )]
    Group { to: SocketAddr },
    #[error(
        "--interface: cannot be used here; it needs a multicast address; leave it out, and name an address of that interface"
    )]
    NeedlessInterface,
    #[error("recv: cannot find out the address of its socket{cause}; start it where getsockname(2) is allowed", cause = ErrorCause(.0))]
    Address(#[source] io::Error),
    #[error("recv: cannot receive{cause}; start it again", cause = ErrorCause(.0))]
    Receive(#[source] io::Error),
}

impl CommandError for Error {}

pub(super) fn run(arguments: &RecvArguments, interrupt: Interrupt) -> Result<Outcome, Failure> {
    let socket = bind_socket(arguments)?;
    capability::drop_all_but(capability::NONE)?;
    // With the user's own rights only. An existing file is kept if nothing can be received.
    let output = arguments
        .output
        .as_deref()
        .map(|path| DatagramOutput::open(path, arguments.create_options(), &interrupt))
        .transpose()?;
    let address = socket.local_addr().map_err(Error::Address)?;
    super::print_address(arguments, address);
    let mut reception = UdpReceiveCommand::new(arguments, socket, output, interrupt);
    let failure = reception.run().err();
    let summary = reception.summary(address, failure.is_some());
    print::print_summary(&summary, arguments.json, failure)
}

/// At the first address of the host that this machine has.
fn bind_socket(arguments: &RecvArguments) -> Result<Socket, Failure> {
    let own = arguments.address();
    let addresses = own.local_addrs();
    let addresses = addresses.map_err(|source| Error::Resolve { address: own.clone(), source })?;
    let mut failed = FailedAttempts::default();
    for address in &addresses {
        let builder = Socket::builder().receive_buffer(arguments.buffer.unwrap_or(BUFFER_BYTES) as usize);
        if address.ip().is_multicast() {
            return join_group(builder.reuse_address(true), *address, arguments);
        }
        if arguments.datagrams.interface.is_some() {
            return Err(Error::NeedlessInterface.into());
        }
        // At the wildcard, reports are sent from the address to which the probe was sent.
        match builder.receive_metadata(address.ip().is_unspecified()).bind(*address) {
            Ok(socket) => return Ok(socket),
            Err(OpenError::Bind { source, .. } | OpenError::Socket(source))
                if addresses.len() > 1 && is_address_not_local(&source) =>
            {
                failed.record(*address, source);
            }
            Err(error) => return Err(Error::Open(error).into()),
        }
    }
    Err(Error::Bind { address: own.clone(), source: failed.into_error() }.into())
}

/// Receives from a group, possibly together with others on this host.
fn join_group(builder: Builder, group: SocketAddr, arguments: &RecvArguments) -> Result<Socket, Failure> {
    if !arguments.raw {
        return Err(Error::Group { to: group }.into());
    }
    let interface = arguments.datagrams.interface.as_deref();
    let index = match (interface, group) {
        (Some(name), _) => Interface::find(name).map_err(Failure::from_interface_lookup(name))?.index,
        (None, SocketAddr::V6(group)) => group.scope_id(),
        (None, SocketAddr::V4(_)) => 0,
    };
    let own = match group {
        // Link-local groups need an interface (RFC 4007).
        SocketAddr::V6(group) if interface.is_some() => {
            SocketAddrV6::new(*group.ip(), group.port(), group.flowinfo(), index).into()
        }
        group => group,
    };
    let builder = builder.group(group.ip()).multicast(index, 1);
    Ok(builder.bind(own).map_err(Error::Open)?)
}

struct UdpReceiveCommand<'a> {
    arguments: &'a RecvArguments,
    sender: Sender,
    receiver: Receiver,
    output: Option<DatagramOutput>,
    interrupt: Interrupt,
    tally: Tally,
    start: Instant,
    drops_read_at: Instant,
    ended: Option<CommandEnd>,
    /// The address of this host to which the sender sent its last probe.
    probe: Option<Metadata>,
}

impl<'a> UdpReceiveCommand<'a> {
    fn new(
        arguments: &'a RecvArguments,
        socket: Socket,
        output: Option<DatagramOutput>,
        interrupt: Interrupt,
    ) -> Self {
        let (receiver, sender) = socket.split();
        let tally = match arguments.raw {
            true => Tally::without_headers(arguments.datagrams.count, arguments.idle),
            false => Tally::with_headers(
                arguments.datagrams.count,
                arguments.idle.unwrap_or(super::IDLE),
                arguments.verify,
            ),
        };
        let start = Instant::now();
        Self {
            arguments,
            sender,
            receiver,
            output,
            interrupt,
            tally,
            start,
            drops_read_at: start,
            ended: None,
            probe: None,
        }
    }

    fn run(&mut self) -> Result<(), Failure> {
        let mut live = LiveStatus::new();
        let received = self.receive_all(&mut live);
        if received.is_err() {
            // The sender is informed in order, although nothing is written any more.
            self.ended = Some(CommandEnd::Failed);
            self.finish_counting();
            let output = self.output.take();
            let _ = self.receive_all(&mut live); // the first failure is the one to tell
            self.output = output;
        }
        drop(live);
        // Who interrupts it does not want to wait for the disk.
        let is_complete = received.is_ok() && self.ended != Some(CommandEnd::Interrupted);
        let finish = if is_complete { DatagramOutput::finish } else { DatagramOutput::flush_pending };
        let written = self.output.as_mut().map_or(Ok(()), finish);
        received.and(written.map_err(Failure::from))
    }

    fn receive_all(&mut self, live: &mut LiveStatus) -> Result<(), Failure> {
        loop {
            let elapsed = self.start.elapsed();
            if self.ended.is_none()
                && let Some(ended) = self.reason_to_end(elapsed)
            {
                self.ended = Some(ended);
                self.finish_counting();
            }
            self.receive()?;
            // Everything that had arrived was read: if the receiver itself stalled, the sender does not count
            // as silent.
            if let Some(ended) = self.tally.reason_to_end(elapsed.as_nanos() as u64, self.ended.is_some()) {
                self.ended.get_or_insert(ended);
                return Ok(());
            }
            live.update(&self.tally);
        }
    }

    fn reason_to_end(&self, elapsed: Duration) -> Option<CommandEnd> {
        if self.interrupt.was_interrupted() {
            Some(CommandEnd::Interrupted)
        } else if self.tally.has_reached_count() {
            Some(CommandEnd::Count)
        } else {
            self.arguments
                .duration
                .is_some_and(|duration| elapsed >= duration)
                .then_some(CommandEnd::Duration)
        }
    }

    fn receive(&mut self) -> Result<(), Failure> {
        let Self { arguments, receiver, sender, tally, output, start, drops_read_at, probe, .. } = self;
        if drops_read_at.elapsed() >= DROPS_INTERVAL {
            *drops_read_at = Instant::now();
            record_kernel_drops(tally, receiver);
        }
        let runs = receiver.receive_timeout(WAIT).map_err(Error::Receive)?.into_runs();
        let now_ns = start.elapsed().as_nanos() as u64; // ns of 584 years
        let datagrams: usize = runs.iter().map(Run::len).sum();
        let mut pieces = Vec::with_capacity(if output.is_some() { datagrams } else { 0 });
        let each = runs.iter().flat_map(|run| run.datagrams().map(move |bytes| (run, bytes)));
        for (run, bytes) in each {
            let from = run.source();
            if !arguments.is_sender_allowed(from) {
                tally.count_rejected();
                continue;
            }
            match tally.handle_datagram(from, bytes, now_ns) {
                DatagramAction::Piece(offset, bytes) if output.is_some() => pieces.push((offset, bytes)),
                DatagramAction::Report(report) => {
                    *probe = Some(run.metadata());
                    send_report(sender, from, *probe, &report);
                }
                _ => {}
            }
        }
        match output {
            Some(output) if datagrams == 0 => Ok(output.flush_pending()?),
            Some(output) => Ok(output.write(pieces)?),
            None => Ok(()),
        }
    }

    /// Stops counting, and informs the sender.
    fn finish_counting(&mut self) {
        record_kernel_drops(&mut self.tally, &mut self.receiver);
        let now_ns = self.start.elapsed().as_nanos() as u64;
        if let Some((to, report)) = self.tally.stop_counting(now_ns) {
            send_report(&mut self.sender, to, self.probe, &report);
        }
    }

    fn summary(&mut self, address: SocketAddr, failed: bool) -> Summary {
        let ended = if failed { CommandEnd::Failed } else { self.ended.unwrap_or(CommandEnd::Done) };
        let evidence = self.receiver.ledger().into();
        let left_out = self.output.as_ref().is_some_and(DatagramOutput::has_missing_pieces);
        let summary = self.tally.summary(
            address,
            ended,
            evidence,
            self.output.as_ref().map(DatagramOutput::description),
        );
        Summary { left_out, ..summary }
    }
}

/// Sends a report; if it is lost, the sender sends another probe.
fn send_report(sender: &mut Sender, to: SocketAddr, probe: Option<Metadata>, report: &[u8]) {
    let _ = crate::answer::send_answer(sender, report, to, probe);
}

/// If the kernel does not report drops, they are unknown, but losses are still known.
fn record_kernel_drops(tally: &mut Tally, receiver: &mut Receiver) {
    if let Some(drops) = receiver.stats().get("sk_drops") {
        tally.record_kernel_drops(drops);
    }
}

struct LiveStatus {
    line: LiveLine,
    datagrams: u64,
    bytes: u64,
}

impl LiveStatus {
    fn new() -> Self {
        Self { line: LiveLine::default(), datagrams: 0, bytes: 0 }
    }

    fn update(&mut self, tally: &Tally) {
        let Self { line, datagrams, bytes } = self;
        line.update(Instant::now(), |since| {
            let a_second = |count: u64| short_number(count as f64 / since.as_secs_f64());
            let text = format!(
                "{} datagrams, {} datagrams/s, {}bit/s{}",
                tally.datagrams(),
                a_second(tally.datagrams() - *datagrams),
                a_second(8 * (tally.bytes() - *bytes)),
                tally.lost().map(|lost| format!(", lost {lost}")).unwrap_or_default(),
            );
            (*datagrams, *bytes) = (tally.datagrams(), tally.bytes());
            text
        });
    }
}
