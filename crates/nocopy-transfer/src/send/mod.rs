//! `nocopy send`: sends packets on an interface, generated or replayed from a file; or datagrams to a host
//! (`udp`).

mod error;
mod flow;
mod input;
mod kernel;
mod pacer;
mod pattern;
mod pause;
mod queue;
mod replay;
mod run;
mod source;
mod summary;
mod table;
mod tcp;
mod template;
mod transmitter;
mod udp;

#[cfg(any(feature = "fuzzing", test))]
pub use replay::oracle::check_file as check_capture;

use std::io;
use std::panic::resume_unwind;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use nocopy::Port;
use nocopy::integration::statistics::Snapshot;
use nocopy::integration::xdp::Generator;
use nocopy::port::Purpose;
use nocopy_lab::Interface;
use nocopy_proto::MacAddress;
use nocopy_proto::wire::udp::HEADER_BYTES as UDP_HEADER_BYTES;
use rustix::rand::{GetRandomFlags, getrandom};
use rustix::thread::CapabilitySet;

use crate::Failure;
use crate::arguments::{
    FrameArguments, PacketGeneratorArgument, PayloadArgument, RepeatCount, ReplayTimingArgument,
    SendArguments, SendTarget,
};
use error::Error;
use kernel::KernelTransmitter;
use nocopy_report::Interrupt;
use nocopy_report::{Outcome, capability, input_file, print};
use pacer::Pace;
use queue::{Schedule, ScheduledSource, SendLimits, longest_frame_bytes};
use replay::{MacAddresses, PlaybackSettings, ReplaySource};
use run::SendRunResult;
use source::PacketSource;
use summary::Summary;
use template::{GeneratedPayload, PacketTemplate};
use transmitter::PortTransmitter;

/// Frames of a port, and entries of its tx ring.
const FRAMES: u32 = 2048;

/// The longest MTU whose frames fit one page: with a longer MTU, packets may consist of several frames.
const ONE_FRAME_MTU_BYTES: u32 = 3818;

/// The longest payload of a datagram, in IPv6; its length has 16 bits.
const PAYLOAD_BYTES_MAX: usize = u16::MAX as usize - UDP_HEADER_BYTES;

/// How long the kernel may take to finish sending.
const PATIENCE: Duration = Duration::from_secs(2);

pub fn run(arguments: &SendArguments) -> Result<Outcome, Failure> {
    // Before signals are caught: it may be a pipe that nothing is written to. It is opened with the rights of
    // the user.
    let payload = load_payload(arguments.frames.payload.as_ref())?;
    let interrupt = Interrupt::catch()?;
    let SendTarget { target, udp, tcp } = &arguments.target;
    match (target, udp, tcp) {
        (Some(interface), ..) => send_on_interface(interface, arguments, payload, interrupt),
        (_, Some(endpoint), _) => udp::run(endpoint, arguments, interrupt),
        (.., Some(endpoint)) => tcp::run(endpoint, arguments, interrupt),
        (None, None, None) => unreachable!("clap requires one of them"),
    }
}

/// A random number for each run, to distinguish it from others. getrandom(2) always returns so few bytes
/// completely.
fn random_run_number() -> io::Result<u64> {
    let mut bytes = [0; 8];
    getrandom(&mut bytes, GetRandomFlags::empty())?;
    Ok(u64::from_ne_bytes(bytes))
}

fn send_on_interface(
    interface: &str,
    arguments: &SendArguments,
    payload: Option<GeneratedPayload>,
    interrupt: Interrupt,
) -> Result<Outcome, Failure> {
    let pace = requested_pace(arguments)?;
    // Files are opened with the rights of the user, before capabilities are dropped.
    match (&arguments.frames.replay, arguments.frames.generator) {
        (Some(path), _) => {
            let input = replay::open_replay_input(path, &interrupt)?;
            let command = SendCommand::prepare(interface, arguments, pace, interrupt)?;
            command.send_replay(ReplaySource::new(
                path,
                input,
                command.playback_settings(),
                &command.interrupt,
            )?)
        }
        (None, generator) => {
            if generator == PacketGeneratorArgument::Kernel {
                kernel::refuse_unsupported_options(arguments)?;
            }
            let command = SendCommand::prepare(interface, arguments, pace, interrupt)?;
            match generator {
                PacketGeneratorArgument::Program => command.send_generated(payload),
                PacketGeneratorArgument::Kernel => command.send_by_kernel(payload),
            }
        }
    }
}

