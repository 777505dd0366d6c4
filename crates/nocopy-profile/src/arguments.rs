//! `nocopy profile`: which processes to profile, and how long.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::SAMPLES_PER_SECOND;
use nocopy_report::quantity;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(group = clap::ArgGroup::new("target").args(["pid", "port", "comm", "command"]).required(true).multiple(true))]
pub struct ProfileArguments {
    /// A process, and the children that it starts during the profile; may be repeated.
    #[arg(long, value_name = "PID", value_parser = clap::value_parser!(u32).range(1..))]
    pub pid: Vec<u32>,
    /// Only sockets with this local or remote port; may be repeated. Without --pid and --comm, sockets of all
    /// processes.
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: Vec<u16>,
    /// Processes that have this name now (at most 15 letters), and the children that they start during the
    /// profile; may be repeated.
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    pub comm: Vec<String>,
    /// End after this time: 10s, 5m (default 5s; with COMMAND when it ends).
    #[arg(long, value_name = "TIME", value_parser = quantity::parse_duration)]
    pub duration: Option<Duration>,
    /// Samples per second and processor; more samples are more precise, and slow the target down.
    #[arg(long, value_name = "HZ", default_value_t = SAMPLES_PER_SECOND, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub frequency: u32,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Run this, and profile it from its start to its end.
    #[arg(last = true, value_name = "COMMAND", conflicts_with_all = ["pid", "comm"])]
    pub command: Vec<OsString>,
    #[command(subcommand)]
    pub other: Option<ProfileCommand>,
}

#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Profile our own TCP receiver with buffers of every length.
    ///
    /// In a private lab: 256 MiB by TCP from one process to another, received by recv with MSG_WAITALL into
    /// buffers from 1 KiB to 4 MiB; with the socket's buffer fixed at 64 KiB and autotuned, with GRO on and
    /// off; each with and without profiling, alternately.
    Sweep(SweepArguments),
}

#[derive(Debug, Args)]
pub struct SweepArguments {
    /// Bytes that each transfer moves.
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes_parser_within::<u64>(1 << 20..=64 << 30), default_value = "256MiB")]
    pub bytes: u64,
    /// Only user buffers of this length, such as 64KiB; may be repeated (default: 1KiB, 2KiB, … 4MiB).
    #[arg(long, value_name = "BYTES", value_parser = quantity::bytes_parser_within::<usize>(64..=64 << 20), value_delimiter = ',')]
    pub buffer: Vec<usize>,
    /// Rounds, each with and without profiling.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// Fewer buffers and rounds.
    #[arg(long)]
    pub quick: bool,
    /// Print JSON.
    #[arg(long)]
    pub json: bool,
    /// Also write the results to FILE, as a page with charts, for any browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Overwrite FILE if it exists.
    #[arg(long, requires = "html")]
    pub force: bool,
}

impl SweepArguments {
    /// The command line that repeats this.
    pub fn command_line(&self) -> String {
        let rounds = self.rounds.map(|rounds| format!(" --rounds {rounds}")).unwrap_or_default();
        let quick = if self.quick { " --quick" } else { "" };
        let buffers: String = self.buffer.iter().map(|bytes| format!(" --buffer {bytes}")).collect();
        format!("nocopy profile sweep --bytes {}{buffers}{rounds}{quick}", self.bytes)
    }
}
