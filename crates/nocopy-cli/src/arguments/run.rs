//! `nocopy run`: which program, and what to say afterwards.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Take incoming packets from the host, by AF_XDP, instead of looking at them: all, or those that match the program's filter.
    #[arg(long)]
    pub(crate) take: bool,
    /// Join equal datagrams that a program sends quickly to bursts, instead of standing in for libpcap.
    #[arg(long, conflicts_with = "take")]
    pub(crate) batch_udp: bool,
    /// Say at the end of each capture handle which library, mode and filter place it had, and what it counted; with --batch-udp of each UDP
    /// socket what was batched, and why the rest was not: on standard error, or in FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) report: Option<Option<PathBuf>>,
    /// Overwrite FILE if it exists.
    #[arg(long, requires = "report")]
    pub(crate) force: bool,
    /// Make that report JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The library to preload, where it is not at one of its usual places.
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl RunArguments {
    /// Whether anything is to be said at the end.
    pub(crate) fn wants_report(&self) -> bool {
        self.json || self.report.is_some()
    }
}