fn requested_pace(arguments: &SendArguments) -> Result<Pace, Error> {
    let SendArguments { rate, frames, replay, .. } = arguments;
    match (*rate, frames.replay.is_some(), frames.timing) {
        (Some(rate), ..) => Ok(Pace::Rate(rate)),
        (None, true, None | Some(ReplayTimingArgument::Recorded)) => {
            Ok(Pace::Recorded { speed: frames.speed.unwrap_or(1.0) })
        }
        (None, ..) if frames.speed.is_some() => Err(Error::NotFlatOut { option: "--speed" }),
        (None, ..) if replay.max_gap.is_some() => Err(Error::NotFlatOut { option: "--max-gap" }),
        (None, ..) => Ok(Pace::FlatOut),
    }
}

fn load_payload(payload: Option<&PayloadArgument>) -> Result<Option<GeneratedPayload>, Error> {
    Ok(match payload {
        None => None,
        Some(PayloadArgument::Sequence) => Some(GeneratedPayload::Sequence),
        Some(PayloadArgument::Zeros) => Some(GeneratedPayload::Bytes(Vec::new())),
        Some(PayloadArgument::Bytes(bytes)) => Some(GeneratedPayload::Bytes(bytes.clone())),
        Some(PayloadArgument::File(path)) => {
            let (name, bytes_max) = (input_file::display_name(path), PAYLOAD_BYTES_MAX);
            match input_file::read_limited(path, bytes_max) {
                Ok(Some(bytes)) => Some(GeneratedPayload::Bytes(bytes)),
                Ok(None) => return Err(Error::LongPayload { path: name, bytes_max }),
                Err(source) => return Err(Error::PayloadFile { path: name, source }),
            }
        }
    })
}

struct SendCommand<'a> {
    arguments: &'a SendArguments,
    interface: Interface,
    pace: Pace,
    interrupt: Interrupt,
}

impl<'a> SendCommand<'a> {
    fn prepare(
        interface: &str,
        arguments: &'a SendArguments,
        pace: Pace,
        interrupt: Interrupt,
    ) -> Result<Self, Failure> {
        capability::drop_all_but(capability::NETWORK)?;
        let interface = Interface::find(interface).map_err(Failure::from_interface_lookup(interface))?;
        Ok(Self { arguments, interface, pace, interrupt })
    }

    fn send_replay(&self, replay: ReplaySource) -> Result<Outcome, Failure> {
        let port = self.open_port(false)?;
        let transmitter = PortTransmitter::new(port, self.schedule_source(replay), usize::MAX, None);
        let is_timed = matches!(self.pace, Pace::Recorded { .. });
        self.send_through_port(transmitter, |summary, replay| summary.add_replay(replay, is_timed))
    }

    fn playback_settings(&self) -> PlaybackSettings {
        let SendArguments { frames, replay, .. } = self.arguments;
        PlaybackSettings {
            rounds: frames.rounds.unwrap_or(RepeatCount::Times(1)),
            gap_max: replay.max_gap.unwrap_or(replay::GAP_MAX),
            addresses: MacAddresses {
                source: frames.source_mac,
                destination: frames.destination_mac,
                own: MacAddress(self.interface.mac),
                absent: flow::UNUSED_MAC,
            },
            fix_checksums: replay.fix_checksums,
        }
    }

    fn send_generated(&self, payload: Option<GeneratedPayload>) -> Result<Outcome, Failure> {
        let template = self.build_template(payload)?;
        let (frame_bytes, checksum) = (template.frame_bytes(), template.offloaded_checksum());
        let port = self.open_port(checksum.is_some())?;
        if checksum.is_some()
            && let Err(source) = port.explain().checksum
        {
            return Err(Error::DeviceChecksum { interface: self.interface.name.clone(), source }.into());
        }
        self.send_through_port(
            PortTransmitter::new(port, self.schedule_source(template), frame_bytes, checksum),
            |_, _| {},
        )
    }

    fn send_by_kernel(&self, payload: Option<GeneratedPayload>) -> Result<Outcome, Failure> {
        let template = self.build_template(Some(payload.unwrap_or(kernel::PAYLOAD)))?;
        let name = &self.interface.name;
        let generator = Generator::new(name)?;
        // A program can be used through its descriptor; before Linux 5.19 that needed CAP_BPF if bpf(2) is
        // restricted.
        capability::drop_all_but(CapabilitySet::BPF)?;
        let mut transmitter = KernelTransmitter::new(name, generator, self.schedule_source(template));
        let before = Snapshot::of_interface(name)?;
        let run = run_with_blocked_signals(|| run::run_transmitter(&mut transmitter, &self.interrupt));
        let mut summary = Summary::from_kernel(name, &transmitter, self.pace, &run);
        summary.add_uncounted_packets(wait_for_tx_count(name, &before, summary.packets));
        self.finish_summary(summary, &before, run)
    }

