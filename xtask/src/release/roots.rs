//! Clean roots: directories of Debian made by debootstrap, or ones with nothing but what is tried. Commands
//! run there in namespaces of their own, and change nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed, repository_root};

/// The directory of scripts that run in the roots, and of the one that enters them.
const SCRIPTS: &str = "xtask/release";

/// Where roots are, from one run to the next.
const ROOTS: &str = "target/release-roots";

/// Debian 12 and 13.
const SUITES: [&str; 2] = ["bookworm", "trixie"];

/// Besides what is essential: tutorials make their networks by iproute2.
const PACKAGES: &str = "--include=iproute2,tcpdump";

/// The longest time that one trial may run; most take a few seconds, the longest tutorial one minute.
const TIME_MAX: Duration = Duration::from_secs(600);

pub(super) fn install_programs() -> Outcome {
    machine::install_release_programs()
}

/// The roots of Debian.
#[derive(Debug)]
pub(super) struct CleanRoots {
    pub(super) debian: Vec<CleanRoot>,
}

impl CleanRoots {
    /// Makes those that are not there.
    pub(super) fn prepare() -> Result<Self, Failed> {
        let prepare = |suite: &&'static str| {
            let path = roots_path(suite);
            if !path.exists() {
                // Its mounts end with it, however it ends; what was not finished has another name.
                let unfinished = empty_directory(&format!("{suite}.unfinished"))?;
                let shown = unfinished.display().to_string();
                let install = ["--mount", "debootstrap", "--variant=minbase", PACKAGES, suite, &shown];
                CommandStep::new(&format!("a bare Debian, {suite}"), "unshare", &install).run()?;
                fs::rename(&unfinished, &path).map_err(|error| path_error(&path, &error))?;
            }
            Ok(CleanRoot::at(suite, &path))
        };
        Ok(Self { debian: SUITES.iter().map(prepare).collect::<Result<_, Failed>>()? })
    }
}

fn roots_path(name: &str) -> PathBuf {
    repository_root().join(ROOTS).join(name)
}

fn path_error(path: &Path, error: &std::io::Error) -> Failed {
    Failed(format!("{}: {error}", path.display()))
}

/// A new empty directory beside the roots.
pub(super) fn empty_directory(name: &str) -> Result<PathBuf, Failed> {
    let path = roots_path(name);
    if path.exists() {
        fs::remove_dir_all(&path).map_err(|error| path_error(&path, &error))?;
    }
    fs::create_dir_all(&path).map_err(|error| path_error(&path, &error))?;
    Ok(path)
}

/// A directory that is the root of the commands to try.
#[derive(Debug, Clone)]
pub(super) struct CleanRoot {
    name: String,
    path: PathBuf,
    files: Option<PathBuf>,
}

impl CleanRoot {
    pub(super) fn at(name: &str, path: &Path) -> Self {
        Self { name: name.into(), path: path.into(), files: None }
    }

    /// The same with a directory at `/files`, which is read-only.
    pub(super) fn with_files(&self, files: &Path) -> Self {
        Self { files: Some(files.into()), ..self.clone() }
    }

    /// Runs a script of the directory of scripts by the root's shell.
    pub(super) fn run_script(&self, script: &str) -> Outcome {
        let path = repository_root().join(SCRIPTS).join(script);
        match fs::read_to_string(&path) {
            Ok(text) => self.run_named(script, &["sh", "-eux", "-c", &text], false),
            Err(error) => path_error(&path, &error).into(),
        }
    }

    /// Runs lines of sh(1) by the root's shell.
    pub(super) fn run_lines(&self, name: &str, lines: &str) -> Outcome {
        self.run_named(name, &["sh", "-eux", "-c", lines], false)
    }

    /// Runs a command of the root.
    pub(super) fn run(&self, words: &[&str]) -> Outcome {
        self.run_named(&words.join(" "), words, false)
    }

    /// Runs a command of the root as root with no other capabilities than these, as setpriv(1) names them.
    pub(super) fn run_with_capabilities(&self, capabilities: &[&str], words: &[&str]) -> Outcome {
        let bounding = format!("--bounding-set=-all{}", setpriv_list(capabilities));
        // The root need not have setpriv and its libraries: it is this machine's, by its loader.
        let libraries =
            format!("/.host/lib/{0}-linux-gnu:/.host/usr/lib/{0}-linux-gnu", std::env::consts::ARCH);
        let loader = match std::env::consts::ARCH {
            "x86_64" => "/lib64/ld-linux-x86-64.so.2",
            _ => "/lib/ld-linux-aarch64.so.1",
        };
        let loader = match fs::canonicalize(loader) {
            Ok(loader) => format!("/.host{}", loader.display()),
            Err(error) => return path_error(Path::new(loader), &error).into(),
        };
        let setpriv =
            [&loader, "--library-path", &libraries, "/.host/usr/bin/setpriv", &bounding, "--no-new-privs"];
        let name = format!("{}: {}", capabilities.join(" "), words.join(" "));
        self.run_named(&name, &[&setpriv[..], words].concat(), true)
    }

    fn run_named(&self, name: &str, words: &[&str], host_programs: bool) -> Outcome {
        let enter = repository_root().join(SCRIPTS).join("enter.sh").display().to_string();
        let root = self.path.display().to_string();
        let files = self.files.as_ref().map(|files| files.display().to_string()).unwrap_or_default();
        let namespaces =
            ["--mount", "--net", "--pid", "--ipc", "--uts", "--fork", "--kill-child", "sh", "-eu"];
        let limit = TIME_MAX.as_secs().to_string();
        // The end of unshare(1) is the end of all processes in its namespaces.
        let bounded = ["--verbose", "--signal=KILL", &limit, "unshare"];
        let what = [&bounded[..], &namespaces, &[&enter, &root, &files], words].concat();
        let step = CommandStep::new(&format!("{}: {name}", self.name), "timeout", &what);
        let step = if host_programs { step.with_variable("HOST_PROGRAMS", "1") } else { step };
        step.run().into()
    }
}

/// Capabilities as setpriv(1) adds them to a set.
pub(super) fn setpriv_list(capabilities: &[&str]) -> String {
    capabilities.iter().map(|name| format!(",+{}", name.trim_start_matches("CAP_").to_lowercase())).collect()
}
