//! The programs that the lab needs on the host, and how to install them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::arm64::RamdiskImage;
use super::kernel::KernelTree;
use super::packages::{
    DEBIAN_KEYS, Distribution, PackageArchive, PackageSuite, SystemRelease, host_release, run_command,
};
use super::{Error, LockedCache};
use crate::built::BuiltPrograms;
use crate::topology::Architecture;

const QEMU: &str = "qemu-system-x86_64";

/// The device that needs a QEMU of 8.0 or newer.
const DEVICE: &str = "igb";

/// Programs and the packages they come in: a kernel's modules are loaded by modprobe, virtme-ng makes its
/// first file system from busybox and reads a kernel's version with file; taps are made by ip, and a disk in
/// a machine by mkfs.ext4. The last ones are what users run on a mounted directory.
const PROGRAMS: &[(&str, &str)] = &[
    ("modprobe", "kmod"),
    ("busybox", "busybox-static"),
    ("file", "file"),
    ("unshare", "util-linux"),
    ("ip", "iproute2"),
    ("mkfs.ext4", "e2fsprogs"),
    ("sqlite3", "sqlite3"),
    ("git", "git"),
    ("make", "make"),
];

/// The program that boots a kernel on the host's file system. The version is fixed, since the lab depends on
/// its options.
const VIRTME: &str = "virtme-ng==1.42";

/// Programs that an arm64 machine needs on the host: depmod lists what its modules need.
const PROGRAMS_FOR_ARM64: &[(&str, &str)] = &[("depmod", "kmod"), ("unshare", "util-linux")];

const QEMU_FOR_ARM64: &str = "qemu-system-aarch64";

/// The programs that the lab needs, found and checked.
pub(crate) struct HostTools {
    pub(crate) starter: MachineStarter,
    pub(crate) qemu_version: String,
}

pub(crate) enum MachineStarter {
    /// virtme-ng, on the host's own file system: a directory with `vng` and the programs that it calls.
    Virtme(PathBuf),
    /// QEMU, on a file system that was made for it.
    Arm64(RamdiskImage),
}

impl HostTools {
    pub(crate) fn prepare(cache: &LockedCache) -> Result<Self, Error> {
        let release = host_release()?;
        let mut packages = missing_packages(&release, PROGRAMS);
        // In Debian the module exists without its package; then pip is missing.
        if run_command("looking for venv", Command::new("python3").args(["-c", "import venv, ensurepip"]))
            .is_err()
        {
            packages.push("python3-venv");
        }
        install_packages(&release, &packages)?;
        if !has_igb_device() {
            install_newest(&release, &["qemu-system-x86"])?;
        }
        if !has_igb_device() {
            return Err(Error::NoDevice { device: DEVICE });
        }
        Ok(Self {
            starter: MachineStarter::Virtme(prepare_virtme(cache)?),
            qemu_version: qemu_version(QEMU)?,
        })
    }

    /// The tools for arm64 machines with that kernel, for which `built` was compiled.
    pub(crate) fn prepare_for_arm64(
        cache: &LockedCache,
        kernel: &KernelTree,
        built: &BuiltPrograms,
    ) -> Result<Self, Error> {
        let starter = MachineStarter::Arm64(RamdiskImage::make(cache, kernel, built)?);
        Ok(Self { starter, qemu_version: qemu_version(QEMU_FOR_ARM64)? })
    }
}

/// Installs the missing tools to fetch an arm64 kernel and to emulate its machine.
pub(crate) fn install_for_arm64() -> Result<(), Error> {
    let release = host_release()?;
    install_packages(&release, &missing_packages(&release, PROGRAMS_FOR_ARM64))?;
    if is_program_installed(QEMU_FOR_ARM64) {
        return Ok(());
    }
    // Debian's two emulators need the same version of their common files: both must be of the same suite, or
    // one is removed.
    let both = ["qemu-system-arm", "qemu-system-x86"];
    install_newest(&release, if is_program_installed(QEMU) { &both } else { &both[..1] })
}

