//! Gives this process a face of a machine, for all that it starts: by its environment, its limits, and
//! private mounts and names. Nothing of the machine is changed.
//!
//! Two factors are left to each test ([`crate::suite`]), whose standard streams are not inherited: `terminal`
//! and `input`. The nightly suite chooses the place of the checkout and of what is built: `clone` and
//! `target`.

use std::convert::Infallible;
use std::fmt::Display;
use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::sched::CloneFlags;
use nocopy_lab::refused::Refused;
use nocopy_lab::{REMOVED, SYSCTLS};
use rustix::fs::Mode;
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, mount_remount};
use rustix::process::{Resource, Rlimit, setrlimit, umask};
use rustix::system::sethostname;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::face::MachineVariant;
use crate::step::{Failed, command_after_shell_line, repository_root};
use crate::suite::built_program as built;

/// What the kernel sets on a machine that nobody has tuned (tcp_init() and Kconfig of Linux 6.18, with 4 GiB
/// or more). The limits of net/core cannot be set in a private namespace, and of congestion controls only the
/// one that all kernels have.
const STOCK: &str = "net/ipv4/tcp_rmem=4096 131072 6291456;net/ipv4/tcp_wmem=4096 16384 4194304;net/ipv4/tcp_congestion_control=reno";

const WITHOUT_IPV6: &str = "net/ipv6/conf/all/disable_ipv6=1;net/ipv6/conf/default/disable_ipv6=1";

/// What tests may miss because of a factor. A refused system call (`refuse_system_calls`) costs setuid, too:
/// its filter sets no_new_privs.
const TAKEN_AWAY_BY: [(&str, &str); 6] = [
    ("io-uring", "io_uring"),
    ("io-uring", SETUID),
    ("ipv6", "IPv6"),
    ("ipv6", SETUID),
    ("descriptors", "1,024 descriptors"),
    ("descriptors", "10,150 descriptors"),
];

const SETUID: &str = "a temporary directory whose programs may be setuid";

/// The longest name of a Linux host (`HOST_NAME_MAX`).
const HOST_NAME_MAX: usize = 64;

/// Replaces this process by a program for which the machine has this face.
pub(crate) fn exec_with_variant(
    face: &MachineVariant,
    program: &Path,
    arguments: &[String],
) -> Result<Infallible, Failed> {
    nix::sched::unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWUTS)
        .map_err(variant_error("private mounts"))?;
    let private = MountPropagationFlags::REC | MountPropagationFlags::PRIVATE;
    mount_change("/", private).map_err(variant_error("private mounts"))?;
    let scratch = built("xtask", "face");
    fs::create_dir_all(&scratch).map_err(variant_error("a directory"))?;
    mount("nocopy", &scratch, "tmpfs", MountFlags::empty(), None).map_err(variant_error("a file system"))?;
    bind_mount_files(face, &scratch)?;
    let mut command = match face.value_of("interrupt") {
        // Only a shell can ignore a signal without unsafe code.
        Some(_) => command_after_shell_line("trap '' INT; exec \"$@\"", program),
        None => Command::new(program),
    };
    command.args(arguments);
    set_up_directories(face, &scratch, &mut command)?;
    set_variables(face, &mut command);
    set_limits(face)?;
    refuse_system_calls(face);
    Err(variant_error("exec")(command.exec()))
}

fn variant_error<E: Display>(what: &str) -> impl FnOnce(E) -> Failed + use<'_, E> {
    move |error| Failed(format!("a face of the machine: {what}: {error}"))
}

/// Files of the system that other ones lie over.
fn bind_mount_files(face: &MachineVariant, scratch: &Path) -> Result<(), Failed> {
    let over = |path: &str, name: &str, text: String| {
        let file = scratch.join(name);
        fs::write(&file, text).map_err(variant_error(path))?;
        mount_bind(&file, path).map_err(variant_error(path))
    };
    if let Some(length) = face.numeric_value_of("processor-name") {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").map_err(variant_error("/proc/cpuinfo"))?;
        over("/proc/cpuinfo", "cpuinfo", with_processor_name(&cpuinfo, length))?;
    }
    if face.value_of("hosts") == Some("localhost-is-ipv6") {
        over("/etc/hosts", "hosts", "::1 localhost\n127.0.0.1 localhost\n".into())?;
    }
    if face.value_of("host-name") == Some("long") {
        let name = repeat_to_length("a-host-with-a-long-name-", HOST_NAME_MAX);
        sethostname(name.as_bytes()).map_err(variant_error("host name"))?;
    }
    Ok(())
}

fn with_processor_name(cpuinfo: &str, length: usize) -> String {
    let name = repeat_to_length("Processor(R) (a virtual one) CPU @ 2.50GHz ", length);
    let line = |line: &str| match line.starts_with("model name") {
        true => format!("model name\t: {name}\n"),
        false => format!("{line}\n"),
    };
    cpuinfo.lines().map(line).collect()
}

/// So many characters, of this text again and again.
fn repeat_to_length(text: &str, count: usize) -> String {
    text.chars().cycle().take(count).collect()
}

