//! The programs the lab needs on the host, and how they are had.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages::{Archive, DEBIAN_KEYS, Suite, System, release, run};
use super::{Cache, Error};

const QEMU: &str = "qemu-system-x86_64";

/// The device that needs a QEMU of 8.0 or newer.
const DEVICE: &str = "igb";

/// Programs and the packages they come in: a kernel's modules are loaded by modprobe, virtme-ng makes its first file
/// system from busybox and reads a kernel's version with file; taps are made by ip.
const PROGRAMS: &[(&str, &str)] = &[
    ("modprobe", "kmod"),
    ("busybox", "busybox-static"),
    ("file", "file"),
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
];

/// Boots a kernel on the machine's own file system. Pinned: its options are its interface.
const VIRTME: &str = "virtme-ng==1.42";

/// The programs, there and checked.
pub(crate) struct Tools {
    /// A directory with `vng` and what it calls.
    pub(crate) virtme: PathBuf,
    pub(crate) qemu_version: String,
}

impl Tools {
    pub(crate) fn prepare(cache: &Cache) -> Result<Self, Error> {
        let release = release()?;
        let mut packages: Vec<&str> =
            PROGRAMS.iter().filter(|(program, _)| !is_there(program)).map(|(_, package)| *package).collect();
        // The module is there without its package in Debian; what is missing then is pip.
        if run("looking for venv", Command::new("python3").args(["-c", "import venv, ensurepip"])).is_err() {
            packages.push("python3-venv");
        }
        let (keys, of_keys) = DEBIAN_KEYS;
        if release.system == System::Ubuntu && !Path::new(keys).exists() {
            packages.push(of_keys);
        }
        let (suite, beside) = release.suites();
        if !packages.is_empty() {
            install(&suite, beside, &packages)?;
        }
        if !has_device() {
            // Debian's backports bring a newer QEMU to a release whose own is older; Ubuntu's do not.
            let (backports, own) = (format!("{}-backports", release.codename), release.codename.as_str());
            match release.system {
                System::Debian => install(&backports, Some(own), &["qemu-system-x86"])?,
                System::Ubuntu => install(&suite, beside, &["qemu-system-x86"])?,
            }
        }
        if !has_device() {
            return Err(Error::NoDevice { device: DEVICE });
        }
        let version = run("asking QEMU for its version", Command::new(QEMU).arg("--version"))?;
        let qemu_version = version.lines().next().unwrap_or_default().to_owned();
        Ok(Self { virtme: virtme(cache)?, qemu_version })
    }
}

fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

fn has_device() -> bool {
    let asked =
        run("asking QEMU for a device", Command::new(QEMU).args(["-device", &format!("{DEVICE},help")]));
    asked.is_ok()
}

fn install(suite: &str, beside: Option<&str>, packages: &[&str]) -> Result<(), Error> {
    let lists = tempfile::tempdir().map_err(Error::at(std::env::temp_dir()))?;
    Suite::fetch(Archive::Own, suite, beside, lists.path())?.install(packages)
}

/// A Python environment with virtme-ng. It cannot be renamed into place, its scripts know where they are: a file written
/// last says that it is complete.
fn virtme(cache: &Cache) -> Result<PathBuf, Error> {
    let place = cache.directory().join("virtme");
    let (programs, complete) = (place.join("bin"), place.join(VIRTME));
    if complete.exists() {
        return Ok(programs);
    }
    if place.exists() {
        fs::remove_dir_all(&place).map_err(Error::at(&place))?;
    }
    eprintln!("vm: install {VIRTME} into {}", place.display());
    run("making a Python environment", Command::new("python3").args(["-m", "venv"]).arg(&place))?;
    let pip = programs.join("pip");
    run("installing virtme-ng", Command::new(pip).args(["install", "--quiet", VIRTME]))?;
    fs::write(&complete, "").map_err(Error::at(&complete))?;
    Ok(programs)
}

/// What to put before PATH so that `vng` finds the rest of itself.
pub(crate) fn path_with(directory: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(directory.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(all).unwrap_or(path)
}
