//! The emulated cards: their driver, and the interfaces it makes.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::pins;
use crate::failure::Failure;
use crate::topology::Topology;

const APPEAR_TIMEOUT: Duration = Duration::from_secs(60);
const APPEAR_POLL: Duration = Duration::from_millis(20);

/// Reloads the topology's driver, so that a test finds no state of the previous one.
pub(crate) fn load_driver(topology: Topology) -> Result<(), Failure> {
    unload_idle_driver(topology)?;
    modprobe(&[topology.driver()])
}

/// Unloads the topology's driver once the kernel has released what closed ports used of it. It does so a
/// moment after they are closed, and complains if the queues are gone by then (Linux 7.3).
pub(crate) fn unload_idle_driver(topology: Topology) -> Result<(), Failure> {
    pins::wait_until_nothing_pinned()?;
    unload_driver(topology)
}

/// Unloads the topology's driver, whatever uses it.
pub(crate) fn unload_driver(topology: Topology) -> Result<(), Failure> {
    let driver = topology.driver();
    if Path::new("/sys/module").join(driver).exists() { modprobe(&["--remove", driver]) } else { Ok(()) }
}

pub(crate) fn modprobe(arguments: &[&str]) -> Result<(), Failure> {
    let output = Command::new("modprobe").args(arguments).output()?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    Err(Failure(format!("modprobe {}: {}", arguments.join(" "), words.trim())))
}

/// The interfaces of the topology's driver in the first namespace, in the order of their names.
pub(crate) fn driver_interfaces(topology: Topology) -> Result<[String; 2], Failure> {
    let give_up = Instant::now() + APPEAR_TIMEOUT;
    loop {
        let mut names = Vec::new();
        for entry in fs::read_dir("/sys/class/net")? {
            let entry = entry?;
            let driver = fs::read_link(entry.path().join("device/driver")).unwrap_or_default();
            if driver.file_name().is_some_and(|name| name == topology.driver()) {
                names.push(entry.file_name().to_string_lossy().into_owned());
            }
        }
        names.sort();
        match <[String; 2]>::try_from(names) {
            Ok(pair) => return Ok(pair),
            Err(names) if Instant::now() > give_up => {
                let driver = topology.driver();
                return Err(Failure(format!(
                    "two interfaces of the driver {driver} expected, there are {names:?}"
                )));
            }
            Err(_) => sleep(APPEAR_POLL),
        }
    }
}