fn set_up_directories(face: &MachineVariant, scratch: &Path, command: &mut Command) -> Result<(), Failed> {
    let home = std::env::var_os("HOME").map(PathBuf::from);
    for (variable, usual) in [("CARGO_HOME", ".cargo"), ("RUSTUP_HOME", ".rustup")] {
        if let (None, Some(home)) = (std::env::var_os(variable), &home) {
            command.env(variable, home.join(usual));
        }
    }
    if let Some(home) = face.value_of("home") {
        for variable in ["HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"] {
            command.env_remove(variable);
        }
        if home == "read-only" {
            let home = scratch.join("home");
            fs::create_dir(&home).map_err(variant_error("a home"))?;
            mount_read_only(&home)?;
            command.env("HOME", home);
        }
    }
    if face.value_of("temporary") == Some("elsewhere") {
        // Where other users may go.
        mount_bind(scratch, "/media").map_err(variant_error("/media"))?;
        let place = Path::new("/media/temporary files");
        fs::create_dir(place).map_err(variant_error("a directory of temporary files"))?;
        command.env("TMPDIR", place);
    }
    if face.value_of("folder") == Some("unwritable") {
        // The current folders of tests.
        ["crates", "xtask", "fuzz"]
            .iter()
            .try_for_each(|name| mount_read_only(&repository_root().join(name)))?;
    }
    Ok(())
}

/// Permissions do not bind root.
fn mount_read_only(directory: &Path) -> Result<(), Failed> {
    mount_bind(directory, directory).map_err(variant_error("a read-only directory"))?;
    mount_remount(directory, MountFlags::BIND | MountFlags::RDONLY, "")
        .map_err(variant_error("a read-only directory"))
}

fn set_variables(face: &MachineVariant, command: &mut Command) {
    if let Some(lang) = face.value_of("lang") {
        for variable in ["LANGUAGE", "LC_ALL", "LC_CTYPE", "LC_MESSAGES", "LC_NUMERIC", "LC_TIME"] {
            command.env_remove(variable);
        }
        command.env("LANG", lang);
    }
    if let Some(zone) = face.value_of("zone") {
        command.env("TZ", if zone == "east" { "<+14>-14" } else { "<-12>12" });
    }
    let settings = [
        (face.value_of("sysctls") == Some("stock"), STOCK),
        (face.value_of("ipv6") == Some("disabled"), WITHOUT_IPV6),
    ];
    let settings = settings.iter().filter(|(is_set, _)| *is_set).map(|(_, settings)| *settings);
    let taken_away = TAKEN_AWAY_BY.iter().filter(|(factor, _)| face.value_of(factor).is_some());
    let taken_away = taken_away.map(|(_, name)| *name);
    command.env(REMOVED, taken_away.collect::<Vec<_>>().join(";"));
    command.env(SYSCTLS, settings.collect::<Vec<_>>().join(";"));
}

/// Refuses system calls that another kernel, or its setting, refuses.
fn refuse_system_calls(face: &MachineVariant) {
    if face.value_of("io-uring").is_some() {
        // As kernel.io_uring_disabled=2 does.
        Refused::always(libc::SYS_io_uring_setup, libc::EPERM).install_filter();
    }
    if face.value_of("ipv6") == Some("absent") {
        Refused::with(libc::SYS_socket, libc::EAFNOSUPPORT, (0, libc::AF_INET6)).install_filter();
    }
}

fn set_limits(face: &MachineVariant) -> Result<(), Failed> {
    if let Some(count) = face.numeric_value_of("processors") {
        let usable = sched_getaffinity(None).map_err(variant_error("processors"))?;
        let mut chosen = CpuSet::new();
        let is_usable = |&processor: &usize| usable.is_set(processor);
        let mut processors: Vec<usize> = (0..CpuSet::MAX_CPU).filter(is_usable).collect();
        if face.value_of("clone").is_some() {
            // The faces of the two checkouts are tried side by side: not both on the first processor.
            processors.rotate_left(1);
        }
        processors.into_iter().take(count).for_each(|processor| chosen.set(processor));
        sched_setaffinity(None, &chosen).map_err(variant_error("processors"))?;
    }
    if let Some(count) = face.numeric_value_of("descriptors") {
        let limit = Some(count as u64);
        setrlimit(Resource::Nofile, Rlimit { current: limit, maximum: limit })
            .map_err(variant_error("descriptors"))?;
    }
    if face.value_of("umask").is_some() {
        umask(Mode::RWXG | Mode::RWXO);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_name_of_the_processor_changes() {
        let cpuinfo = "processor\t: 0\nmodel name\t: Some CPU\nflags\t: a b\n";
        assert_eq!(with_processor_name(cpuinfo, 0), "processor\t: 0\nmodel name\t: \nflags\t: a b\n");
        let changed = with_processor_name(cpuinfo, 130);
        assert_eq!(changed.lines().map(|line| line.len()).max(), Some("model name\t: ".len() + 130));
    }
}
