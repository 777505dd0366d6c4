//! `nocopy doctor`: every gate between this machine and a fast port.

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, presets};
use nocopy::probe::{self, Gate, State};
use serde::Serialize;

use crate::arguments::DoctorArguments;
use crate::{Failure, Outcome};

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
    let mut gates = probe::machine();
    if let Some(interface) = &arguments.interface {
        gates.extend(probe::interface(interface)?);
    }
    let blocked = gates.iter().any(|gate| gate.needed && gate.state == State::Closed);
    let mode = probe::first_mode(&gates).filter(|_| !blocked);
    let output = io::stdout().lock();
    match arguments.json {
        true => print_json(output, arguments, &gates, mode),
        false => print_table(output, arguments, &gates, mode),
    }
    .map_err(Failure::Print)?;
    Ok(if blocked { Outcome::Negative } else { Outcome::Positive })
}

fn print_json(
    mut output: impl Write,
    arguments: &DoctorArguments,
    gates: &[Gate],
    mode: Option<&'static str>,
) -> io::Result<()> {
    let rows = gates.iter().map(|Gate { name, state, found, fix, needed }| GateRow {
        name,
        state: state.to_string(),
        found,
        fix: fix.as_deref(),
        needed: *needed,
    });
    let report =
        Report { schema: SCHEMA, interface: arguments.interface.as_deref(), gates: rows.collect(), mode };
    serde_json::to_writer_pretty(&mut output, &report)?;
    writeln!(output)
}

fn print_table(
    mut output: impl Write,
    arguments: &DoctorArguments,
    gates: &[Gate],
    mode: Option<&'static str>,
) -> io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(TABLE_COLUMNS).set_header(["", "gate", "found", "to open or widen it"]);
    for gate in gates {
        let fix = gate.fix.as_deref().unwrap_or_default();
        table.add_row([&gate.state.to_string(), gate.name, &gate.found, fix]);
    }
    writeln!(output, "{table}")?;
    match (&arguments.interface, mode) {
        (None, _) => writeln!(output, "Name an interface to see what a port on it would be."),
        (Some(interface), Some(mode)) => {
            writeln!(output, "A port on {interface} would be in the mode '{mode}', if the kernel agrees.")
        }
        (Some(interface), None) => {
            writeln!(output, "A port on {interface} cannot be opened: see the closed gates above.")
        }
    }
}
