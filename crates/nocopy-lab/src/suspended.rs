//! Tests on a machine that was suspended, as far as its clocks show it.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::missing::require_capabilities;
use crate::{Missing, skip};

/// The environment variable that a process has in which the machine was suspended.
const SUSPENDED: &str = "NOCOPY_TEST_SUSPENDED";

/// Runs a part of the test `name` in a process whose `CLOCK_BOOTTIME` is so far ahead of its `CLOCK_MONOTONIC`, as after a suspension of that
/// many seconds: the process runs this test of this program again, in a time namespace. Skips where there are none.
///
/// # Panics
/// If `work` panics there, or there is no such test.
pub fn for_or_skip(seconds: Duration, name: &str, work: impl FnOnce()) {
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
    let again = Command::new("unshare") // a process changes only the clocks of its children
        .args(["--time", "--fork", "--boottime", &seconds.as_secs().to_string(), "--"])
        .arg(std::env::current_exe().expect("the tests"))
        .args(["--exact", name, "--nocapture"])
        .env(SUSPENDED, "1")
        .output()
        .expect("unshare (util-linux)");
    let said = [again.stdout, again.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(again.status.success() && said.contains("1 passed"), "{said}");
}
