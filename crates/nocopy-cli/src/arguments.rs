//! The command line; manual page and completions are made from the same definitions.

use std::path::PathBuf;
use std::time::Duration;

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use nocopy::filter::{self, Program};

use crate::Failure;
use crate::bench::METHODS;

/// Measure and move packets without the copies you did not ask for.
#[derive(Debug, Parser)]
#[command(name = "nocopy", version, arg_required_else_help = true, after_help = EXIT_CODES)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

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
    Sniff(SniffArguments),
    /// Record the packets of an interface into a file, without loss.
    Record(RecordArguments),
    /// Send packets out of an interface: made, or replayed from a file.
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
}

#[derive(Debug, Args)]
pub(crate) struct RecordArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
    #[command(flatten)]
    pub(crate) filter: FilterArguments,
}

#[derive(Debug, Args)]
pub(crate) struct SendArguments {
    /// The interface, of this network namespace.
    #[arg(value_name = "INTERFACE")]
    pub(crate) interface: String,
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
    fn interface_and_peer_come_together() {
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a"]).is_err());
        assert!(Arguments::try_parse_from(["nocopy", "bench", "--interface", "a", "--peer", "b"]).is_ok());
    }
}
