//! The first process of a machine whose file system is in its memory: mounts the usual file systems, starts
//! the guest, and switches the machine off when the guest ends.

use std::ffi::CStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, ExitCode};

use rustix::mount::{MountFlags, mount};
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::system::{RebootCommand, reboot};

use super::monitor::device_of_port;
use crate::event;
use crate::failure::Failure;

/// Directory of files for the host; the guest's events go through a serial port instead.
pub(crate) const SHARED: &str = "/shared";

/// That port's name, given by the host.
pub(crate) const EVENTS_PORT: &str = "nocopy.events";

/// File systems by name, and their mount points; later ones may be inside earlier ones.
const FILE_SYSTEMS: &[(&CStr, &str)] = &[
    (c"proc", "/proc"),
    (c"sysfs", "/sys"),
    (c"devtmpfs", "/dev"),
    (c"devpts", "/dev/pts"),
    (c"tmpfs", "/dev/shm"),
    (c"tmpfs", "/tmp"),
    (c"tmpfs", "/run"),
    (c"tracefs", "/sys/kernel/tracing"),
    (c"bpf", "/sys/fs/bpf"),
    (c"cgroup2", "/sys/fs/cgroup"),
];

/// The directory of links to busybox for missing programs: last in the path, after the real programs.
const BUSYBOX: &str = "/usr/local/bin";

/// Drivers that are not loaded automatically when a test needs them.
const DRIVERS: &[&str] = &["tun"];

/// The limit of descriptors that an init process usually sets for others.
const DESCRIPTORS_MAX: u64 = 1 << 19;

const ENVIRONMENT: &[(&str, &str)] = &[
    ("PATH", "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/bin"),
    ("HOME", "/root"),
    ("TMPDIR", "/tmp"),
    ("RUST_BACKTRACE", "1"),
];

/// Does not return if the machine can be switched off.
pub(crate) fn main(arguments: &[String]) -> ExitCode {
    let started = set_up_and_run(arguments);
    let code = super::exit_code("nocopy-vm init", started);
    rustix::fs::sync();
    // Refused only if this process is not the first one.
    let _ = reboot(RebootCommand::PowerOff);
    code
}

fn set_up_and_run(arguments: &[String]) -> Result<(), Failure> {
    for (name, place) in FILE_SYSTEMS {
        fs::create_dir_all(place)?;
        if *name == c"tmpfs" && fs::read_dir(place)?.next().is_some() {
            continue; // files of the host are there, such as a repository below /tmp
        }
        mount(*name, *place, *name, MountFlags::empty(), None)
            .map_err(|errno| Failure(format!("{place}: {errno}")))?;
    }
    fs::create_dir_all("/root")?;
    fs::create_dir_all(SHARED)?;
    symlink(device_of_port(EVENTS_PORT)?, Path::new(SHARED).join(event::FILE))?;
    fs::create_dir_all(BUSYBOX)?;
    run_command(&["/bin/busybox", "--install", "-s", BUSYBOX])?;
    DRIVERS.iter().try_for_each(|driver| run_command(&["/sbin/modprobe", driver]))?;
    let descriptors = Some(DESCRIPTORS_MAX);
    setrlimit(Resource::Nofile, Rlimit { current: descriptors, maximum: descriptors })?;
    let mut guest = Command::new(std::env::current_exe()?);
    let status = guest.args(arguments).env_clear().envs(ENVIRONMENT.iter().copied()).status()?;
    if status.success() { Ok(()) } else { Err(Failure(format!("the guest ended with {status}"))) }
}

fn run_command(words: &[&str]) -> Result<(), Failure> {
    let status = Command::new(words[0]).args(&words[1..]).status()?;
    if status.success() { Ok(()) } else { Err(Failure(format!("{}: {status}", words.join(" ")))) }
}
