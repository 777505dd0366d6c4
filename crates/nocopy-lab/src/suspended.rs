//! Tests on a machine that was suspended, as far as its clocks show it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;
use std::{fs, io, thread};

use nix::sched::{CloneFlags, unshare};
use rustix::process::getuid;
use rustix::thread::{UnshareFlags, gettid};

use crate::missing::require_capabilities;
use crate::{Missing, skip};

/// The environment variable that a process has in which the machine was suspended.
const SUSPENDED: &str = "NOCOPY_TEST_SUSPENDED";

/// Runs a part of the test `name` in a process whose `CLOCK_BOOTTIME` is so far ahead of its
/// `CLOCK_MONOTONIC`, as after a suspension of that many seconds: the process runs this test of this program
/// again, in a time namespace. Skips where there are none.
///
/// # Panics
/// If `work` panics there, or there is no such test.
pub fn run_as_after_suspension_or_skip(seconds: Duration, name: &str, work: impl FnOnce()) {
    if std::env::var_os(SUSPENDED).is_some() {
        return work();
    }
    let is_known = Path::new("/proc/self/ns/time").exists();
    let missing = match is_known {
        true => require_capabilities(),
        false => Err(Missing::Kernel("time namespaces (CONFIG_TIME_NS)")),
    };
    if let Err(missing) = missing {
        return skip(&missing);
    }
    let mut command = Command::new(std::env::current_exe().expect("the tests"));
    command.args(["--exact", name, "--nocapture"]).env(SUSPENDED, "1");
    let again = run_with_advanced_boot_clock(&mut command, seconds).expect("a time namespace");
    let output =
        [again.stdout, again.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(again.status.success() && output.contains("1 passed"), "{output}");
}

/// Runs a program in a time namespace (time_namespaces(7)), from a thread of its own: all later children of
/// that one have its clocks.
fn run_with_advanced_boot_clock(command: &mut Command, seconds: Duration) -> io::Result<Output> {
    let run = || {
        // nix has no name for it.
        unshare(CloneFlags::from_bits_retain(UnshareFlags::NEWTIME.bits().cast_signed()))?;
        let offsets = format!("/proc/{}/timens_offsets", gettid().as_raw_nonzero());
        fs::write(offsets, format!("boottime {} 0", seconds.as_secs()))?;
        // For a user, it is forked: before Linux 6.0 a child that shares its parent's memory has its parent's
        // clocks, too.
        command.uid(getuid().as_raw()).output()
    };
    thread::scope(|scope| scope.spawn(run).join().expect("no panic"))
}
