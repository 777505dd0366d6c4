//! Clean roots: directories of Debian made by debootstrap, or ones with nothing but what is tried. Commands
//! run there in namespaces of their own, and change nothing.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Architecture;
use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed, repository_root};

/// The directory of scripts that run in the roots, and of the one that enters them.
const SCRIPTS: &str = "xtask/release";

/// Where roots are, from one run to the next.
const ROOTS: &str = "target/release-roots";

/// Debian 12 and 13, each with the version of its Python.
const SUITES: [[&str; 2]; 2] = [["bookworm", "3.11"], ["trixie", "3.13"]];

/// Besides what is essential: tutorials make their networks by iproute2.
const PACKAGES: &str = "--include=iproute2,tcpdump";

/// With Python, and what installs its packages.
const PACKAGES_WITH_PYTHON: &str = "--include=iproute2,python3-venv";

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
        let prepare = |[suite, _]: [&str; 2]| {
            let path = prepare_root(suite, |directory| debootstrap(&[PACKAGES, suite, directory]))?;
            Ok(CleanRoot::at(suite, &path))
        };
        Ok(Self { debian: SUITES.into_iter().map(prepare).collect::<Result<_, Failed>>()? })
    }
}

/// A root of Debian with its Python.
#[derive(Debug)]
pub(super) struct PythonRoot {
    pub(super) name: String,
    /// The version, such as `3.11`.
    pub(super) python: &'static str,
    path: PathBuf,
}

impl PythonRoot {
    /// Those of this architecture. Makes the ones that are not there.
    pub(super) fn prepare_all() -> Result<Vec<Self>, Failed> {
        let prepare = |[suite, python]: [&'static str; 2]| {
            let name = format!("{suite}-python");
            let path =
                prepare_root(&name, |directory| debootstrap(&[PACKAGES_WITH_PYTHON, suite, directory]))?;
            Ok(Self { name, python, path })
        };
        SUITES.into_iter().map(prepare).collect()
    }

    /// One of another architecture: its packages are unpacked only, since none of its programs can be started
    /// by their names.
    pub(super) fn unpack(architecture: Architecture) -> Result<Self, Failed> {
        let [suite, python] = SUITES[0];
        let name = format!("{suite}-python-{}", architecture.name());
        let path = prepare_root(&name, |directory| {
            let foreign = format!("--arch={}", architecture.debian_name());
            debootstrap(&["--foreign", &foreign, PACKAGES_WITH_PYTHON, suite, directory])?;
            let unpack = "for package in var/cache/apt/archives/*.deb; do \
                          dpkg-deb --fsys-tarfile $package | tar --extract --keep-directory-symlink; done";
            CommandStep::new("unpack its packages", "sh", &["-eu", "-c", unpack])
                .in_directory(Path::new(directory))
                .run()
        })?;
        Ok(Self { name, python, path })
    }

    pub(super) fn root(&self) -> CleanRoot {
        CleanRoot::at(&self.name, &self.path)
    }

    /// Lines of sh(1) that start its interpreter by an emulator.
    pub(super) fn emulated_interpreter(&self, architecture: Architecture) -> String {
        let (root, python) = (self.path.display(), self.python);
        let emulator = architecture.emulator();
        format!("#!/bin/sh\nexec {emulator} -L {root} {root}/usr/bin/python{python} \"$@\"\n")
    }
}

/// The root of that name, which is made if it is not there. What was not finished has another name.
fn prepare_root(name: &str, make: impl FnOnce(&str) -> Result<(), Failed>) -> Result<PathBuf, Failed> {
    let path = roots_path(name);
    if !path.exists() {
        let unfinished = empty_directory(&format!("{name}.unfinished"))?;
        make(&unfinished.display().to_string())?;
        fs::rename(&unfinished, &path).map_err(|error| path_error(&path, &error))?;
    }
    Ok(path)
}

/// A bare Debian. Its mounts end with the installer, however that ends.
fn debootstrap(what: &[&str]) -> Result<(), Failed> {
    let install = [&["--mount", "debootstrap", "--variant=minbase"], what].concat();
    CommandStep::new("a bare Debian", "unshare", &install).run()
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
