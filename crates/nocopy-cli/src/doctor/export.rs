//! Results of the doctor, as tables and as JSON; described in docs/doctor.md.

use comfy_table::{ContentArrangement, Table, presets};
use nocopy::integration::probe::{Gate, GateState};
use serde::Serialize;

use super::probed_interface::ProbedInterface;

/// Changes when a field is removed or changes its meaning.
const SCHEMA: &str = "nocopy.doctor/1";

/// The usual width of a terminal; sentences wrap.
const TABLE_COLUMNS: u16 = 120;

#[derive(Serialize)]
struct DoctorReport<'a> {
    schema: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
    gates: Vec<GateRow<'a>>,
    /// The best mode whose gate is not closed, if a port can be opened at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
    /// All interfaces, if none was named.
    #[serde(skip_serializing_if = "Option::is_none")]
    interfaces: Option<Vec<InterfaceRow<'a>>>,
}

#[derive(Serialize)]
struct GateRow<'a> {
    name: &'a str,
    state: String,
    found: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    command: Option<&'a str>,
    needed: bool,
}

#[derive(Serialize)]
struct InterfaceRow<'a> {
    interface: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    driver: Option<&'a str>,
    receive_queues: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
    obstacles: Vec<String>,
}

impl<'a> From<&'a Gate> for GateRow<'a> {
    fn from(Gate { name, state, found, fix, command, needed }: &'a Gate) -> Self {
        let (fix, command) = (fix.as_deref(), command.as_deref());
        Self { name, state: state.to_string(), found, fix, command, needed: *needed }
    }
}

impl<'a> InterfaceRow<'a> {
    fn from_probe(probed: &'a ProbedInterface, machine: &[Gate]) -> Self {
        Self {
            interface: &probed.name,
            driver: probed.probe.driver.as_deref(),
            receive_queues: probed.probe.receive_queues,
            mode: probed.best_mode(machine),
            obstacles: probed.obstacles(machine),
        }
    }
}

pub(super) fn gates_text(machine: &[Gate], probed: &ProbedInterface) -> String {
    let table = gate_table(machine.iter().chain(&probed.probe.gates));
    let interface = &probed.name;
    let last = match probed.best_mode(machine) {
        Some(mode) => format!("A port on {interface} would be in the mode '{mode}', if the kernel agrees."),
        None => format!("A port on {interface} cannot be opened: see the closed gates above."),
    };
    format!("{table}{last}\n")
}

pub(super) fn gates_json(machine: &[Gate], probed: &ProbedInterface) -> String {
    report_json(&DoctorReport {
        schema: SCHEMA,
        interface: Some(&probed.name),
        gates: machine.iter().chain(&probed.probe.gates).map(GateRow::from).collect(),
        mode: probed.best_mode(machine),
        interfaces: None,
    })
}

/// All interfaces in one table, and the gates of the machine that are not open.
pub(super) fn overview_text(machine: &[Gate], interfaces: &[ProbedInterface]) -> String {
    let rows = interfaces.iter().map(|probed| {
        let row = InterfaceRow::from_probe(probed, machine);
        let queues = row.receive_queues.to_string();
        let (driver, mode) = (row.driver.unwrap_or("unknown"), row.mode.unwrap_or("none"));
        [row.interface, driver, &queues, mode, &row.obstacles.join(", ")].map(str::to_owned)
    });
    let mut text = wrapped_table(["interface", "driver", "queues", "best mode", "obstacles"], rows);
    let mut not_open = machine.iter().filter(|gate| gate.state != GateState::Open).peekable();
    if not_open.peek().is_some() {
        text += &format!("\nOf this machine, not open:\n{}", gate_table(not_open));
    }
    text + "\n'nocopy doctor INTERFACE' shows every gate; '--fix' prints the commands that open what is closed.\n"
}

pub(super) fn overview_json(machine: &[Gate], interfaces: &[ProbedInterface]) -> String {
    report_json(&DoctorReport {
        schema: SCHEMA,
        interface: None,
        gates: machine.iter().map(GateRow::from).collect(),
        mode: None,
        interfaces: Some(interfaces.iter().map(|probed| InterfaceRow::from_probe(probed, machine)).collect()),
    })
}

fn gate_table<'a>(gates: impl Iterator<Item = &'a Gate>) -> String {
    let cells = |gate: &Gate| {
        let fix = gate.fix.clone().unwrap_or_default();
        [gate.state.to_string(), gate.name.to_owned(), gate.found.clone(), fix]
    };
    wrapped_table(["", "gate", "found", "fix"], gates.map(cells))
}

fn wrapped_table<const N: usize>(header: [&str; N], rows: impl Iterator<Item = [String; N]>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(TABLE_COLUMNS).set_header(header).add_rows(rows);
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

fn report_json(report: &DoctorReport<'_>) -> String {
    serde_json::to_string_pretty(report).expect("strings are JSON") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::probed_interface::tests::{gate_in_state, interface_with_gates};

    fn lines_with_single_spaces(text: &str) -> Vec<String> {
        text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    }

    #[test]
    fn each_interface_is_a_row_with_its_best_mode() {
        let fast = interface_with_gates(vec![gate_in_state("xdp zero-copy", GateState::Open, false)]);
        let mut down = interface_with_gates(vec![
            gate_in_state("up", GateState::Closed, true),
            gate_in_state("packet ring", GateState::Open, false),
        ]);
        (down.name, down.probe.driver) = ("tun0".into(), None);
        let machine = [gate_in_state("kernel", GateState::Open, false)];
        let text = lines_with_single_spaces(&overview_text(&machine, &[fast, down]));
        assert_eq!(
            text[..3],
            [
                "interface driver queues best mode obstacles",
                "eth0 igb 4 xdp zero-copy",
                "tun0 unknown 4 none up: as found",
            ]
        );
        assert!(!text.iter().any(|line| line.contains("kernel")), "{text:?}");
    }

    #[test]
    fn gates_of_the_machine_that_are_not_open_follow_the_table() {
        let machine = [
            gate_in_state("kernel", GateState::Open, false),
            gate_in_state("huge pages", GateState::Closed, false),
        ];
        let text = lines_with_single_spaces(&overview_text(&machine, &[]));
        assert!(text.iter().any(|line| line == "closed huge pages as found"), "{text:?}");
    }

    #[test]
    fn the_json_overview_has_interfaces_and_machine_gates() {
        let machine = [gate_in_state("kernel", GateState::Open, false)];
        let blocked = interface_with_gates(vec![gate_in_state("carrier", GateState::Closed, true)]);
        let json: serde_json::Value = serde_json::from_str(&overview_json(&machine, &[blocked])).unwrap();
        assert_eq!((&json["schema"], &json["gates"][0]["name"]), (&SCHEMA.into(), &"kernel".into()));
        let row = serde_json::json!(
            { "interface": "eth0", "driver": "igb", "receive_queues": 4, "obstacles": ["carrier: as found"] }
        );
        assert_eq!(json["interfaces"], serde_json::json!([row]));
        assert!(json["interface"].is_null() && json["mode"].is_null());
    }
}
