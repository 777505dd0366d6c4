//! One run of a test program, in a network namespace of its own.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use nocopy_lab::Namespace;
use nocopy_proto::run::sockets::{FILE_BYTES, MAGIC, SharedSockets};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::step::Failed;
use crate::suite;

/// The longest time that a program may run.
const TIME_MAX: Duration = Duration::from_secs(240);

/// With the library or without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LibraryMode {
    Without,
    /// With bursts of all equal datagrams.
    Joining {
        deadline_us: u32,
    },
}

#[derive(Debug)]
pub(crate) struct TestRun {
    /// `None`: it was killed after a time limit.
    pub(crate) status: Option<ExitStatus>,
    pub(crate) joined: u64,
}

/// Runs a command to its end. Its output is in the file `output_path`.
pub(crate) fn run_in_namespace(
    mut command: Command,
    mode: LibraryMode,
    output_path: &Path,
) -> Result<TestRun, Failed> {
    let failed = |error: std::io::Error| Failed(format!("{command:?}: {error}"));
    let namespace = Namespace::new_with_loopback().map_err(|error| Failed(error.to_string()))?;
    // The descriptor is passed even if nothing is counted: some tests check their inherited descriptors.
    let report = create_socket_counters_file().map_err(failed)?;
    let output = File::create(output_path).map_err(failed)?;
    let errors = output.try_clone().map_err(failed)?;
    let inode = report.metadata().map_err(failed)?.ino();
    if let LibraryMode::Joining { deadline_us } = mode {
        command
            .env("LD_PRELOAD", suite::preloadable(&suite::built_program("debug", "libnocopy_sockets.so"))?);
        command.env("NOCOPY_BATCH_TUNING", format!("entry=1,always,deadline={deadline_us}"));
        command.env("NOCOPY_BATCH_REPORT", format!("{}:{inode}", report.as_raw_fd()));
    }
    command.stdin(Stdio::null()).stdout(output).stderr(errors).process_group(0);
    let child = namespace.run(|| command.spawn());
    let status = child.and_then(|mut child| suite::wait_or_kill(&mut child, TIME_MAX));
    let status = status.map_err(|error| Failed(format!("{command:?}: {error}")))?;
    let read = read_socket_counters(&report);
    if mode != LibraryMode::Without && read.programs == 0 {
        return Err(Failed(format!(
            "{command:?}: the library was not loaded; {}",
            last_output_lines(output_path)
        )));
    }
    let joined = read.sockets.iter().map(|socket| socket.joined).sum();
    Ok(TestRun { status, joined })
}

/// A file that a command inherits, in which the library counts.
pub(crate) fn create_socket_counters_file() -> std::io::Result<File> {
    let file = memfd_create("report", MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, FILE_BYTES as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK)?;
    let file = File::from(file);
    file.write_all_at(&MAGIC.to_ne_bytes(), 0)?;
    Ok(file)
}

pub(crate) fn read_socket_counters(report: &File) -> SharedSockets {
    let mut bytes = vec![0; FILE_BYTES];
    let read = report.read_exact_at(&mut bytes, 0).ok().and_then(|()| SharedSockets::parse(&bytes));
    read.unwrap_or_default()
}

pub(crate) fn last_output_lines(output_path: &Path) -> String {
    let text = fs::read(output_path).unwrap_or_default();
    let text = String::from_utf8_lossy(&text).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}