/// The packages of the programs that are not there.
fn missing_packages(release: &SystemRelease, programs: &[(&str, &'static str)]) -> Vec<&'static str> {
    let missing =
        programs.iter().filter(|(program, _)| !is_program_installed(program)).map(|(_, package)| *package);
    let (keys, of_keys) = DEBIAN_KEYS;
    let has_no_keys = release.system == Distribution::Ubuntu && !Path::new(keys).exists();
    missing.chain(has_no_keys.then_some(of_keys)).collect()
}

/// Installs packages of the machine's own release.
fn install_packages(release: &SystemRelease, packages: &[&str]) -> Result<(), Error> {
    let (suite, other_suite) = release.suites();
    if packages.is_empty() { Ok(()) } else { install_from_suite(&suite, other_suite, packages) }
}

/// Installs packages of the newest suite that the machine's release can have: Debian's backports bring a
/// newer QEMU to a release whose own is older; Ubuntu's do not.
fn install_newest(release: &SystemRelease, packages: &[&str]) -> Result<(), Error> {
    match release.system {
        Distribution::Debian => {
            install_from_suite(&format!("{}-backports", release.codename), Some(&release.codename), packages)
        }
        Distribution::Ubuntu => install_packages(release, packages),
    }
}

/// The first line of QEMU's `--version`.
fn qemu_version(qemu: &str) -> Result<String, Error> {
    let version = run_command("asking QEMU for its version", Command::new(qemu).arg("--version"))?;
    Ok(version.lines().next().unwrap_or_default().to_owned())
}

fn is_program_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|directory| directory.join(program).exists())
}

fn has_igb_device() -> bool {
    let asked = run_command(
        "asking QEMU for a device",
        Command::new(QEMU).args(["-device", &format!("{DEVICE},help")]),
    );
    asked.is_ok()
}

fn install_from_suite(suite: &str, other_suite: Option<&str>, packages: &[&str]) -> Result<(), Error> {
    let lists = tempfile::tempdir().map_err(Error::for_file(std::env::temp_dir()))?;
    PackageSuite::fetch(PackageArchive::Own, suite, other_suite, Architecture::Amd64, lists.path())?
        .install(packages)
}

/// A Python environment with virtme-ng. It cannot be renamed into place, its scripts know where they are: a
/// file written last says that it is complete.
fn prepare_virtme(cache: &LockedCache) -> Result<PathBuf, Error> {
    let directory = cache.directory().join("virtme");
    let (programs, complete) = (directory.join("bin"), directory.join(VIRTME));
    if complete.exists() {
        // An installation by an earlier version of the lab may not do so yet.
        enable_host_file_caching(&programs)?;
        return Ok(programs);
    }
    if directory.exists() {
        fs::remove_dir_all(&directory).map_err(Error::for_file(&directory))?;
    }
    eprintln!("vm: install {VIRTME} into {}", directory.display());
    run_command("making a Python environment", Command::new("python3").args(["-m", "venv"]).arg(&directory))?;
    let pip = programs.join("pip");
    run_command("installing virtme-ng", Command::new(pip).args(["install", "--quiet", VIRTME]))?;
    enable_host_file_caching(&programs)?;
    fs::write(&complete, "").map_err(Error::for_file(&complete))?;
    Ok(programs)
}

/// The options with which virtme-ng's first file system mounts the host's, and the same with a cache. Without
/// a cache a machine reads each page of each program from the host whenever it is started, which is half of
/// its work. The host's files do not change under a machine, except in the directory that both share, which
/// is mounted separately.
const MOUNTED: (&str, &str) = ("msize=524288 /dev/root", "msize=524288,cache=loose /dev/root");

/// Makes machines cache the host's files that they have read; virtme-ng has no option for it.
fn enable_host_file_caching(programs: &Path) -> Result<(), Error> {
    let question = "import virtme.mkinitramfs; print(virtme.mkinitramfs.__file__)";
    let path =
        run_command("looking for virtme-ng", Command::new(programs.join("python3")).args(["-c", question]))?;
    let path = Path::new(path.trim());
    let script = fs::read_to_string(path).map_err(Error::for_file(path))?;
    let (plain, keeping) = MOUNTED;
    if script.contains(plain) {
        fs::write(path, script.replace(plain, keeping)).map_err(Error::for_file(path))?;
    } else if !script.contains(keeping) {
        eprintln!("vm: {}: does not mount by '{plain}': machines will be slower", path.display());
    }
    Ok(())
}

/// The value of PATH with which `vng` finds its other programs.
pub(crate) fn path_variable_with(directory: &Path) -> std::ffi::OsString {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let all = std::iter::once(directory.to_owned()).chain(std::env::split_paths(&path));
    std::env::join_paths(all).unwrap_or(path)
}
