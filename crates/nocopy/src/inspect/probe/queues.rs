//! The card's queues: how many, how long, and which processors serve them.

use std::collections::BTreeMap;
use std::fs;

use super::{Gate, GateState};
use crate::sys::cpus::{self, Cpus};
use crate::sys::interface::{self, Interface};
use crate::sys::queues::{card_numa_node, device_directory, interrupt_cpus, queue_interrupt};

pub(super) fn queue_gate(interface: &Interface) -> Gate {
    let cpus = cpus::allowed_cpus().map(|cpus| cpus.len());
    let (count, name) = (interface.rx_queues as usize, &interface.name);
    let here = cpus.map_or_else(String::new, |cpus| format!("; this process may run on {cpus} CPU(s)"));
    let found = match count {
        1 => format!("1: a port takes everything{here}"),
        _ => format!("{count}: a port takes one, the others stay with the host{here}"),
    };
    let mut gate = Gate::new("receive queues", GateState::Open, found);
    gate.fix = match cpus {
        Some(cpus) if count > cpus && cpus > 1 => {
            Some(format!("'ethtool -L {name} combined {cpus}': one for each CPU"))
        }
        _ if count > 1 => Some(format!("'ethtool -L {name} combined 1' brings every packet to one port")),
        _ => None,
    };
    gate
}

pub(super) fn receive_ring_gate(interface: &Interface) -> Gate {
    const NAME: &str = "card's receive ring";
    match interface::receive_ring_entries(&interface.name) {
        Some((now, max)) => {
            let mut gate = Gate::new(NAME, GateState::Open, format!("{now} of at most {max}"));
            gate.fix =
                (now < max).then(|| format!("'ethtool -G {} rx {max}' takes longer bursts", interface.name));
            gate
        }
        None => Gate::new(NAME, GateState::Unknown, "the driver does not say"),
    }
}

/// Memory of a NUMA node other than the card's is slower for the card and for the program.
pub(super) fn numa_node_gate(interface: &Interface) -> Gate {
    const NAME: &str = "NUMA node";
    if device_directory(interface).is_none() {
        return Gate::new(NAME, GateState::Unknown, "it is not a card on a PCI bus");
    }
    let Some(node) = card_numa_node(interface) else {
        return Gate::new(NAME, GateState::Open, "the card is as near to every CPU");
    };
    let list = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist")).unwrap_or_default();
    match (cpus::parse_cpu_list(&list), cpus::allowed_cpus()) {
        (Some(near), Some(allowed)) => near_cpus_gate(NAME, node, list.trim(), &near, &allowed),
        _ => Gate::new(
            NAME,
            GateState::Unknown,
            format!("{node}; the kernel does not say which CPUs are there"),
        ),
    }
}

fn near_cpus_gate(name: &'static str, node: u32, list: &str, near: &Cpus, allowed: &Cpus) -> Gate {
    let count = allowed.intersection(near).count();
    let found = format!("{node}; {count} of the {} CPUs this process may run on are there", allowed.len());
    let mut gate = Gate::from_condition(name, count > 0, found);
    gate.fix = (count < allowed.len()).then(|| format!("'taskset --cpu-list {list} PROGRAM'"));
    gate
}

/// The CPU of each queue's interrupt: a port of that queue runs best on a nearby CPU.
pub(super) fn interrupt_gate(interface: &Interface) -> Gate {
    const NAME: &str = "interrupts";
    if device_directory(interface).is_none() {
        return Gate::new(NAME, GateState::Unknown, "it is not a card on a PCI bus, so it has no interrupts");
    }
    let of_queue = |queue| Some((queue, queue_interrupt(interface, queue)?));
    let found: Vec<(u32, u32)> = (0..interface.rx_queues).map_while(of_queue).collect();
    if found.len() < interface.rx_queues as usize {
        return Gate::new(
            NAME,
            GateState::Unknown,
            "neither the driver nor the interrupts' names show which queue each belongs to",
        );
    }
    let runs = |(queue, number)| QueueInterrupt { queue, number, cpus: interrupt_cpus(number) };
    let interrupts: Vec<QueueInterrupt> = found.into_iter().map(runs).collect();
    interrupt_spread_gate(NAME, &interrupts, cpus::allowed_cpus().map_or(0, |cpus| cpus.len()))
}

struct QueueInterrupt {
    queue: u32,
    number: u32,
    cpus: String,
}

/// Closed if two interrupts share a CPU although there are enough CPUs.
fn interrupt_spread_gate(name: &'static str, interrupts: &[QueueInterrupt], cpus: usize) -> Gate {
    let words = |QueueInterrupt { queue, number, cpus }: &QueueInterrupt| {
        format!("queue {queue}: {number} on CPU {}", if cpus.is_empty() { "unknown" } else { cpus })
    };
    let found = interrupts.iter().map(words).collect::<Vec<_>>().join(", ");
    let mut by_cpus: BTreeMap<&str, u32> = BTreeMap::new();
    let twice = interrupts.iter().find(|interrupt| {
        by_cpus.insert(&interrupt.cpus, interrupt.number).is_some() && !interrupt.cpus.is_empty()
    });
    match twice {
        Some(twice) if interrupts.len() <= cpus => {
            Gate::new(name, GateState::Closed, format!("{found}: two queues share a CPU"))
                .with_fix_unless_open(format!("'echo CPU > /proc/irq/{}/smp_affinity_list'", twice.number))
        }
        _ => Gate::new(name, GateState::Open, found),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_queue_interrupts_on_one_of_several_cpus_close_the_gate() {
        let interrupt =
            |queue, cpus: &str| QueueInterrupt { queue, number: 28 + queue, cpus: cpus.to_owned() };
        let apart = interrupt_spread_gate("interrupts", &[interrupt(0, "0"), interrupt(1, "1")], 2);
        assert_eq!((apart.state, &apart.fix), (GateState::Open, &None), "{apart}");
        let together = interrupt_spread_gate("interrupts", &[interrupt(0, "1"), interrupt(1, "1")], 2);
        assert_eq!(together.state, GateState::Closed);
        assert!(together.fix.unwrap().contains("/proc/irq/29/"));
        let more = interrupt_spread_gate("interrupts", &[interrupt(0, "0"), interrupt(1, "0")], 1);
        assert_eq!(more.state, GateState::Open, "more queues than CPUs must share");
    }

    #[test]
    fn near_cpus_are_recommended_to_a_process_on_a_far_numa_node() {
        let gate = |allowed: &str| {
            let (near, allowed) =
                (cpus::parse_cpu_list("4-7").unwrap(), cpus::parse_cpu_list(allowed).unwrap());
            near_cpus_gate("NUMA node", 1, "4-7", &near, &allowed)
        };
        assert_eq!(
            (gate("0-3").state, gate("0-3").fix.unwrap()),
            (GateState::Closed, "'taskset --cpu-list 4-7 PROGRAM'".into())
        );
        assert_eq!((gate("0-7").state, gate("0-7").fix.is_some()), (GateState::Open, true));
        assert_eq!(gate("5").fix, None);
    }
}