    fn build_template(&self, payload: Option<GeneratedPayload>) -> Result<PacketTemplate, Error> {
        let Interface { name, mac, mtu_bytes, .. } = &self.interface;
        let headers = flow::udp_headers(self.arguments, *mac)?;
        let bytes_max = longest_frame_bytes(*mtu_bytes as usize, headers.vlan.is_some());
        let too_long = |frame_bytes| Error::FrameTooLong {
            interface: name.clone(),
            mtu_bytes: *mtu_bytes,
            frame_bytes,
            bytes_max,
        };
        if let Some(frame_bytes) = self.arguments.size.filter(|&bytes| bytes > bytes_max as u64) {
            return Err(too_long(frame_bytes));
        }
        let template =
            PacketTemplate::new(&headers, payload, self.arguments.size, self.arguments.frames.flows)?;
        match template.frame_bytes() {
            frame_bytes if frame_bytes > bytes_max => Err(too_long(frame_bytes as u64)),
            _ => Ok(template),
        }
    }

    fn schedule_source<S>(&self, source: S) -> ScheduledSource<S> {
        ScheduledSource {
            source,
            schedule: Schedule::new(self.pace, SendLimits::from_arguments(self.arguments)),
            mtu_bytes: self.interface.mtu_bytes as usize,
        }
    }

    /// A port that only sends: arriving packets stay with the host.
    fn open_port(&self, offloads_checksum: bool) -> Result<Port, Failure> {
        let FrameArguments { queue, mode, .. } = &self.arguments.frames;
        let builder = Port::builder(&self.interface.name)
            .queue(*queue)
            .purpose(Purpose::Send)
            .frame_count(0, FRAMES)
            .ring_sizes(FRAMES, FRAMES)
            .multi_buffer(self.interface.mtu_bytes > ONE_FRAME_MTU_BYTES)
            .send_metadata(offloads_checksum);
        let port = match mode {
            Some(mode) => builder.mode((*mode).into()).open()?,
            None => builder.open()?,
        };
        capability::drop_all_but(capability::NONE)?;
        Ok(port)
    }

    fn send_through_port<S: PacketSource>(
        &self,
        mut transmitter: PortTransmitter<S>,
        add: impl FnOnce(&mut Summary, &mut S),
    ) -> Result<Outcome, Failure> {
        let name = &self.interface.name;
        let before = Snapshot::of_interface(name)?;
        let mut run = run::run_transmitter(&mut transmitter, &self.interrupt);
        run.drain_transmitter(&mut transmitter, self.pace == Pace::FlatOut, PATIENCE);
        let mut summary = Summary::from_port(name, &mut transmitter, self.pace, &run);
        add(&mut summary, transmitter.source());
        self.finish_summary(summary, &before, run)
    }

    fn finish_summary(
        &self,
        mut summary: Summary,
        before: &Snapshot,
        run: SendRunResult,
    ) -> Result<Outcome, Failure> {
        // Without an interface there are no counters.
        if let Ok(after) = Snapshot::of_interface(&self.interface.name) {
            summary.add_interface_counters(&after.since(before).link);
        }
        print::print_summary(&summary, self.arguments.json, run.failure)
    }
}

/// Runs `act` on a thread that receives no signals; they go to the main thread. A signal would make the
/// kernel end a call of its generator without reporting how many frames it had sent.
fn run_with_blocked_signals<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    let blocked = || {
        SigSet::all().thread_block().expect("a thread has a mask of signals");
        act()
    };
    thread::scope(|scope| scope.spawn(blocked).join()).unwrap_or_else(|panic| resume_unwind(panic))
}

/// Packets that the interface has counted as sent since `before`; waits for some time until there are
/// `packets` of them.
fn wait_for_tx_count(interface: &str, before: &Snapshot, packets: u64) -> u64 {
    let start = Instant::now();
    loop {
        let counted = Snapshot::of_interface(interface).map_or(0, |now| now.since(before).link.tx_packets);
        if counted >= packets || start.elapsed() >= PATIENCE {
            return counted;
        }
        sleep(Duration::from_millis(20));
    }
}
