//! Pages that the kernel pins for devices: those of every open area, and of no closed one.

use std::fs;

use super::patience;
use crate::failure::Failure;

/// Waits until no page is pinned: sockets release their pages a moment after they are closed.
pub(crate) fn wait_until_nothing_pinned() -> Result<(), Failure> {
    patience::wait_until("every page is unpinned", || Ok(pinned_pages()? == 0))
}

/// Pages pinned now, by any process.
pub(crate) fn pinned_pages() -> Result<i64, Failure> {
    fs::write("/proc/sys/vm/stat_refresh", "1")?; // each processor counts by itself, and tells now and then
    let statistics = fs::read_to_string("/proc/vmstat")?;
    let value = |name: &str| -> Result<i64, Failure> {
        let value = statistics.lines().find_map(|line| line.strip_prefix(name));
        Ok(value.ok_or_else(|| Failure(format!("/proc/vmstat has no {name}")))?.trim().parse()?)
    };
    Ok(value("nr_foll_pin_acquired")? - value("nr_foll_pin_released")?)
}
