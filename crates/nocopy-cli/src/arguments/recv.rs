//! `nocopy recv`: datagrams from a host.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::endpoint::Endpoint;
use crate::quantity;

#[derive(Debug, Args)]
pub(crate) struct RecvArguments {
    /// Where to receive: udp://ADDRESS:PORT, or udp://:PORT for all addresses of this host; port 0 is any that is free. With --raw
    /// also a multicast address, which is joined.
    #[arg(value_name = "udp://[ADDRESS]:PORT", value_parser = Endpoint::parse_own)]
    pub(crate) address: Endpoint,
    /// End after N datagrams.
    #[arg(short, long, value_name = "N", value_parser = quantity::count)]
    pub(crate) count: Option<u64>,
    /// End after this time: 10s, 5m.
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) duration: Option<Duration>,
    /// End when the sender, once there, was not heard for so long (default 10s; with --raw not at all).
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) idle: Option<Duration>,
    /// Write what the datagrams carry to FILE ('-': standard output).
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Overwrite a file that exists.
    #[arg(long, requires = "output")]
    pub(crate) force: bool,
    /// Ask the sender for checksums, so that it is known that every byte arrived as it was sent.
    #[arg(long)]
    pub(crate) verify: bool,
    /// Datagrams of any program, without nocopy's header: what is lost is not known.
    #[arg(long, conflicts_with = "verify")]
    pub(crate) raw: bool,
    /// Join the multicast group on this interface, and not where the routing table says.
    #[arg(long, value_name = "INTERFACE")]
    pub(crate) interface: Option<String>,
    /// The kernel's buffer for datagrams that were not received yet (SO_RCVBUF; beyond net.core.rmem_max it takes CAP_NET_ADMIN).
    #[arg(long, value_name = "BYTES", value_parser = buffer, default_value = "8MiB")]
    pub(crate) buffer: u64,
    /// Print the summary as JSON; on standard error if the datagrams go to standard output.
    #[arg(long)]
    pub(crate) json: bool,
}

fn buffer(text: &str) -> Result<u64, String> {
    quantity::bytes(text).and_then(|bytes| match bytes {
        ..=1_073_741_824 => Ok(bytes),
        _ => Err("more than 1GiB".into()),
    })
}
