//! The options of `nocopy bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, ValueEnum};
use nocopy_report::quantity;

use crate::{METHODS, WINDOW_MIN};

#[derive(Debug, Args)]
pub struct BenchArguments {
    /// What to measure; everything unless said.
    #[arg(value_enum, value_name = "WORKLOAD")]
    pub workloads: Vec<WorkloadName>,
    /// Half the time.
    #[arg(long)]
    pub quick: bool,
    /// How often every method runs; fewer if the time runs out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// How long every method runs in a round, whatever the time allows; 50 ms at least. For tests.
    #[arg(long, value_name = "TIME", value_parser = window, hide = true)]
    pub window: Option<Duration>,
    /// Write the results to FILE too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results to FILE too, as a page with charts, for any browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Overwrite files that exist.
    #[arg(long)]
    pub force: bool,
    /// Send from this interface instead of a private lab; an XDP program is attached to it meanwhile.
    #[arg(long, value_name = "A", requires = "peer")]
    pub interface: Option<String>,
    /// Receive on this interface, which must be connected to A.
    #[arg(long, value_name = "B", requires = "interface")]
    pub peer: Option<String>,
    /// Only this method, and its baseline if that is named too; may be repeated.
    #[arg(long = "method", value_name = "METHOD", value_parser = PossibleValuesParser::new(METHODS))]
    pub methods: Vec<String>,
}

fn window(text: &str) -> Result<Duration, String> {
    let window = quantity::duration(text)?;
    let is_enough = window >= WINDOW_MIN;
    is_enough.then_some(window).ok_or_else(|| format!("less than {WINDOW_MIN:?}: write more"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum WorkloadName {
    /// Frames sent from user space to a sink that drops them.
    PacketSend,
    /// Frames made by the kernel, received in user space.
    Capture,
    /// Frames made by the kernel, recorded into files.
    Record,
    /// Datagrams sent in every way there is, to sinks that drop or read them.
    UdpSend,
    /// A TCP stream sent in every way there is.
    TcpSend,
    /// A TCP stream received in every way there is, and read.
    TcpReceive,
    /// A TCP stream passed on.
    TcpProxy,
    /// Programs of libpcap's: tcpdump receives, and frames are injected, with the system's library and with nocopy's.
    Libpcap,
    /// 64 bytes there and back.
    Latency,
    /// Messages of several lengths there and back.
    MessageLatency,
    /// Messages of several lengths one way.
    MessageStream,
}
