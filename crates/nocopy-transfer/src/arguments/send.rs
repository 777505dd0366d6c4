//! `nocopy send`: packets on an interface, or datagrams or a stream to a host.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};
use nocopy_proto::MacAddress;
use nocopy_proto::wire::vlan::TagControl;

use super::PortModeArgument;
use crate::endpoint::{Endpoint, Scheme};
use nocopy_report::address::{Family, Host};
use nocopy_report::quantity::{self, Rate};

#[derive(Debug, Args)]
#[command(override_usage = "nocopy send [OPTIONS] INTERFACE\n       \
                            nocopy send [OPTIONS] udp://HOST:PORT\n       \
                            nocopy send [OPTIONS] tcp://HOST:PORT")]
pub struct SendArguments {
    #[command(flatten)]
    pub target: SendTarget,
    /// End after N packets; to tcp://HOST:PORT after N pieces of --size.
    #[arg(short, long, value_name = "N", value_parser = quantity::parse_count)]
    pub count: Option<u64>,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub duration: Option<Duration>,
    /// Packets or bits per second: 300kpps, 1Gbit/s (default: as fast as possible). Bits are those of the
    /// bytes that --size counts.
    #[arg(long, value_name = "RATE", value_parser = quantity::parse_rate)]
    pub rate: Option<Rate>,
    /// On an interface: bytes of a frame without FCS (default 64, or more if headers and payload need it). To
    /// udp://: bytes of a datagram's payload, with nocopy's header of 40 bytes (default 1400). To tcp://:
    /// bytes handed to TCP in one call (default 64KiB).
    #[arg(long, value_name = "BYTES", value_parser = quantity::parse_bytes)]
    pub size: Option<u64>,
    /// IPv4: generated packets (the default), or an IPv4 address of HOST.
    #[arg(short = '4', long, conflicts_with = "ipv6")]
    pub ipv4: bool,
    /// The same for IPv6.
    #[arg(short = '6', long)]
    pub ipv6: bool,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub host: HostArguments,
    #[command(flatten)]
    pub datagrams: DatagramArguments,
    #[command(flatten)]
    pub stream: StreamArguments,
    #[command(flatten)]
    pub frames: FrameArguments,
    #[command(flatten)]
    pub replay: ReplayArguments,
}

impl SendArguments {
    pub fn address_family(&self) -> Family {
        match (self.ipv4, self.ipv6) {
            (true, _) => Family::Ipv4,
            (_, true) => Family::Ipv6,
            _ => Family::Any,
        }
    }
}

/// The endpoint to send to: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
pub struct SendTarget {
    /// An interface of this network namespace; for a host write udp://HOST:PORT or tcp://HOST:PORT.
    #[arg(value_name = "INTERFACE", value_parser = parse_interface)]
    pub target: Option<String>,
    /// Datagrams to a host; udp://HOST:PORT is the same.
    #[arg(long, value_name = "HOST:PORT", group = "to_udp",
          value_parser = |text: &str| Endpoint::parse_peer(Scheme::Udp, text))]
    pub udp: Option<Endpoint>,
    /// A stream to a host; tcp://HOST:PORT is the same.
    #[arg(long, value_name = "HOST:PORT", group = "to_tcp",
          value_parser = |text: &str| Endpoint::parse_peer(Scheme::Tcp, text))]
    pub tcp: Option<Endpoint>,
}

