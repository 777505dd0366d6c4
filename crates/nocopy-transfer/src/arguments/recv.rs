//! `nocopy recv`: datagrams or a stream from a host.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nocopy::tcp::ReceiveMethod;

use crate::endpoint::{Endpoint, Scheme};
use nocopy_report::address::AllowedHost;
use nocopy_report::output_file::CreateOptions;
use nocopy_report::quantity;

#[derive(Debug, Args)]
#[command(override_usage = "nocopy recv [OPTIONS] udp://[ADDRESS]:PORT\n       \
                            nocopy recv [OPTIONS] tcp://[ADDRESS]:PORT")]
pub struct RecvArguments {
    #[command(flatten)]
    at: RecvAddress,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub duration: Option<Duration>,
    /// End when nothing arrived from the sender for this time, counted from its first datagram or byte
    /// (default 10s; with --raw never).
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub idle: Option<Duration>,
    /// Write the received data to FILE ('-': standard output).
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Overwrite a file that exists.
    #[arg(long, requires = "output")]
    pub force: bool,
    /// Permissions of FILE, octal, such as 640 (default: 600, only its owner may read it).
    #[arg(long, value_name = "OCTAL", requires = "output", value_parser = quantity::parse_permissions)]
    pub permissions: Option<u32>,
    /// Only from this sender, a name or an address; may be repeated (default: from the first sender).
    #[arg(long, value_name = "ADDRESS")]
    pub from: Vec<AllowedHost>,
    /// Ask the sender for checksums (CRC32C), and check every byte.
    #[arg(long)]
    pub verify: bool,
    /// Receive from any program, without nocopy's header. Losses are not known then.
    #[arg(long, conflicts_with = "verify")]
    pub raw: bool,
    /// The socket's receive buffer (SO_RCVBUF; default: 8MiB for UDP, chosen by the kernel for TCP). More
    /// than net.core.rmem_max needs CAP_NET_ADMIN.
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes_parser_within::<u64>(1..=1 << 30))]
    pub buffer: Option<u64>,
    /// Print the summary as JSON; on standard error if --output is '-'.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub datagrams: DatagramReceiveArguments,
    #[command(flatten)]
    pub stream: StreamReceiveArguments,
}

/// The endpoint to receive at: exactly one of these.
#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct RecvAddress {
    /// Datagrams at an address, or without ADDRESS at all addresses of this host; port 0 means any free port.
    /// With --raw also at a multicast address, which is joined. udp://[ADDRESS]:PORT is the same.
    #[arg(long, value_name = "[ADDRESS]:PORT",
          value_parser = |text: &str| Endpoint::parse_local(Scheme::Udp, text))]
    udp: Option<Endpoint>,
    /// A stream at an address; tcp://[ADDRESS]:PORT is the same.
    #[arg(long, value_name = "[ADDRESS]:PORT",
          value_parser = |text: &str| Endpoint::parse_local(Scheme::Tcp, text))]
    tcp: Option<Endpoint>,
}

impl RecvArguments {
    /// The endpoint to receive at.
    pub fn address(&self) -> &Endpoint {
        let RecvAddress { udp, tcp } = &self.at;
        udp.as_ref().or(tcp.as_ref()).expect("clap requires one of them")
    }

    /// Whether a sender may have that address.
    pub fn is_sender_allowed(&self, from: SocketAddr) -> bool {
        self.from.is_empty() || self.from.iter().any(|allowed| allowed.has(from))
    }

    /// How FILE is made.
    pub fn create_options(&self) -> CreateOptions {
        CreateOptions { force: self.force, permissions: self.permissions }
    }
}

/// Options for datagrams.
#[derive(Debug, Args)]
#[command(next_help_heading = "Datagrams")]
#[group(conflicts_with = "tcp")]
pub struct DatagramReceiveArguments {
    /// End after N datagrams.
    #[arg(short, long, value_name = "N", value_parser = quantity::parse_count)]
    pub count: Option<u64>,
    /// Join the multicast group on this interface, instead of the one that the routing table names.
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
}

/// Options for streams.
#[derive(Debug, Args)]
#[command(next_help_heading = "Streams")]
#[group(conflicts_with = "udp")]
pub struct StreamReceiveArguments {
    /// How to receive: auto (the method that measures fastest), recv (copies, 64KiB at a time), recv:BYTES
    /// (copies, BYTES at a time), or mapped (whole pages by reference, the rest copied).
    #[arg(long, value_name = "WAY", default_value = "auto", value_parser = parse_receive_method)]
    pub receive: ReceiveMethodArgument,
}

/// Bytes of a read: the default and the most.
const READ_BYTES: u32 = 64 << 10;
const READ_BYTES_MAX: u64 = 64 << 20;

/// A method of receiving.
#[derive(Debug, Clone, Copy)]
pub struct ReceiveMethodArgument(
    /// `None`: the method that measures best.
    pub Option<ReceiveMethod>,
);

fn parse_receive_method(text: &str) -> Result<ReceiveMethodArgument, String> {
    match text.split_once(':') {
        None if text == "auto" => Ok(ReceiveMethodArgument(None)),
        None if text == "mapped" => Ok(ReceiveMethodArgument(Some(ReceiveMethod::Mapped))),
        None if text == "recv" => Ok(ReceiveMethodArgument(Some(ReceiveMethod::Recv { bytes: READ_BYTES }))),
        Some(("recv", bytes)) => match quantity::parse_bytes(bytes)? {
            bytes @ ..=READ_BYTES_MAX => {
                Ok(ReceiveMethodArgument(Some(ReceiveMethod::Recv { bytes: bytes as u32 })))
            }
            _ => Err("more than 64MiB at a time".into()),
        },
        _ => Err("write auto, recv, recv:BYTES or mapped".into()),
    }
}
