//! Programs of libpcap's, as they are, with the system's library and with nocopy's: Debian's tcpdump receives
//! ([`capture`]), a program injects ([`inject`]).

mod capture;
mod inject;

use std::path::Path;
use std::process::Command;

use nocopy_lab::{Lab, Preloaded};
use nocopy_report::capability;

use super::{Workload, capture as packets};
use crate::Failure;
use crate::baseline::recorder::Recorder;
use crate::bench::Bench;
use crate::plan::Plan;
use crate::stage::Stage;

const NAME: &str = "libpcap";
const FRAME_BYTES: usize = 64;

const SYSTEMS: &str = "libpcap";
const PASSIVE: &str = "nocopy-passive";
const TAKE: &str = "nocopy-take";

/// Programs that use libpcap, with either library.
pub(crate) const LIBPCAP: Workload = Workload {
    name: NAME,
    about: "Programs that use libpcap, with the system's library and with nocopy's: tcpdump, and one that injects",
    methods: &[
        ("libpcap", "the system's library"),
        ("nocopy-passive", "nocopy's library in front of it, which leaves the host its traffic"),
        ("nocopy-take", "the same, and packets are taken from the host"),
    ],
    lab_only: Some("it starts programs on the interfaces"),
    capabilities: capability::RECORDERS,
    skips,
    ..Workload::measured_by(measure)
};

fn skips(_plan: &Plan) -> Vec<String> {
    let mut skips = Vec::new();
    if let Err(error) = Preloaded::Pcap.name() {
        skips.push(format!("SKIP: {NAME}: {error}"));
    }
    if !Recorder::Tcpdump.is_installed() {
        skips.push(format!("SKIP: {NAME}, receiving: tcpdump is not installed: 'apt install tcpdump' or what your system calls it."));
    }
    skips.extend(inject::skip());
    skips
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Ok(library) = &Preloaded::Pcap.name() else { return Ok(()) }; // a note says so
    let stage = Stage::private(Lab::builder().gro_right(packets::WITH_GRO))?;
    bench.run_series(capture::series(&stage, library), 140)?;
    drop(stage);
    bench.run_series(inject::series(&inject::testbeds()?, library), 40)
}

/// The library of a program, and its method of capturing.
#[derive(Debug, Clone, Copy)]
struct Variant<'a> {
    method: &'static str,
    /// This project's library; `None`: the system's libpcap.
    library: Option<&'a Path>,
    takes: bool,
}

impl<'a> Variant<'a> {
    fn all(library: &'a Path) -> [Self; 3] {
        [
            Self { method: SYSTEMS, library: None, takes: false },
            Self { method: PASSIVE, library: Some(library), takes: false },
            Self { method: TAKE, library: Some(library), takes: true },
        ]
    }

    fn baselines(self) -> &'static [&'static str] {
        if self.library.is_some() { &[SYSTEMS] } else { &[] }
    }

    /// Starts a program with this library, even if the bench itself runs with another.
    fn apply(self, command: &mut Command) {
        for variable in ["LD_PRELOAD", "NOCOPY_TAKE", "NOCOPY_RUN_SOCKET"] {
            command.env_remove(variable);
        }
        if let Some(library) = self.library {
            command.env("LD_PRELOAD", library);
        }
        if self.takes {
            command.env("NOCOPY_TAKE", "1");
        }
    }
}