/// Options for datagrams and streams to a host.
#[derive(Debug, Args)]
#[command(next_help_heading = "Datagrams and streams to a host")]
#[group(conflicts_with = "target")]
pub struct HostArguments {
    /// Send the content of FILE ('-': standard input) instead of a pattern.
    #[arg(long, value_name = "FILE", conflicts_with = "stdin", group = "from_file")]
    pub file: Option<PathBuf>,
    /// Send standard input, each piece as soon as it can be read.
    #[arg(long)]
    pub stdin: bool,
    /// How the bytes are handed to the kernel.
    #[arg(long, value_enum, default_value = "auto", requires_ifs = METHOD_REQUIREMENTS)]
    pub method: SendMethodArgument,
    /// Add checksums (CRC32C), so that the receiver can check every byte.
    #[arg(long)]
    pub verify: bool,
    /// Send without nocopy's header, to any program that receives UDP or TCP. What arrives is not reported
    /// then.
    #[arg(long, conflicts_with = "verify")]
    pub raw: bool,
    /// How long to wait for the receiver to start (default 5s).
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub connect_timeout: Option<Duration>,
}

impl HostArguments {
    pub fn connect_timeout_or_default(&self) -> Duration {
        self.connect_timeout.unwrap_or(Duration::from_secs(5))
    }
}

/// What each value of --method requires: the kind of target, and options. A requirement that conflicts with
/// another target is a group of one option, because clap does not require an option that conflicts with a
/// given one.
const METHOD_REQUIREMENTS: [(&str, &str); 13] = [
    ("socket", "to_udp"),
    ("sendmmsg", "to_udp"),
    ("gso", "to_udp"),
    ("zerocopy-gso", "to_udp"),
    ("uring-zerocopy-gso", "to_udp"),
    ("xdp-udp", "to_udp"),
    ("xdp-udp", "by_interface"),
    ("xdp-copy", "to_udp"),
    ("xdp-copy", "by_interface"),
    ("plain", "to_tcp"),
    ("published", "to_tcp"),
    ("sendfile", "to_tcp"),
    ("sendfile", "from_file"),
];

/// Options for datagrams to a host.
#[derive(Debug, Args)]
#[command(next_help_heading = "Datagrams to a host")]
#[group(conflicts_with_all = ["target", "tcp"])]
pub struct DatagramArguments {
    /// The interface for --method xdp-udp and xdp-copy; or, to a multicast address, the one to send on.
    #[arg(long, value_name = "INTERFACE", group = "by_interface")]
    pub interface: Option<String>,
}

/// Options for streams to a host.
#[derive(Debug, Args)]
#[command(next_help_heading = "Streams to a host")]
#[group(conflicts_with_all = ["target", "udp"])]
pub struct StreamArguments {
    /// Number of connections at once: a file or a count is cut into ranges, one for each.
    #[arg(long, value_name = "N", default_value = "1", conflicts_with_all = ["raw", "stdin"],
          value_parser = clap::value_parser!(u32).range(1..=64))]
    pub streams: u32,
    /// The congestion control of the connections: cubic, bbr, ... (default: that of the host).
    #[arg(long, value_name = "NAME")]
    pub congestion: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SendMethodArgument {
    /// The one that measures fastest on this machine.
    Auto,
    /// TCP: a system call that copies into the kernel.
    Plain,
    /// UDP: one system call for each datagram.
    Socket,
    /// UDP: one system call for many datagrams.
    Sendmmsg,
    /// UDP: many datagrams as one, which the kernel or the card splits (UDP_SEGMENT).
    Gso,
    /// Without a copy into the kernel, which reports when it no longer reads the memory (MSG_ZEROCOPY).
    Zerocopy,
    /// UDP: zerocopy and gso together.
    ZerocopyGso,
    /// Without a copy, from registered buffers, by io_uring (SEND_ZC).
    UringZerocopy,
    /// UDP: uring-zerocopy and gso together (Linux 6.15).
    UringZerocopyGso,
    /// TCP: the pattern's pages by reference: they can never change (vmsplice or sendfile).
    Published,
    /// TCP: a file's pages by reference (sendfile).
    Sendfile,
    /// UDP: past the kernel's network stack: written into AF_XDP frames of --interface.
    XdpUdp,
    /// UDP: as xdp-udp, but copied into the frames.
    XdpCopy,
}

impl SendMethodArgument {
    /// The name on the command line.
    pub fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().into())
    }
}

