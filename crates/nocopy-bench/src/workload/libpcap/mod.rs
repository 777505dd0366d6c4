//! Programs of libpcap's, as they are, with the system's library and with nocopy's: Debian's tcpdump receives ([`capture`]), a program
//! injects ([`inject`]).

pub(crate) mod capture;
pub(crate) mod inject;

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::baseline::recorder::Recorder;

const NAME: &str = "libpcap";
const FRAME_BYTES: usize = 64;

const SYSTEMS: &str = "libpcap";
const PASSIVE: &str = "nocopy-passive";
const TAKE: &str = "nocopy-take";

/// Which library a program gets, and how it captures.
#[derive(Debug, Clone, Copy)]
struct Variant<'a> {
    method: &'static str,
    /// Ours; `None`: the system's.
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

    /// Has a program run with it, whatever the bench itself runs with.
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

/// What cannot be measured here, and why.
pub(crate) fn skips(library: &Result<PathBuf, String>) -> Vec<String> {
    let mut skips = Vec::new();
    if let Err(error) = library {
        skips.push(format!("SKIP: {NAME}: {error}"));
    }
    if !Recorder::Tcpdump.is_installed() {
        skips.push(format!("SKIP: {NAME}, receiving: tcpdump is not installed: 'apt install tcpdump' or what your system calls it."));
    }
    skips.extend(inject::skip());
    skips
}
