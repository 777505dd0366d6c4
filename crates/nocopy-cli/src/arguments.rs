//! The command line; manual page and completions are made from the same definitions.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use nocopy::Mode;
use nocopy::filter::{self, Program};
use nocopy_proto::MacAddress;
use nocopy_proto::wire::vlan::TagControl;

use crate::Failure;
use crate::bench::METHODS;
use crate::quantity::{self, Rate};
use crate::record::Field;

/// Measure and move packets without the copies you did not ask for.
#[derive(Debug, Parser)]
#[command(name = "nocopy", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The interface that every namespace has: what is sent on it comes in on it, and would be seen twice.
pub(crate) const LOOPBACK: &str = "lo";

const EXIT_CODES: &str = "Exit codes: 0 done, 1 a negative result, 2 an error.";

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare AF_XDP with the kernel's other ways, on real packets.
    ///
    /// Makes a private lab (a veth pair between two unnamed network namespaces, gone with the process), runs
    /// every method in turn, many times, and prints medians with a confidence interval on each ratio.
    Bench(BenchArguments),
    /// Say what this machine, and an interface, would let a port do, and what would open what is closed.
    ///
    /// Looks, and changes nothing: it prints the commands that would. Exit code 1 if a port cannot be opened.
    Doctor(DoctorArguments),
    /// Show what is counted for an interface, live: packets, drops, and AF_XDP sockets of every process.
    ///
    /// Under the names of the kernel and the driver, as rates and totals; a table on a terminal, one line a counter elsewhere.
    /// Looks, and changes nothing. Ends when interrupted.
    Stats(StatsArguments),
    /// Print the packets of an interface, one a line.
    ///
    /// Looks on, and the host keeps its traffic, unless told to take it. Ends when interrupted, with a summary on standard error.
    Sniff(SniffArguments),
    /// Record the packets of an interface into a file, without loss.
    ///
    /// The host keeps its traffic. The kernel's blocks of packets become a pcapng file where they lie, and the disk reads them there.
    /// Ends when interrupted, and says what was received, written and lost. Exit code 1 if packets were lost.
    Record(RecordArguments),
    /// Part of `record`: cuts its file back if it is killed.
    #[command(hide = true)]
    RecordGuard,
    /// Send packets out of an interface: made, or replayed from a file.
    ///
    /// Ends after a count or a time, at the end of the file, or when interrupted, and prints what was handed over, completed and
    /// lost. Completed is not delivered: only the receiver knows that. Exit code 1 if fewer packets were sent than asked for.
    Send(SendArguments),
    /// Print the manual page.
    Man {
        /// Of this command instead of nocopy itself.
        command: Option<String>,
    },
    /// Print the completions for a shell.
    Completions {
        /// Which shell.
        shell: Shell,
    },
}

#[derive(Debug, Args)]
pub(crate) struct BenchArguments {
    /// What to measure; everything unless said.
    #[arg(value_enum, value_name = "WORKLOAD")]
    pub(crate) workloads: Vec<WorkloadName>,
    /// Half the time.
    #[arg(long)]
    pub(crate) quick: bool,
    /// How often every method runs; fewer if the time runs out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) rounds: Option<u32>,
    /// Write the results to FILE too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
    /// Send from this interface instead of a private lab; an XDP program is attached to it meanwhile.
    #[arg(long, value_name = "A", requires = "peer")]
    pub(crate) interface: Option<String>,
    /// Receive on this interface, which must be connected to A.
    #[arg(long, value_name = "B", requires = "interface")]
    pub(crate) peer: Option<String>,
    /// Only this method, and its baseline if that is named too; may be repeated.
    #[arg(long = "method", value_name = "METHOD", value_parser = PossibleValuesParser::new(METHODS))]
    pub(crate) methods: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArguments {
    /// Look at this interface too.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// Print JSON instead of a table.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Args)]
pub(crate) struct StatsArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
    /// Seconds from one refresh to the next.
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = interval)]
    pub(crate) interval: Duration,
    /// End after N refreshes.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
    /// Print the totals as they are now, and end.
    #[arg(long, conflicts_with_all = ["interval", "count"])]
    pub(crate) once: bool,
    /// Show also what has never counted anything.
    #[arg(long)]
    pub(crate) all: bool,
    /// Print a line of JSON for each refresh.
    #[arg(long)]
    pub(crate) json: bool,
    /// Print the totals as they are now as OpenMetrics text, and end.
    #[arg(long, conflicts_with_all = ["interval", "count", "json"])]
    pub(crate) openmetrics: bool,
}

/// Which packets a capture is of.
#[derive(Debug, Args)]
pub(crate) struct FilterArguments {
    /// Only packets that match, in the words of pcap-filter(7): 'udp port 9000 and host 10.0.0.1'.
    #[arg(value_name = "FILTER")]
    words: Vec<String>,
    /// Only packets that match the filter in FILE, compiled as by 'tcpdump -ddd'.
    #[arg(long, value_name = "FILE", conflicts_with = "words")]
    bytecode: Option<PathBuf>,
}

