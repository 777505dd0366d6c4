//! An interface with its gates, and their meaning for a port on it.

use nocopy::integration::probe::{self, Gate, GateState, Interface};
use nocopy::port::{InterfaceError, OpenError};

use crate::{Failure, interfaces};

#[derive(Debug)]
pub(super) struct ProbedInterface {
    pub(super) name: String,
    pub(super) probe: Interface,
}

impl ProbedInterface {
    pub(super) fn probe_by_name(name: &str) -> Result<Self, OpenError> {
        Ok(Self { name: name.to_owned(), probe: probe::interface(name)? })
    }

    /// All interfaces of this network namespace, without those that are removed meanwhile.
    pub(super) fn probe_all() -> Result<Vec<Self>, Failure> {
        let names = interfaces::interface_names()?;
        let probed = names.iter().filter_map(|name| match Self::probe_by_name(name) {
            Err(OpenError::Interface(InterfaceError::NotFound { .. })) => None,
            probed => Some(probed.map_err(Failure::from)),
        });
        probed.collect()
    }

    /// The best mode whose gate is not closed, if a port can be opened at all.
    pub(super) fn best_mode(&self, machine: &[Gate]) -> Option<&'static str> {
        let is_possible = !has_blocking_gate(machine) && !has_blocking_gate(&self.probe.gates);
        self.probe.first_possible_mode().filter(|_| is_possible)
    }

    /// Why no port opens here; or, if one does, why it is not in the fastest mode.
    pub(super) fn obstacles(&self, machine: &[Gate]) -> Vec<String> {
        let all = machine.iter().chain(&self.probe.gates);
        let blocking: Vec<_> = all.filter(|gate| is_blocking(gate)).map(gate_text).collect();
        if !blocking.is_empty() {
            return blocking;
        }
        let fastest = self.probe.mode_gates().next();
        fastest.filter(|gate| gate.state != GateState::Open).map(gate_text).into_iter().collect()
    }
}

pub(super) fn has_blocking_gate(gates: &[Gate]) -> bool {
    gates.iter().any(is_blocking)
}

pub(super) fn is_blocking(gate: &Gate) -> bool {
    gate.needed && gate.state == GateState::Closed
}

fn gate_text(gate: &Gate) -> String {
    format!("{}: {}", gate.name, gate.found)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::doctor) fn gate_in_state(name: &'static str, state: GateState, needed: bool) -> Gate {
        Gate { name, state, found: "as found".into(), fix: None, command: None, needed }
    }

    pub(in crate::doctor) fn interface_with_gates(gates: Vec<Gate>) -> ProbedInterface {
        let probe = Interface {
            firmware: None,
            speed_mbit: None,
            driver: Some("igb".into()),
            receive_queues: 4,
            gates,
        };
        ProbedInterface { name: "eth0".into(), probe }
    }

    #[test]
    fn the_fastest_mode_not_closed_is_chosen() {
        let modes = [
            ("xdp zero-copy", GateState::Closed),
            ("xdp copy native", GateState::Unknown),
            ("xdp copy generic", GateState::Open),
        ];
        let interface =
            interface_with_gates(modes.map(|(name, state)| gate_in_state(name, state, false)).to_vec());
        assert_eq!(interface.best_mode(&[]), Some("xdp copy native"));
        assert_eq!(interface.obstacles(&[]), ["xdp zero-copy: as found"]);
    }

    #[test]
    fn an_unknown_mode_is_chosen_with_its_obstacle() {
        let interface = interface_with_gates(vec![gate_in_state("xdp zero-copy", GateState::Unknown, false)]);
        assert_eq!(interface.best_mode(&[]), Some("xdp zero-copy"));
        assert_eq!(interface.obstacles(&[]), ["xdp zero-copy: as found"]);
    }

    #[test]
    fn the_fastest_mode_has_no_obstacle() {
        let interface = interface_with_gates(vec![
            gate_in_state("up", GateState::Open, true),
            gate_in_state("xdp zero-copy", GateState::Open, false),
        ]);
        assert_eq!(interface.best_mode(&[]), Some("xdp zero-copy"));
        assert!(interface.obstacles(&[]).is_empty());
    }

    #[test]
    fn closed_required_gates_leave_no_mode() {
        let open = gate_in_state("packet ring", GateState::Open, false);
        let interface =
            interface_with_gates(vec![gate_in_state("up", GateState::Closed, true), open.clone()]);
        assert_eq!(
            (interface.best_mode(&[]), interface.obstacles(&[])),
            (None, vec!["up: as found".to_owned()])
        );
        let machine = [
            gate_in_state("packet sockets", GateState::Closed, true),
            gate_in_state("huge pages", GateState::Closed, false),
        ];
        let interface = interface_with_gates(vec![open]);
        assert_eq!(interface.best_mode(&machine), None);
        assert_eq!(interface.obstacles(&machine), ["packet sockets: as found"]);
    }
}
