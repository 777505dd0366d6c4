//! Programs of libpcap's, as they are, with the system's library and with nocopy's: Debian's tcpdump receives
//! ([`capture`]), a program injects ([`inject`]).

mod capture;
mod inject;

use std::path::Path;
use std::process::Command;

use nocopy_lab::{Lab, PreloadLibrary};
use nocopy_report::capability;

use super::{Workload, capture as packets};
use crate::Failure;
use crate::baseline::recorder::RecorderKind;
use crate::bench::Bench;
use crate::plan::BenchPlan;
use crate::stage::SitePair;

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
    skips: skip_notes,
    ..Workload::measured_by(measure)
};

fn skip_notes(_plan: &BenchPlan) -> Vec<String> {
    let mut skips = Vec::new();
    if let Err(error) = PreloadLibrary::Pcap.ld_preload_path() {
        skips.push(format!("SKIP: {NAME}: {error}"));
    }
    if !RecorderKind::Tcpdump.is_installed() {
        skips.push(format!("SKIP: {NAME}, receiving: tcpdump is not installed: 'apt install tcpdump' or what your system calls it."));
    }
    skips.extend(inject::skip_note());
    skips
}

fn measure(bench: &mut Bench<'_>) -> Result<(), Failure> {
    let Ok(library) = &PreloadLibrary::Pcap.ld_preload_path() else { return Ok(()) }; // a note says so
    let stage = SitePair::in_private_lab(Lab::builder().gro_right(packets::WITH_GRO))?;
    bench.run_series(capture::build_series(&stage, library), 140)?;
    drop(stage);
    bench.run_series(inject::build_series(&inject::open_testbeds()?, library), 40)
}

/// The library of a program, and its method of capturing.
#[derive(Debug, Clone, Copy)]
struct LibraryVariant<'a> {
    method: &'static str,
    /// This project's library; `None`: the system's libpcap.
    library: Option<&'a Path>,
    takes: bool,
}

impl<'a> LibraryVariant<'a> {
    fn all_variants(library: &'a Path) -> [Self; 3] {
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
    fn prepare_command(self, command: &mut Command) {
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
