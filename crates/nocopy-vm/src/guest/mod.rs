//! Inside a machine.

mod agent;
pub(crate) mod cards;
pub(crate) mod controls;
pub(crate) mod datagrams;
pub(crate) mod filesystem;
pub(crate) mod flow;
pub(crate) mod init;
pub(crate) mod kernel_log;
pub(crate) mod meter;
pub(crate) mod monitor;
pub(crate) mod nfs;
pub(crate) mod nfsd;
pub(crate) mod patience;
mod pins;
pub(crate) mod programs;
pub(crate) mod reads;
pub(crate) mod running;
pub(crate) mod sockets;
pub(crate) mod streams;
pub(crate) mod traffic;
pub(crate) mod unprivileged;
pub(crate) mod victim;
pub(crate) mod witness;

use std::fs::OpenOptions;
use std::io::Write;
use std::process::ExitCode;

pub(crate) use agent::{main, time_limit};
use nocopy_lab::{End, Lab};
use serde::Serialize;

use crate::arguments::RandomArguments;
use crate::failure::Failure;
use crate::topology::Topology;

/// What a test gets: the two ends, each an interface in its own network namespace, with a freshly loaded
/// driver, addressed, up and with carrier.
#[derive(Debug)]
pub(crate) struct Guest {
    topology: Topology,
    random: RandomArguments,
    lab: Lab,
}

impl Guest {
    pub(crate) fn set_up(topology: Topology, random: RandomArguments) -> Result<Self, Failure> {
        Ok(Self { topology, random, lab: fresh_lab(topology)? })
    }

    /// Unloads the driver, which removes the interfaces, whatever their state.
    pub(crate) fn unload_driver(&self) -> Result<(), Failure> {
        cards::unload_driver(self.topology)
    }

    /// Reloads the driver, and makes a new lab of its interfaces.
    pub(crate) fn reload_driver(&self) -> Result<Lab, Failure> {
        fresh_lab(self.topology)
    }

    /// The two ends, with the same type as in the veth labs.
    pub(crate) fn lab(&self) -> &Lab {
        &self.lab
    }

    pub(crate) fn ends(&self) -> [&End; 2] {
        [self.lab.left(), self.lab.right()]
    }

    pub(crate) fn topology(&self) -> Topology {
        self.topology
    }

    /// Whether a test of random operations runs for long.
    pub(crate) fn is_soak(&self) -> bool {
        self.random.soak
    }

    /// What random operations start from; it is printed should the test fail.
    pub(crate) fn seed(&self) -> u64 {
        let seed = self.random.seed();
        eprintln!("to repeat it: --seed {seed}");
        seed
    }

    /// Adds a measurement to the result of the test, for the host's report.
    pub(crate) fn record_measurement(&self, measurement: &impl Serialize) {
        // Standard output is the connection to the agent; see `agent::run_in_own_process`.
        println!("{}", serde_json::to_string(measurement).expect("a measurement is plain data"));
    }
}

fn fresh_lab(topology: Topology) -> Result<Lab, Failure> {
    cards::load_driver(topology)?;
    if topology == Topology::Veth {
        return Ok(Lab::new()?);
    }
    let [left, right] = cards::driver_interfaces(topology)?;
    let lab = Lab::of_interfaces(&left, &right)?;
    if topology == Topology::Igb {
        // QEMU's cards split a long message into fragments of one datagram, real cards into datagrams (10.0).
        [lab.left(), lab.right()].into_iter().try_for_each(|end| end.set_udp_segmentation(false))?;
    }
    Ok(lab)
}

/// Says how far a long test is, into the file of which the host shows the end if the machine never ends.
fn print_at_console(words: &str) {
    if let Ok(mut console) = OpenOptions::new().write(true).open("/dev/console") {
        let _ = write!(console, "{words}\r\n");
    }
}

/// Ends a process of the guest; its failure is printed on standard error.
pub(crate) fn exit_code(name: &str, result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("{name}: {failure}");
            ExitCode::FAILURE
        }
    }
}
