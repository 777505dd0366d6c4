//! `nocopy doctor`: every gate between this machine and a fast port.

use comfy_table::{ContentArrangement, Table, presets};
use nocopy::integration::probe::{self, Gate, State};
use serde::Serialize;

use crate::Failure;
use crate::arguments::DoctorArguments;
use nocopy_report::{Outcome, capability, print};

/// Changes when a field changes its meaning or goes.
const SCHEMA: &str = "nocopy.doctor/1";

/// As wide as a terminal usually is; sentences wrap.
const TABLE_COLUMNS: u16 = 120;

#[derive(Serialize)]
struct Report<'a> {
    schema: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    interface: Option<&'a str>,
    gates: Vec<GateRow<'a>>,
    /// The best mode whose gate is not closed, if a port can be opened at all.
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'a str>,
}

#[derive(Serialize)]
struct GateRow<'a> {
    name: &'a str,
    state: String,
    found: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<&'a str>,
    needed: bool,
}

pub(crate) fn run(arguments: &DoctorArguments) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::NETWORK)?;
    let mut gates = probe::machine();
    if let Some(interface) = &arguments.interface {
        gates.extend(probe::interface(interface)?);
    }
    capability::drop_all_but(capability::NONE)?;
    let blocked = gates.iter().any(|gate| gate.needed && gate.state == State::Closed);
    let mode = probe::first_mode(&gates).filter(|_| !blocked);
    let interface = arguments.interface.as_deref();
    let report = Report { schema: SCHEMA, interface, gates: gates.iter().map(GateRow::from).collect(), mode };
    print::text(&if arguments.json { report.json() } else { report.table() })?;
    Ok(if blocked { Outcome::Negative } else { Outcome::Positive })
}

impl<'a> From<&'a Gate> for GateRow<'a> {
    fn from(Gate { name, state, found, fix, needed }: &'a Gate) -> Self {
        Self { name, state: state.to_string(), found, fix: fix.as_deref(), needed: *needed }
    }
}

impl Report<'_> {
    fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("strings are JSON") + "\n"
    }

    fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(TABLE_COLUMNS).set_header(["", "gate", "found", "to open or widen it"]);
        for gate in &self.gates {
            table.add_row([&gate.state, gate.name, gate.found, gate.fix.unwrap_or_default()]);
        }
        let last = match (self.interface, self.mode) {
            (None, _) => "Name an interface to see what a port on it would be.".into(),
            (Some(interface), Some(mode)) => {
                format!("A port on {interface} would be in the mode '{mode}', if the kernel agrees.")
            }
            (Some(interface), None) => {
                format!("A port on {interface} cannot be opened: see the closed gates above.")
            }
        };
        format!("{table}\n{last}\n")
    }
}
