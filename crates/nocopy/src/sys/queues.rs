//! The location of a card's queues: its directory in sysfs, its NUMA node, the processors of its interrupts.

use std::fs;
use std::path::{Path, PathBuf};

use super::interface::{self, Interface};
use super::netdev;

/// The card's own directory in sysfs.
pub(crate) fn device_directory(interface: &Interface) -> Option<PathBuf> {
    let bus = interface::bus_address(&interface.name)?;
    let path = Path::new("/sys/bus/pci/devices").join(bus);
    path.exists().then_some(path)
}

/// The NUMA node of a card; `None` if it is equally near to all, or unknown.
pub(crate) fn card_numa_node(interface: &Interface) -> Option<u32> {
    // -1 if the machine has one node, or the firmware does not report it.
    fs::read_to_string(device_directory(interface)?.join("numa_node")).ok()?.trim().parse().ok()
}

/// The processors of an interrupt, in the kernel's notation.
pub(crate) fn interrupt_cpus(interrupt: u32) -> String {
    let path = |file| format!("/proc/irq/{interrupt}/{file}");
    let list = fs::read_to_string(path("effective_affinity_list"))
        .or_else(|_| fs::read_to_string(path("smp_affinity_list")))
        .unwrap_or_default();
    list.trim().to_owned()
}

/// As reported by the kernel, or found by the names that drivers give: `eth0-TxRx-1`, `virtio3-input.1`.
pub(crate) fn queue_interrupt(interface: &Interface, queue: u32) -> Option<u32> {
    netdev::queue_interrupt(interface.index, queue).or_else(|| {
        let of_card = fs::read_dir(device_directory(interface)?.join("msi_irqs")).ok()?;
        let numbers: Vec<u32> =
            of_card.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        interrupt_by_name(&fs::read_to_string("/proc/interrupts").ok()?, &numbers, queue)
    })
}

/// The one of `numbers` whose name in `/proc/interrupts` is that of a receive queue of that number.
fn interrupt_by_name(interrupts: &str, numbers: &[u32], queue: u32) -> Option<u32> {
    interrupts.lines().find_map(|line| {
        let (number, rest) = line.split_once(':')?;
        let number = number.trim().parse().ok().filter(|number| numbers.contains(number))?;
        let name = rest.split_whitespace().last()?.to_ascii_lowercase();
        let receives = name.contains("rx") || name.contains("input");
        let digits = name.rsplit(['-', '.']).next()?;
        (receives && digits.parse() == Ok(queue)).then_some(number)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTS: &str = "           CPU0       CPU1
  0:        121          0   IO-APIC   2-edge      timer
 27:          1          0  PCI-MSIX-0000:01:00.0   0-edge      eth0
 28:       5123          0  PCI-MSIX-0000:01:00.0   1-edge      eth0-TxRx-0
 29:          0        212  PCI-MSIX-0000:01:00.0   2-edge      eth0-TxRx-1
 31:          9          0  PCI-MSIX-0000:00:04.0   1-edge      virtio1-input.0
 32:          9          0  PCI-MSIX-0000:00:04.0   2-edge      virtio1-output.0
NMI:          0          0   Non-maskable interrupts
";

    #[test]
    fn queues_are_matched_by_interrupt_names() {
        let igb = [27, 28, 29];
        assert_eq!(
            (interrupt_by_name(INTERRUPTS, &igb, 0), interrupt_by_name(INTERRUPTS, &igb, 1)),
            (Some(28), Some(29))
        );
        assert_eq!(interrupt_by_name(INTERRUPTS, &igb, 2), None);
        assert_eq!(interrupt_by_name(INTERRUPTS, &[31, 32], 0), Some(31));
        assert_eq!(interrupt_by_name(INTERRUPTS, &[], 0), None);
    }
}
