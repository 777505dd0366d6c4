//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use nocopy_proto::MacAddress;

use crate::registry::{Kernel, Topology};

#[derive(Parser)]
#[command(about = "Tests of nocopy on real drivers, in emulated machines", version)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Prepare what is missing, boot every machine the tests need, and run them.
    Run(RunArguments),
    /// List the tests, where each runs and what it proves.
    List,
    /// Fetch and install what the lab needs; does nothing when it is there.
    Prepare,
    /// Inside a machine: run tests one by one and report to the host.
    #[command(hide = true)]
    Guest(GuestArguments),
    /// Inside a machine: run one test in this process.
    #[command(hide = true)]
    Test(TestArguments),
    /// Inside a machine: open the port that is granted on standard input, and send every packet back.
    #[command(hide = true)]
    Client,
    /// Inside a machine: open a port, send and receive, until a test kills this process.
    #[command(hide = true)]
    Victim(VictimArguments),
}

#[derive(Args, Default)]
pub(crate) struct RunArguments {
    /// Only the tests of this name; may be given several times.
    #[arg(long, value_name = "NAME")]
    pub(crate) only: Vec<String>,
    /// Only the tests on this kernel.
    #[arg(long)]
    pub(crate) kernel: Option<Kernel>,
    /// Only the tests on this topology.
    #[arg(long)]
    pub(crate) topology: Option<Topology>,
    #[command(flatten)]
    pub(crate) random: RandomArguments,
    /// Write the results as JSON, in the form the lab's README describes.
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// For tests that repeat random operations.
#[derive(Args, Debug, Clone, Copy, Default)]
pub(crate) struct RandomArguments {
    /// Let random operations go on for 10 minutes instead of half of one.
    #[arg(long)]
    pub(crate) soak: bool,
    /// Repeat the random operations of an earlier run (default: others every time; the seed is printed).
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<u64>,
}

impl RandomArguments {
    /// The same as words of a command line.
    pub(crate) fn words(self) -> Vec<String> {
        let seed = self.seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.to_string()]);
        self.soak.then(|| "--soak".to_owned()).into_iter().chain(seed).collect()
    }
}

#[derive(Args)]
pub(crate) struct GuestArguments {
    #[arg(long)]
    pub(crate) topology: Topology,
    /// A directory shared with the host.
    #[arg(long)]
    pub(crate) shared: PathBuf,
    #[command(flatten)]
    pub(crate) random: RandomArguments,
    #[arg(long)]
    pub(crate) only: Vec<String>,
}

#[derive(Args)]
pub(crate) struct TestArguments {
    #[arg(long)]
    pub(crate) topology: Topology,
    #[command(flatten)]
    pub(crate) random: RandomArguments,
    pub(crate) name: String,
}

#[derive(Args)]
pub(crate) struct VictimArguments {
    pub(crate) interface: String,
    /// The interface's own address.
    pub(crate) own: MacAddress,
    /// Whom to send to.
    pub(crate) to: MacAddress,
    /// Number of the first packet.
    pub(crate) first: u32,
}
