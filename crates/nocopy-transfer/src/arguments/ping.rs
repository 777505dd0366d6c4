//! `nocopy ping`, `nocopy serve`, `nocopy call`: round trips of messages.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::endpoint::Endpoint;
use crate::exchange::WaitMode;
use nocopy_report::quantity;

#[derive(Debug, Args)]
pub struct PingArguments {
    /// Where 'nocopy serve' answers: message://HOST:PORT (nocopy's message protocol), udp://HOST:PORT,
    /// tcp://HOST:PORT, or xdp://HOST:PORT (UDP, over AF_XDP at this end).
    #[arg(value_name = "SCHEME://HOST:PORT", value_parser = Endpoint::parse_ping_target)]
    pub target: Endpoint,
    /// End after N messages.
    #[arg(short, long, value_name = "N", value_parser = quantity::parse_count)]
    pub count: Option<u64>,
    /// End after this time: 10s, 5m (default: after 10000 messages).
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub duration: Option<Duration>,
    /// Bytes of a message, at least 8.
    #[arg(short, long, value_name = "BYTES", default_value = "64", value_parser = quantity::bytes_parser_within::<usize>(8..=MESSAGE_BYTES_MAX))]
    pub size: usize,
    /// Time from one message to the next (default: each is sent when the one before was answered). A late
    /// answer delays the next message.
    #[arg(short, long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub interval: Option<Duration>,
    /// How long to wait for an answer before it counts as lost.
    #[arg(short = 'W', long, value_name = "TIME", default_value = "1s", value_parser = quantity::parse_duration)]
    pub timeout: Duration,
    /// How to wait for an answer.
    #[arg(long, value_enum, value_name = "HOW", default_value = "adaptive")]
    pub wait: WaitMode,
    /// For message:// and xdp://: over a port of this interface (AF_XDP), not through the kernel's sockets.
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct ServeArguments {
    /// Where to answer: message://, udp://, tcp:// or xdp://[ADDRESS]:PORT; without a scheme message:// and
    /// tcp:// at PORT, and udp:// at PORT + 1. May be repeated. Port 0 takes a free port.
    #[arg(value_name = "[SCHEME://][ADDRESS]:PORT", required = true, value_parser = ServiceEndpoints::parse)]
    services: Vec<ServiceEndpoints>,
    /// For message:// or xdp://: over a port of this interface (AF_XDP), not through the kernel's sockets.
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
    /// How to wait for messages.
    #[arg(long, value_enum, value_name = "HOW", default_value = "block")]
    pub wait: WaitMode,
    /// Answer each request with the output of this program, which reads the request from standard input.
    /// Arguments are separated by blanks; no shell is used. Every host that reaches the port can run it.
    #[arg(long, value_name = "PROGRAM ARGS")]
    pub exec: Option<String>,
    /// How long the program of --exec may take.
    #[arg(long, value_name = "TIME", default_value = "10s", requires = "exec", value_parser = quantity::parse_duration)]
    pub exec_timeout: Duration,
    /// Close a TCP connection that was idle for this time.
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = quantity::parse_duration)]
    pub idle: Duration,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub duration: Option<Duration>,
    /// Print the summary as JSON.
    #[arg(long)]
    pub json: bool,
}

impl ServeArguments {
    /// The endpoints to answer at, each once.
    pub fn services(&self) -> impl Iterator<Item = &Endpoint> {
        self.services.iter().flat_map(|services| &services.0)
    }
}

/// The endpoints of one word on the command line.
#[derive(Debug, Clone)]
struct ServiceEndpoints(Vec<Endpoint>);

impl ServiceEndpoints {
    fn parse(text: &str) -> Result<Self, String> {
        Endpoint::parse_services(text).map(Self)
    }
}

#[derive(Debug, Args)]
pub struct CallArguments {
    /// Where to send the request: message://HOST:PORT.
    #[arg(value_name = "message://HOST:PORT", value_parser = Endpoint::parse_call_target)]
    pub target: Endpoint,
    /// The request.
    #[arg(value_name = "TEXT")]
    text: Vec<String>,
    /// Send the content of this file as the request ('-': standard input).
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub file: Option<PathBuf>,
    /// How long to wait for the connection, and then for the response.
    #[arg(short = 'W', long, value_name = "TIME", default_value = "10s", value_parser = quantity::parse_duration)]
    pub timeout: Duration,
    /// How to wait for the response.
    #[arg(long, value_enum, value_name = "HOW", default_value = "block")]
    pub wait: WaitMode,
    /// Over a port of this interface (AF_XDP), not through the kernel's sockets.
    #[arg(long, value_name = "INTERFACE")]
    pub interface: Option<String>,
}

impl CallArguments {
    /// The request on the command line.
    pub fn request_text(&self) -> String {
        self.text.join(" ")
    }
}

/// The longest message of the protocol, and of all others here.
const MESSAGE_BYTES_MAX: u64 = 16 << 20;
