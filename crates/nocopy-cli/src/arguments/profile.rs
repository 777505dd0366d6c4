//! `nocopy profile`: whose calls, and how long.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use crate::quantity;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").args(["pid", "port", "comm", "command"]).required(true).multiple(true))]
pub(crate) struct ProfileArguments {
    /// A process, with the children it gets; may be given again.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) pid: Vec<u32>,
    /// Only sockets with this port, here or at the peer; may be given again. Without processes: those of all processes.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: Vec<u16>,
    /// Processes that are called so now, with the children they get; may be given again.
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    pub(crate) comm: Vec<String>,
    /// End after this time: 10s, 5m (default 5s; with COMMAND when it ends).
    #[arg(long, value_name = "TIME", value_parser = quantity::duration)]
    pub(crate) duration: Option<Duration>,
    /// Print JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// Run this, and profile it from its start to its end.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "comm"])]
    pub(crate) command: Vec<OsString>,
}
