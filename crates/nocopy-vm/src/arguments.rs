//! The command line.

use std::path::PathBuf;
use std::str::FromStr;

use clap::{Args, Parser, Subcommand};
use nocopy_proto::MacAddress;

use crate::topology::{Kernel, Topology};

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
    /// Fetch and install what the lab needs, unless it is there already.
    Prepare,
    /// Inside a machine that has no system: make one, run 'guest' with these arguments, and switch the
    /// machine off.
    #[command(hide = true)]
    Init {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
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
    /// Only the tests on this kernel; without it all but arm64.
    #[arg(long)]
    pub(crate) kernel: Option<Kernel>,
    /// What was built for arm64, as 'cargo xtask nightly aarch64' lists it: for '--kernel arm64'.
    #[arg(long, value_name = "FILE")]
    pub(crate) built: Option<PathBuf>,
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
    /// Let random operations go on for 10 minutes instead of 12 s.
    #[arg(long)]
    pub(crate) soak: bool,
    /// What random operations start from: a number, or 'random' for another every time. Default: what
    /// NOCOPY_TEST_SEED says in the same way, or the same number every time. A test that fails prints it.
    #[arg(long, value_name = "NUMBER")]
    pub(crate) seed: Option<Seed>,
}

/// The environment variable with the seed of random operations, here and in the simulations of the message
/// protocol.
const SEED_VARIABLE: &str = "NOCOPY_TEST_SEED";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seed(u64);

impl Seed {
    const FIXED: Self = Self(1);
}

/// A number; for 'random', a random one.
impl FromStr for Seed {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "random" {
            return Ok(Self(fastrand::u64(..)));
        }
        text.parse().map(Self).map_err(|_| format!("'{text}' is neither a number nor 'random'"))
    }
}

impl RandomArguments {
    /// The arguments with a seed: of the command line, of the environment, or the fixed one. Fails if the
    /// environment's seed is not valid.
    pub(crate) fn with_resolved_seed(self) -> Result<Self, String> {
        let of_environment = || match std::env::var(SEED_VARIABLE) {
            Ok(text) => text
                .parse()
                .map_err(|error| format!("{SEED_VARIABLE}: not a seed; {error}; give one of these")),
            Err(_) => Ok(Seed::FIXED),
        };
        Ok(Self { seed: Some(self.seed.map_or_else(of_environment, Ok)?), ..self })
    }

    pub(crate) fn seed(self) -> u64 {
        self.seed.unwrap_or(Seed::FIXED).0
    }

    pub(crate) fn to_command_line(self) -> Vec<String> {
        let seed = self.seed.iter().flat_map(|seed| ["--seed".to_owned(), seed.0.to_string()]);
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
    /// The destination.
    pub(crate) to: MacAddress,
    /// Number of the first packet.
    pub(crate) first: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_is_fixed_by_default() {
        assert_eq!(RandomArguments::default().seed(), 1);
        assert_eq!("17".parse(), Ok(Seed(17)));
        assert!("seventeen".parse::<Seed>().is_err());
        let random: [Seed; 2] = ["random", "random"].map(|text| text.parse().unwrap());
        assert_ne!(random[0], random[1]);
        // A second run of a row has the seed of the first.
        let settled = RandomArguments { soak: true, seed: Some(random[0]) }.with_resolved_seed().unwrap();
        assert_eq!(settled.to_command_line(), ["--soak", "--seed", &random[0].0.to_string()]);
    }
}