impl FilterArguments {
    /// The filter, as it was given.
    pub(crate) fn words(&self) -> Option<String> {
        (!self.words.is_empty()).then(|| self.words.join(" "))
    }

    /// The filter, compiled.
    pub(crate) fn program(&self) -> Result<Option<Program>, Failure> {
        if let Some(path) = &self.bytecode {
            let text = std::fs::read_to_string(path)
                .map_err(|source| Failure::Input { path: path.clone(), source })?;
            let parsed = Program::parse(&text);
            return parsed.map(Some).map_err(|source| Failure::Bytecode { path: path.clone(), source });
        }
        match self.words.join(" ") {
            words if words.trim().is_empty() => Ok(None),
            words => Ok(Some(filter::compile(&words)?)),
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct SniffArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// End after N packets.
    #[arg(short, long, value_name = "N", value_parser = quantity::count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 200ms, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) duration: Option<Duration>,
    /// Look at no more than N bytes of each packet.
    #[arg(short, long, value_name = "N", value_parser = quantity::bytes)]
    pub(crate) snap: Option<u64>,
    /// Print the link-level header.
    #[arg(short = 'e', long)]
    pub(crate) link: bool,
    /// Print each packet's bytes, too.
    #[arg(short = 'x', long)]
    pub(crate) hex: bool,
    /// Print well-known ports by name.
    #[arg(long)]
    pub(crate) names: bool,
    /// Print no packets, but rates while it runs (on a terminal), and the summary.
    #[arg(short, long, conflicts_with_all = ["link", "hex", "names", "time", "relative"])]
    pub(crate) quiet: bool,
    /// How to print times.
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "local")]
    pub(crate) time: TimeFormat,
    /// Print times since the first packet: '--time relative'.
    #[arg(long, conflicts_with = "time")]
    pub(crate) relative: bool,
    /// Print a line of JSON for each packet, and for the summary.
    #[arg(long, conflicts_with_all = ["time", "relative"])]
    pub(crate) json: bool,
    /// Only what comes in.
    #[arg(long, conflicts_with = "outgoing")]
    pub(crate) incoming: bool,
    /// Only what the host sends.
    #[arg(long)]
    pub(crate) outgoing: bool,
    /// Leave the interface as it is: no packets for other hosts.
    #[arg(long)]
    pub(crate) no_promiscuous: bool,
    /// Take the packets away from the host: all of them, or those that match.
    #[arg(long, conflicts_with = "outgoing")]
    pub(crate) take: bool,
    /// Take them in this mode or not at all.
    #[arg(long, value_name = "MODE", requires = "take", value_parser = taking_mode())]
    pub(crate) mode: Option<ModeName>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimeFormat {
    /// Clock time, here.
    Local,
    /// Clock time, in UTC.
    Utc,
    /// Seconds since 1970.
    Epoch,
    /// Seconds since the first packet.
    Relative,
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
    /// Record into FILE; with rotation, into files whose names have a number and a time added.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: PathBuf,
    /// Overwrite files that exist.
    #[arg(long)]
    pub(crate) force: bool,
    /// What is written.
    #[arg(long, value_enum, default_value_t = RecordFormat::Pcapng)]
    pub(crate) format: RecordFormat,
    /// In payloads, the place of a counter whose gaps are counted: bytes from the beginning, width in bytes (1, 2, 4, 8), byte order.
    #[arg(long, value_name = "OFFSET:WIDTH:be|le", value_parser = Field::parse)]
    pub(crate) sequence: Option<Field>,
    /// Take the packets from the host instead of looking at them: through AF_XDP.
    #[arg(long)]
    pub(crate) take: bool,
    /// Only what comes in, and not what the host sends.
    #[arg(long)]
    pub(crate) incoming: bool,
    /// Leave the interface as it is: no packets for other hosts.
    #[arg(long)]
    pub(crate) no_promiscuous: bool,
    /// Keep at most so many bytes of a packet.
    #[arg(long, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1..=262_144), default_value = "262144")]
    pub(crate) snap: u32,
    /// End after N packets.
    #[arg(short, long, value_name = "N", value_parser = quantity::count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) duration: Option<Duration>,
    /// Begin a new file before this one is larger; at least 1 MiB.
    #[arg(long, value_name = "BYTES", value_parser = rotate_size)]
    pub(crate) rotate_size: Option<u64>,
    /// Begin a new file after so long.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) rotate_time: Option<Duration>,
    /// Keep the last N files, and delete those before.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) files: Option<u32>,
    /// Memory for packets that are not written yet.
    #[arg(long, value_name = "BYTES", value_parser = buffer_size, default_value = "256MiB")]
    pub(crate) buffer: u64,
    /// Print the summary as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecordFormat {
    /// Packets, with nanosecond times and drop counts.
    Pcapng,
    /// What UDP datagrams carry, back to back.
    Payload,
}

fn rotate_size(text: &str) -> Result<u64, String> {
    quantity::bytes(text).and_then(|bytes| match bytes {
        ..1_048_576 => Err("less than 1 MiB".into()),
        _ => Ok(bytes),
    })
}

fn buffer_size(text: &str) -> Result<u64, String> {
    quantity::bytes(text).and_then(|bytes| match bytes {
        1_048_576..=3_221_225_472 => Ok(bytes),
        _ => Err("not from 1MiB to 3GiB".into()),
    })
}

#[derive(Debug, Args)]
pub(crate) struct SendArguments {
    /// The interface, of this network namespace.
    // Later also `udp://HOST:PORT`: one word, whatever it names.
    #[arg(value_name = "INTERFACE")]
    pub(crate) target: String,
    /// End after N packets.
    #[arg(short, long, value_name = "N", value_parser = quantity::count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) duration: Option<Duration>,
    /// So many packets or bits a second (300kpps, 1Gbit/s; bits are those of the frames, without FCS); flat out unless said.
    #[arg(long, value_name = "RATE", value_parser = quantity::rate)]
    pub(crate) rate: Option<Rate>,
    /// Bytes of a frame without FCS (default 64, or as many as its headers and payload need).
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes)]
    pub(crate) size: Option<u64>,
    /// So many flows in turn: source ports from the first up, then the next source address.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub(crate) flows: u32,
    /// An 802.1Q tag: the VLAN, and a priority of 0 to 7.
    #[arg(long, value_name = "ID[:PCP]", value_parser = vlan)]
    pub(crate) vlan: Option<TagControl>,
    /// IPv4 packets (the default).
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub(crate) ipv4: bool,
    /// IPv6 packets.
    #[arg(short = '6', long)]
    pub(crate) ipv6: bool,
    /// The address the packets come from (default: one reserved for benchmarks, 198.18.0.1 or 2001:2::1).
    #[arg(long, value_name = "IP")]
    pub(crate) source: Option<IpAddr>,
    /// The address the packets are for (default 198.18.0.2 or 2001:2::2).
    #[arg(long, value_name = "IP")]
    pub(crate) destination: Option<IpAddr>,
    /// The UDP port the packets come from, of the first flow.
    #[arg(long, value_name = "PORT", default_value = "49152")]
    pub(crate) source_port: u16,
    /// The UDP port the packets are for (9: whoever listens there discards them).
    #[arg(long, value_name = "PORT", default_value = "9")]
    pub(crate) destination_port: u16,
    /// The station the frames come from (default: the interface).
    #[arg(long, value_name = "MAC")]
    pub(crate) source_mac: Option<MacAddress>,
    /// The station the frames are for (default: 02:6e:63:0f:ff:ff, which nobody has).
    #[arg(long, value_name = "MAC")]
    pub(crate) destination_mac: Option<MacAddress>,
    /// What the packets carry: zeros, sequence (a 64-bit big-endian number from 0, then zeros), text:WORDS, hex:DIGITS or
    /// file:PATH (default: sequence where it fits).
    #[arg(long, value_name = "PAYLOAD", value_parser = payload)]
    pub(crate) payload: Option<PayloadArgument>,
    /// Who computes the UDP checksum.
    #[arg(long, value_enum, default_value = "computed")]
    pub(crate) checksum: ChecksumName,
    /// The queue to send by, counted from 0.
    #[arg(long, value_name = "N", default_value = "0")]
    pub(crate) queue: u32,
    /// This mode or none; unless said, the first that works of those that are fast for sending.
    #[arg(long, value_enum)]
    pub(crate) mode: Option<ModeName>,
    /// Who makes the packets.
    #[arg(long, value_enum, default_value = "program", conflicts_with = "replay")]
    pub(crate) generator: GeneratorName,
    /// Send the packets of a pcap or pcapng file instead.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "size", "flows", "vlan", "ipv4", "ipv6", "source", "destination", "source_port", "destination_port", "source_mac",
        "destination_mac", "payload", "checksum",
    ])]
    pub(crate) replay: Option<PathBuf>,
    /// When the packets of the file are sent.
    #[arg(long, value_enum, requires = "replay", conflicts_with = "rate")]
    pub(crate) timing: Option<TimingName>,
    /// So much faster than recorded: 2x, 0.5x.
    #[arg(long, value_name = "FACTOR", requires = "replay", conflicts_with = "rate", value_parser = speed)]
    pub(crate) speed: Option<f64>,
    /// Send the file so many times, or 'forever'.
    #[arg(long = "loop", value_name = "N", requires = "replay", value_parser = rounds)]
    pub(crate) rounds: Option<Rounds>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub(crate) json: bool,
}

