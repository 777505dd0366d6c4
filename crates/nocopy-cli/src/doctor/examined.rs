//! An interface with its gates, and their meaning for a port on it.

use nocopy::integration::probe::{self, Gate, Interface, State};
use nocopy::port::{InterfaceError, OpenError};

use crate::{Failure, interfaces};

#[derive(Debug)]
pub(super) struct Examined {
    pub(super) name: String,
    pub(super) probed: Interface,
}

impl Examined {
    pub(super) fn named(name: &str) -> Result<Self, OpenError> {
        Ok(Self { name: name.to_owned(), probed: probe::interface(name)? })
    }

    /// All interfaces of this network namespace, without those that are removed meanwhile.
    pub(super) fn all() -> Result<Vec<Self>, Failure> {
        let names = interfaces::names()?;
        let examined = names.iter().filter_map(|name| match Self::named(name) {
            Err(OpenError::Interface(InterfaceError::NotFound { .. })) => None,
            examined => Some(examined.map_err(Failure::from)),
        });
        examined.collect()
    }

    /// The best mode whose gate is not closed, if a port can be opened at all.
    pub(super) fn mode(&self, machine: &[Gate]) -> Option<&'static str> {
        let is_possible = !is_blocked(machine) && !is_blocked(&self.probed.gates);
        self.probed.first_mode().filter(|_| is_possible)
    }

    /// Why no port opens here; or, if one does, why it is not in the fastest mode.
    pub(super) fn obstacles(&self, machine: &[Gate]) -> Vec<String> {
        let all = machine.iter().chain(&self.probed.gates);
        let blocking: Vec<_> = all.filter(|gate| blocks(gate)).map(words).collect();
        if !blocking.is_empty() {
            return blocking;
        }
        let fastest = self.probed.modes().next();
        fastest.filter(|gate| gate.state != State::Open).map(words).into_iter().collect()
    }
}

pub(super) fn is_blocked(gates: &[Gate]) -> bool {
    gates.iter().any(blocks)
}

pub(super) fn blocks(gate: &Gate) -> bool {
    gate.needed && gate.state == State::Closed
}

fn words(gate: &Gate) -> String {
    format!("{}: {}", gate.name, gate.found)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::doctor) fn gate(name: &'static str, state: State, needed: bool) -> Gate {
        Gate { name, state, found: "as found".into(), fix: None, command: None, needed }
    }

    pub(in crate::doctor) fn examined(gates: Vec<Gate>) -> Examined {
        let probed = Interface { driver: Some("igb".into()), receive_queues: 4, gates };
        Examined { name: "eth0".into(), probed }
    }

    #[test]
    fn the_fastest_mode_that_is_not_closed_is_the_best() {
        let modes = [
            ("xdp zero-copy", State::Closed),
            ("xdp copy native", State::Unknown),
            ("xdp copy generic", State::Open),
        ];
        let interface = examined(modes.map(|(name, state)| gate(name, state, false)).to_vec());
        assert_eq!(interface.mode(&[]), Some("xdp copy native"));
        assert_eq!(interface.obstacles(&[]), ["xdp zero-copy: as found"]);
    }

    #[test]
    fn an_uncertain_mode_names_its_doubt() {
        let interface = examined(vec![gate("xdp zero-copy", State::Unknown, false)]);
        assert_eq!(interface.mode(&[]), Some("xdp zero-copy"));
        assert_eq!(interface.obstacles(&[]), ["xdp zero-copy: as found"]);
    }

    #[test]
    fn nothing_stands_in_the_way_of_the_fastest_mode() {
        let interface =
            examined(vec![gate("up", State::Open, true), gate("xdp zero-copy", State::Open, false)]);
        assert_eq!(interface.mode(&[]), Some("xdp zero-copy"));
        assert!(interface.obstacles(&[]).is_empty());
    }

    #[test]
    fn needed_gates_that_are_closed_leave_no_mode() {
        let open = gate("packet ring", State::Open, false);
        let interface = examined(vec![gate("up", State::Closed, true), open.clone()]);
        assert_eq!((interface.mode(&[]), interface.obstacles(&[])), (None, vec!["up: as found".to_owned()]));
        let machine = [gate("packet sockets", State::Closed, true), gate("huge pages", State::Closed, false)];
        let interface = examined(vec![open]);
        assert_eq!(interface.mode(&machine), None);
        assert_eq!(interface.obstacles(&machine), ["packet sockets: as found"]);
    }
}