/// Options for packets on an interface.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets on an interface")]
#[group(conflicts_with_all = ["udp", "tcp"])]
pub struct FrameArguments {
    /// Number of flows, sent in turn: source ports from --source-port up, then the next source address.
    #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1 << 24))]
    pub flows: u32,
    /// An 802.1Q tag: the VLAN, and a priority of 0 to 7.
    #[arg(long, value_name = "ID[:PCP]", value_parser = parse_vlan)]
    pub vlan: Option<TagControl>,
    /// The address the packets come from (default: one reserved for benchmarks, 198.18.0.1 or 2001:2::1).
    #[arg(long, value_name = "HOST", value_parser = parse_packet_address)]
    pub source: Option<IpAddr>,
    /// The address the packets are for (default 198.18.0.2 or 2001:2::2).
    #[arg(long, value_name = "HOST", value_parser = parse_packet_address)]
    pub destination: Option<IpAddr>,
    /// The UDP port the packets come from, of the first flow.
    #[arg(long, value_name = "PORT", default_value = "49152")]
    pub source_port: u16,
    /// The UDP port the packets are for (9, the discard service).
    #[arg(long, value_name = "PORT", default_value = "9")]
    pub destination_port: u16,
    /// MAC address that frames come from (default: that of the interface; with --replay, the recorded one).
    #[arg(long, value_name = "MAC")]
    pub source_mac: Option<MacAddress>,
    /// MAC address that frames are for (default: with --replay the recorded one, otherwise 02:6e:63:0f:ff:ff,
    /// which no host has).
    #[arg(long, value_name = "MAC")]
    pub destination_mac: Option<MacAddress>,
    /// Content of the packets: zeros, sequence (a 64-bit big-endian number from 0, then zeros), text:WORDS,
    /// hex:DIGITS or file:PATH (default: sequence if it fits).
    #[arg(long, value_name = "PAYLOAD", value_parser = parse_payload)]
    pub payload: Option<PayloadArgument>,
    /// What computes the UDP checksum.
    #[arg(long, value_enum, default_value = "computed")]
    pub checksum: UdpChecksumArgument,
    /// The queue to send on, counted from 0.
    #[arg(long, value_name = "N", default_value = "0")]
    pub queue: u32,
    /// Use this mode, and fail if it is not available (default: the fastest that is).
    #[arg(long, value_enum)]
    pub mode: Option<PortModeArgument>,
    /// What makes the packets.
    #[arg(long, value_enum, default_value = "program", conflicts_with = "replay")]
    pub generator: PacketGeneratorArgument,
    /// Send the packets of a pcap or pcapng file instead, which may be compressed with gzip or zstd.
    #[arg(long, value_name = "FILE", conflicts_with_all = [
        "size", "flows", "vlan", "ipv4", "ipv6", "source", "destination", "source_port", "destination_port", "payload",
        "checksum",
    ])]
    pub replay: Option<PathBuf>,
    /// When the packets of the file are sent.
    #[arg(long, value_enum, requires = "replay", conflicts_with = "rate")]
    pub timing: Option<ReplayTimingArgument>,
    /// Speed compared with the recording: 2x is twice as fast, 0.5x half as fast.
    #[arg(long, value_name = "FACTOR", requires = "replay", conflicts_with = "rate",
          value_parser = parse_speed)]
    pub speed: Option<f64>,
    /// How many times to send the file: a number, or 'forever' (default 1).
    #[arg(long = "loop", value_name = "N", requires = "replay", value_parser = parse_repeat_count)]
    pub rounds: Option<RepeatCount>,
}

