//! Inside a machine.

mod agent;
mod cards;
mod kernel_log;
pub(crate) mod meter;
pub(crate) mod traffic;

use std::process::ExitCode;

pub(crate) use agent::main;
use nocopy_lab::{End, Lab};
use serde::Serialize;

use crate::arguments::{RandomArguments, TestArguments};
use crate::registry::{self, Failure, Topology};

/// What a test is given: the two ends, each an interface in a network namespace of its own, freshly loaded, addressed,
/// up and with carrier.
#[derive(Debug)]
pub(crate) struct Guest {
    topology: Topology,
    random: RandomArguments,
    lab: Lab,
}

impl Guest {
    fn enter(topology: Topology, random: RandomArguments) -> Result<Self, Failure> {
        cards::load_driver(topology)?;
        let [left, right] = cards::interfaces(topology)?;
        Ok(Self { topology, random, lab: Lab::of_interfaces(&left, &right)? })
    }

    /// The two ends, as in the veth labs: what works there works here.
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    /// The left and the right end.
    pub(crate) fn ends(&self) -> [&End; 2] {
        [self.lab.left(), self.lab.right()]
    }

    /// The topology this machine has.
    #[expect(dead_code, reason = "for tests that differ by driver")]
    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    /// Whether a test of random operations shall go on for long.
    pub(crate) fn soak(&self) -> bool {
        self.random.soak
    }

    /// What random operations shall start from, if it was said.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.random.seed
    }

    /// Adds a measurement to the result of the test: it goes into the host's report.
    pub(crate) fn record(&self, measurement: &impl Serialize) {
        // Standard output is the way to the agent; see `agent::run`.
        println!("{}", serde_json::to_string(measurement).expect("a measurement is plain data"));
    }
}

/// Runs one test in this process. What it says on standard error is the reason, should it fail.
pub(crate) fn run_test(arguments: &TestArguments) -> ExitCode {
    let result = registry::find(&arguments.name)
        .ok_or_else(|| {
            Failure(format!("no test of the name '{}'; 'nocopy-vm list' lists them", arguments.name))
        })
        .and_then(|test| (test.run)(&Guest::enter(arguments.topology, arguments.random)?));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{failure}");
            ExitCode::FAILURE
        }
    }
}
