//! `nocopy doctor`: every gate between this machine and a fast port.

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};
use nocopy::probe::{self, Gate, State};
use serde::Serialize;

use crate::arguments::DoctorArguments;
use crate::{Failure, Outcome, capability};

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
    let output = io::stdout().lock();
    let printed = if arguments.json { report.print_json(output) } else { report.print_table(output) };
    printed.map_err(Failure::Print)?;
    Ok(if blocked { Outcome::Negative } else { Outcome::Positive })
}

impl<'a> From<&'a Gate> for GateRow<'a> {
    fn from(Gate { name, state, found, fix, needed }: &'a Gate) -> Self {
        Self { name, state: state.to_string(), found, fix: fix.as_deref(), needed: *needed }
    }
}

impl Report<'_> {
    fn print_json(&self, mut output: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut output, self)?;
        writeln!(output)
    }

    fn print_table(&self, mut output: impl Write) -> io::Result<()> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
        table.set_width(TABLE_COLUMNS).set_header(["", "gate", "found", "to open or widen it"]);
        for gate in &self.gates {
            table.add_row([&gate.state, gate.name, gate.found, gate.fix.unwrap_or_default()]);
        }
        writeln!(output, "{table}")?;
        match (self.interface, self.mode) {
            (None, _) => writeln!(output, "Name an interface to see what a port on it would be."),
            (Some(interface), Some(mode)) => {
                writeln!(output, "A port on {interface} would be in the mode '{mode}', if the kernel agrees.")
            }
            (Some(interface), None) => {
                writeln!(output, "A port on {interface} cannot be opened: see the closed gates above.")
            }
        }
    }
}
