//! The workloads: what each has, and a file each.

pub(crate) mod asynchronous;
pub(crate) mod capture;
pub(crate) mod latency;
pub(crate) mod libpcap;
pub(crate) mod list;
pub(crate) mod messages;
pub(crate) mod nfs;
pub(crate) mod packet_send;
pub(crate) mod python;
pub(crate) mod record;
pub(crate) mod run_udp;
pub(crate) mod tcp;
pub(crate) mod udp_send;

use std::fs;
use std::io;
use std::path::Path;

use nocopy_report::capability;
use rustix::thread::CapabilitySet;

use crate::Failure;
use crate::bench::Bench;
use crate::plan::BenchPlan;

/// Frame lengths of the packet workloads, in bytes: the shortest Ethernet allows, and one that nearly fills
/// the MTU.
pub(crate) const FRAME_BYTES: [usize; 2] = [64, 1400];

/// Why sockets of the two ends are not measured between two interfaces of one namespace.
pub(crate) const LOOPBACK: &str = "between two interfaces of one namespace the kernel delivers by loopback";

/// Whether a process has loaded this library, which may be named by a link.
fn has_loaded_library(process: u32, library: &Path) -> io::Result<bool> {
    let maps = fs::read_to_string(format!("/proc/{process}/maps"))?;
    Ok(maps.contains(&*library.canonicalize()?.to_string_lossy()))
}

/// Work that can be done by several methods, which are measured against each other.
#[derive(Debug)]
pub(crate) struct Workload {
    pub name: &'static str,
    /// The measurement, in one line.
    pub about: &'static str,
    /// All methods, in the order of the tables.
    pub methods: &'static [MethodDescription],
    /// Why it is measured in a private lab only, if it is.
    pub lab_only: Option<&'static str>,
    /// The capabilities of its programs besides those for the network.
    pub capabilities: CapabilitySet,
    /// Paragraphs of the report that explain the workload's tables.
    pub notes: &'static [&'static str],
    /// Parts that cannot be measured here, and why.
    pub skips: fn(&BenchPlan) -> Vec<String>,
    /// Makes each stage, and runs its series there.
    pub measure: fn(&mut Bench<'_>) -> Result<(), Failure>,
}

impl Workload {
    /// What workloads have that do not say otherwise; the name, the description and the methods must be
    /// given.
    pub(crate) const fn measured_by(measure: fn(&mut Bench<'_>) -> Result<(), Failure>) -> Self {
        Self {
            name: "",
            about: "",
            methods: &[],
            lab_only: None,
            capabilities: capability::NONE,
            notes: &[],
            skips: |_| Vec::new(),
            measure,
        }
    }

    pub(crate) fn can_run(&self, plan: &BenchPlan) -> bool {
        !plan.is_between_interfaces() || self.lab_only.is_none()
    }
}

/// A method's name, as on the command line and in results, and its description.
pub(crate) type MethodDescription = (&'static str, &'static str);
