//! Arguments of `nocopy run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Take incoming packets from the host, by AF_XDP, instead of capturing them passively: all, or those
    /// that match the program's filter.
    #[arg(long)]
    pub(crate) take: bool,
    /// Join datagrams of equal length and destination that follow each other quickly to bursts, instead of
    /// replacing libpcap.
    #[arg(long, conflicts_with = "take")]
    pub(crate) batch_udp: bool,
    /// Report at the end which library and mode each capture used, where its filter ran, and what it counted;
    /// with --batch-udp, for each UDP socket what was joined to bursts, and why the rest was not. On standard
    /// error, or in FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true)]
    pub(crate) report: Option<Option<PathBuf>>,
    /// Overwrite FILE if it exists.
    #[arg(long, requires = "report")]
    pub(crate) force: bool,
    /// Write the report as JSON.
    #[arg(long)]
    pub(crate) json: bool,
    /// The library to preload, if it is not in one of its usual places.
    #[arg(long, value_name = "FILE")]
    pub(crate) library: Option<PathBuf>,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    pub(crate) command: Vec<OsString>,
}

impl RunArguments {
    pub(crate) fn wants_report(&self) -> bool {
        self.json || self.report.is_some()
    }
}