/// What generated packets carry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum PayloadArgument {
    Zeros,
    Sequence,
    Bytes(Vec<u8>),
    File(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ChecksumName {
    /// The program.
    Computed,
    /// Nobody: it is left out, which only IPv4 permits.
    None,
    /// The card, or the kernel while it copies.
    Device,
}

/// The modes of ports on interfaces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ModeName {
    /// AF_XDP: the device reads and writes the frames itself.
    XdpZeroCopy,
    /// AF_XDP, copied by the kernel, XDP in the driver.
    XdpCopyNative,
    /// AF_XDP, copied by the kernel, on every interface.
    XdpCopyGeneric,
    /// Packet sockets.
    PacketRing,
}

impl From<ModeName> for Mode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::XdpZeroCopy => Self::XdpZeroCopy,
            ModeName::XdpCopyNative => Self::XdpCopyNative,
            ModeName::XdpCopyGeneric => Self::XdpCopyGeneric,
            ModeName::PacketRing => Self::PacketRing,
        }
    }
}

/// Of those, the ones in which the host does not have what a port has.
fn taking_mode() -> impl TypedValueParser<Value = ModeName> {
    let taking = ModeName::value_variants().iter().filter(|mode| **mode != ModeName::PacketRing);
    let names = PossibleValuesParser::new(taking.filter_map(ValueEnum::to_possible_value));
    names.map(|name| ModeName::from_str(&name, false).expect("one of them"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum GeneratorName {
    /// This program writes each one.
    Program,
    /// The kernel resends one frame (Linux 5.18, a driver that takes redirected frames): no flows, no sequence, no mode.
    Kernel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum TimingName {
    /// As far apart as they were recorded.
    Recorded,
    /// As fast as they go.
    FlatOut,
}

/// How often a file is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rounds {
    Times(u64),
    Forever,
}

fn vlan(text: &str) -> Result<TagControl, String> {
    let (vlan, priority) = text.split_once(':').unwrap_or((text, "0"));
    let (Ok(vlan), Ok(priority)) = (vlan.parse(), priority.parse()) else {
        return Err("not a VLAN with a priority: write 5 or 5:3".into());
    };
    TagControl::new(vlan, priority, false).map_err(|error| error.to_string())
}

fn payload(text: &str) -> Result<PayloadArgument, String> {
    match text.split_once(':') {
        None if text == "zeros" => Ok(PayloadArgument::Zeros),
        None if text == "sequence" => Ok(PayloadArgument::Sequence),
        Some(("text", words)) => Ok(PayloadArgument::Bytes(words.into())),
        Some(("hex", digits)) => {
            hex(digits).map(PayloadArgument::Bytes).ok_or_else(|| "not pairs of hex digits".into())
        }
        Some(("file", path)) => Ok(PayloadArgument::File(path.into())),
        _ => Err("not a payload: write zeros, sequence, text:WORDS, hex:DIGITS or file:PATH".into()),
    }
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        digits.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let (pairs, rest) = digits.as_ref()?.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

fn speed(text: &str) -> Result<f64, String> {
    let factor = text.strip_suffix('x').unwrap_or(text).parse().ok();
    let factor = factor.filter(|factor| (1e-6..=1e6).contains(factor));
    factor.ok_or_else(|| "not a factor: write 2x, 0.5x".into())
}

fn rounds(text: &str) -> Result<Rounds, String> {
    if text == "forever" {
        return Ok(Rounds::Forever);
    }
    quantity::count(text).map(Rounds::Times).map_err(|_| "not a number of times: write 3, 1k, forever".into())
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.01..=86_400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "not a number of seconds from 0.01 to 86400".into())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum WorkloadName {
    /// Frames sent from user space to a sink that drops them.
    PacketSend,
    /// Frames made by the kernel, received in user space.
    Capture,
    /// Frames made by the kernel, recorded into files.
    Record,
    /// A message there and back.
    Latency,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definitions_are_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn packets_are_taken_in_every_mode_but_that_which_leaves_them_to_the_host() {
        for mode in ModeName::value_variants() {
            let name = mode.to_possible_value().unwrap();
            let parsed =
                Arguments::try_parse_from(["nocopy", "sniff", "a", "--take", "--mode", name.get_name()]);
            match parsed.map(|arguments| arguments.command) {
                Ok(Command::Sniff(sniff)) => assert_eq!(sniff.mode, Some(*mode)),
                _ => assert_eq!(*mode, ModeName::PacketRing),
            }
        }
    }

    #[test]
    fn interface_and_peer_come_together() {
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a"]).is_err());
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a", "--peer", "b"]).is_ok());
    }
}