/// Options for the packets of a file.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packets of a file (--replay)")]
pub struct ReplayArguments {
    /// The longest recorded gap between two packets that is waited for (default 5s). Longer ones are
    /// shortened, and counted.
    #[arg(long, value_name = "TIME", requires = "replay", conflicts_with = "rate", value_parser = quantity::parse_duration)]
    pub max_gap: Option<Duration>,
    /// Correct the checksums of IPv4, TCP, UDP, ICMP and ICMPv6. Packets that were truncated when they
    /// were recorded are not changed.
    #[arg(long, requires = "replay")]
    pub fix_checksums: bool,
}

/// Content of generated packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PayloadArgument {
    Zeros,
    Sequence,
    Bytes(Vec<u8>),
    File(PathBuf),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum UdpChecksumArgument {
    /// The program.
    Computed,
    /// No checksum, which only IPv4 permits.
    None,
    /// The card, or the kernel while it copies.
    Device,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PacketGeneratorArgument {
    /// This program writes each one.
    Program,
    /// The kernel resends one frame (Linux 5.18, a driver that accepts redirected frames): no flows, no
    /// sequence, no mode.
    Kernel,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ReplayTimingArgument {
    /// At the intervals of the recording.
    Recorded,
    /// As fast as possible.
    FlatOut,
}

/// How often a file is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RepeatCount {
    Times(u64),
    Forever,
}

fn parse_interface(text: &str) -> Result<String, String> {
    // No interface has a colon in its name.
    match text.contains(':') {
        true => Err("not an interface; a host is udp://HOST:PORT or tcp://HOST:PORT".into()),
        false => Ok(text.into()),
    }
}

fn parse_vlan(text: &str) -> Result<TagControl, String> {
    let (vlan, priority) = text.split_once(':').unwrap_or((text, "0"));
    let (Some(vlan), Some(priority)) = (quantity::parse_digits(vlan), quantity::parse_digits(priority))
    else {
        return Err("not a VLAN with a priority; write 5 or 5:3".into());
    };
    TagControl::new(vlan, priority, false).map_err(|error| error.to_string())
}

fn parse_payload(text: &str) -> Result<PayloadArgument, String> {
    match text.split_once(':') {
        None if text == "zeros" => Ok(PayloadArgument::Zeros),
        None if text == "sequence" => Ok(PayloadArgument::Sequence),
        Some(("text", words)) => Ok(PayloadArgument::Bytes(words.into())),
        Some(("hex", digits)) => {
            parse_hex(digits).map(PayloadArgument::Bytes).ok_or_else(|| "not pairs of hex digits".into())
        }
        Some(("file", path)) => Ok(PayloadArgument::File(path.into())),
        _ => Err("not a payload; write zeros, sequence, text:WORDS, hex:DIGITS or file:PATH".into()),
    }
}

fn parse_hex(digits: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<u8>> =
        digits.chars().map(|digit| digit.to_digit(16).map(|value| value as u8)).collect();
    let (pairs, rest) = digits.as_ref()?.as_chunks::<2>();
    rest.is_empty().then(|| pairs.iter().map(|[high, low]| high << 4 | low).collect())
}

fn parse_speed(text: &str) -> Result<f64, String> {
    let factor = text.strip_suffix('x').unwrap_or(text);
    let factor = factor.parse().ok().filter(|value| !factor.starts_with('+') && (1e-6..=1e6).contains(value));
    factor.ok_or_else(|| "not a factor: write 2x, 0.5x".into())
}

fn parse_repeat_count(text: &str) -> Result<RepeatCount, String> {
    if text == "forever" {
        return Ok(RepeatCount::Forever);
    }
    quantity::parse_count(text)
        .map(RepeatCount::Times)
        .map_err(|_| "not a number of times: write 3, 1k, forever".into())
}

/// The first address of a host. A scope is not part of a packet, which leaves by the interface that is named
/// anyway.
fn parse_packet_address(text: &str) -> Result<IpAddr, String> {
    let host: Host = text.parse()?;
    let all = host.resolve(0, Family::Any).map_err(|error| error.to_string())?;
    Ok(all[0].ip()) // there is at least one
}
