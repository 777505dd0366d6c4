//! Whether machines run by hardware virtualisation.
//!
//! It does not suffice that `/dev/kvm` can be opened: if the hypervisor below emulates it, a stock kernel may
//! hang while it boots. So one machine is booted as a test, once for each kernel of the host and each QEMU.

use std::fs;
use std::time::Duration;

use super::boot::MachinePlan;
use super::kernel::KernelTree;
use super::lab::ProcessorKind;
use super::machine;
use super::tools::HostTools;
use super::{Error, LockedCache};
use crate::topology::{Kernel, Topology};

/// What a machine must be up within. Emulated, it takes longer; by hardware, a few seconds.
const BOOT_MAX: Duration = Duration::from_secs(20);

const DEVICE: &str = "/dev/kvm";

/// The content of the cache file after a machine has booted.
const WORKS: &str = "works";

impl ProcessorKind {
    /// What is known of this host, or found out now with that kernel.
    pub(crate) fn detect(cache: &LockedCache, tools: &HostTools, kernel: &KernelTree) -> Result<Self, Error> {
        if let Err(error) = fs::File::options().read(true).write(true).open(DEVICE) {
            return Ok(Self::Emulated(format!("{DEVICE}: {error}")));
        }
        let entry = cache.directory().join(cache_file_name(&host_kernel(), &tools.qemu_version));
        let known = fs::read_to_string(&entry).ok().filter(|known| !known.is_empty());
        let found = match known {
            Some(found) => found,
            None => {
                eprintln!("vm: try KVM, for at most {} s", BOOT_MAX.as_secs());
                let boot = MachinePlan { kernel: Kernel::Newest, topology: Topology::Igb, tests: Vec::new() };
                let found = match machine::boots_within(BOOT_MAX, cache.directory(), tools, kernel, &boot) {
                    Ok(()) => WORKS.to_owned(),
                    Err(why) => format!("KVM does not work here: {why}"),
                };
                fs::write(&entry, &found).map_err(Error::for_file(&entry))?;
                eprintln!("vm: {found} (kept in {})", entry.display());
                found
            }
        };
        Ok(if found == WORKS { Self::Hardware } else { Self::Emulated(found) })
    }
}

fn host_kernel() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The file in which the answer is kept: of a host's kernel and a QEMU's version.
fn cache_file_name(kernel: &str, qemu: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || ".-+~".contains(c) { c } else { '_' };
    format!("kvm-{kernel}-{qemu}").chars().map(plain).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kvm_result_is_stored_per_kernel_and_qemu_version() {
        let qemu = "QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2)";
        let wanted = "kvm-6.1.0-50-amd64-QEMU_emulator_version_10.0.2__Debian_1_10.0.2+ds-2_";
        assert_eq!(cache_file_name("6.1.0-50-amd64", qemu), wanted);
        assert_ne!(cache_file_name("6.1.0-51-amd64", qemu), wanted);
    }
}
