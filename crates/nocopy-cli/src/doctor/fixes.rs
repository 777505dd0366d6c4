//! Shell commands that open closed gates: printed, never run.

use std::collections::HashSet;
use std::fmt::Write;

use nocopy::integration::probe::{Gate, GateState};
use serde::Serialize;

use super::probed_interface::{ProbedInterface, is_blocking};

/// Changes when a field is removed or changes its meaning.
const SCHEMA: &str = "nocopy.doctor-fix/1";

/// Closed gates that a command opens, and closed gates that prevent any port and need a person.
#[derive(Debug, Serialize)]
pub(super) struct Fixes<'a> {
    schema: &'static str,
    fixes: Vec<Fix<'a>>,
}

#[derive(Debug, Serialize)]
struct Fix<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
    gate: &'a str,
    found: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
}

impl<'a> Fixes<'a> {
    /// Each command once, though it may open several gates.
    pub(super) fn for_closed_gates(machine: &'a [Gate], interfaces: &'a [ProbedInterface]) -> Self {
        let of_machine = machine.iter().map(|gate| (None, gate));
        let of_interfaces = interfaces
            .iter()
            .flat_map(|interface| interface.probe.gates.iter().map(|gate| (Some(&*interface.name), gate)));
        let mut seen = HashSet::new();
        let fixes = of_machine
            .chain(of_interfaces)
            .filter(|(_, gate)| gate.state == GateState::Closed)
            .filter(|(_, gate)| {
                gate.command.as_ref().map_or(is_blocking(gate), |command| seen.insert(command))
            })
            .map(|(interface, gate)| Fix {
                interface,
                gate: gate.name,
                found: &gate.found,
                fix: gate.fix.as_deref(),
                command: gate.command.as_deref(),
            });
        Self { schema: SCHEMA, fixes: fixes.collect() }
    }

    /// Commands for a shell, each after a comment that names its gate.
    pub(super) fn shell_script(&self) -> String {
        let mut text = String::new();
        for Fix { interface, gate, found, fix, command } in &self.fixes {
            let subject = interface.map(|name| format!("{name}: ")).unwrap_or_default();
            let by_hand = fix.filter(|_| command.is_none()).map(|fix| format!("; {fix}")).unwrap_or_default();
            let comment = format!("# {subject}{gate}: {found}{by_hand}").replace(char::is_control, " ");
            writeln!(text, "{comment}").expect("a string takes everything");
            if let Some(command) = command {
                writeln!(text, "{command}").expect("a string takes everything");
            }
        }
        if self.fixes.iter().all(|fix| fix.command.is_none()) {
            text.push_str("# No command would open more than is open.\n");
        }
        text
    }

    pub(super) fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings are JSON") + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::probed_interface::tests::{gate_in_state, interface_with_gates};

    fn closed_gate_with_command(name: &'static str, command: &str) -> Gate {
        let fix = Some(format!("'{command}'"));
        Gate { command: Some(command.into()), fix, ..gate_in_state(name, GateState::Closed, false) }
    }

    #[test]
    fn each_command_is_printed_once_after_its_gate() {
        let machine = [closed_gate_with_command("huge pages", "sysctl vm.nr_hugepages=64")];
        let interfaces = [interface_with_gates(vec![
            closed_gate_with_command("header split", "ethtool -G eth0 tcp-data-split on"),
            closed_gate_with_command("zero-copy receive by io_uring", "ethtool -G eth0 tcp-data-split on"),
        ])];
        let script = Fixes::for_closed_gates(&machine, &interfaces).shell_script();
        let expected = "# huge pages: as found\nsysctl vm.nr_hugepages=64\n\
                        # eth0: header split: as found\nethtool -G eth0 tcp-data-split on\n";
        assert_eq!(script, expected);
    }

    #[test]
    fn required_gates_without_a_command_are_comments() {
        let by_hand = |needed| Gate {
            fix: Some("check the cable".into()),
            ..gate_in_state("carrier", GateState::Closed, needed)
        };
        let interfaces = [interface_with_gates(vec![by_hand(true)])];
        let script = Fixes::for_closed_gates(&[], &interfaces).shell_script();
        assert!(script.starts_with("# eth0: carrier: as found; check the cable\n"), "{script}");
        assert!(script.lines().all(|line| line.starts_with('#')), "{script}");
        assert_eq!(
            Fixes::for_closed_gates(&[], &[interface_with_gates(vec![by_hand(false)])]).fixes.len(),
            0
        );
    }

    #[test]
    fn open_gates_need_no_command() {
        let widened = Gate {
            fix: Some("'ethtool -L eth0 combined 1'".into()),
            ..gate_in_state("queues", GateState::Open, true)
        };
        let interfaces = [interface_with_gates(vec![widened])];
        assert_eq!(
            Fixes::for_closed_gates(&[], &interfaces).shell_script(),
            "# No command would open more than is open.\n"
        );
    }

    #[test]
    fn control_characters_do_not_end_a_comment() {
        let gate = Gate { found: "odd\nreboot".into(), ..closed_gate_with_command("driver", "true") };
        let machine = [gate];
        assert_eq!(Fixes::for_closed_gates(&machine, &[]).shell_script(), "# driver: odd reboot\ntrue\n");
    }

    #[test]
    fn json_lists_commands_with_their_interfaces() {
        let (machine, interfaces) = (
            [closed_gate_with_command("huge pages", "a")],
            [interface_with_gates(vec![closed_gate_with_command("up", "b")])],
        );
        let json: serde_json::Value =
            serde_json::from_str(&Fixes::for_closed_gates(&machine, &interfaces).to_json()).unwrap();
        assert_eq!(json["schema"], SCHEMA);
        assert!(json["fixes"][0]["interface"].is_null());
        let up = serde_json::json!(
            { "interface": "eth0", "gate": "up", "found": "as found", "fix": "'b'", "command": "b" }
        );
        assert_eq!(json["fixes"][1], up);
    }
}
