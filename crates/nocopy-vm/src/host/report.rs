//! What came out: a table for people, JSON for programs.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::machine::Outcome;
use super::tools::Tools;
use crate::registry::{self, Kernel, TESTS, Topology};

/// Changes when a field changes its meaning or goes.
const SCHEMA: &str = "nocopy.vm/1";

/// As wide as a terminal usually is; sentences wrap.
const TABLE_COLUMNS: u16 = 120;

#[derive(Serialize)]
pub(crate) struct Report {
    schema: &'static str,
    qemu: String,
    machines: Vec<MachineRow>,
    tests: Vec<TestRow>,
}

#[derive(Serialize)]
struct MachineRow {
    topology: Topology,
    kernel: Kernel,
    version: String,
    boot_seconds: Option<f64>,
    seconds: f64,
    failure: Option<String>,
    complaints: Vec<String>,
}

#[derive(Serialize)]
struct TestRow {
    test: &'static str,
    proves: &'static str,
    topology: Topology,
    kernel: Kernel,
    result: TestResult,
    seconds: Option<f64>,
    failure: Option<String>,
    complaints: Vec<String>,
    measured: Vec<Value>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum TestResult {
    Passed,
    Failed,
    /// The machine ended before it came to an end.
    NotRun,
}

impl Report {
    pub(crate) fn new(tools: &Tools, outcomes: Vec<Outcome>) -> Self {
        let tests = outcomes.iter().flat_map(TestRow::of).collect();
        let machines = outcomes.into_iter().map(MachineRow::from).collect();
        Self { schema: SCHEMA, qemu: tools.qemu_version.clone(), machines, tests }
    }

    pub(crate) fn passed(&self) -> bool {
        self.tests.iter().all(|test| test.result == TestResult::Passed)
            && self.machines.iter().all(|machine| machine.failure.is_none() && machine.complaints.is_empty())
    }

    pub(crate) fn write(&self, mut file: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")
    }

    pub(crate) fn print(&self) {
        let mut table = table(&["test", "topology", "kernel", "result", "s", "proves"]);
        for test in &self.tests {
            let seconds = test.seconds.map_or_else(|| "–".into(), |seconds| format!("{seconds:.1}"));
            let result = match test.result {
                TestResult::Passed => "ok",
                TestResult::Failed => "FAILED",
                TestResult::NotRun => "NOT RUN",
            };
            let version = self.version(test.topology, test.kernel);
            table.add_row([test.test, &test.topology.to_string(), version, result, &seconds, test.proves]);
        }
        table.column_mut(4).expect("six columns").set_cell_alignment(CellAlignment::Right);
        println!("{table}");
        for test in self.tests.iter().filter(|test| test.result == TestResult::Failed) {
            println!("\n{} on {} failed:", test.test, test.topology);
            test.failure.iter().chain(&test.complaints).for_each(|line| println!("{line}"));
        }
        for machine in self.machines.iter().filter(|machine| !machine.is_sound()) {
            println!("\nthe machine {} with Linux {}:", machine.topology, machine.version);
            machine.failure.iter().chain(&machine.complaints).for_each(|line| println!("{line}"));
        }
        for (name, _) in TESTS {
            self.print_measured(name);
        }
    }

    /// What a test measured, on every topology: a table whose columns are the names of the plain values.
    fn print_measured(&self, name: &str) {
        let rows = self.tests.iter().filter(|test| test.test == name);
        let rows = rows.flat_map(|test| test.measured.iter().map(move |measured| (test.topology, measured)));
        let rows: Vec<_> = rows.filter_map(|(on, measured)| Some((on, measured.as_object()?))).collect();
        let Some((_, first)) = rows.first() else { return };
        let is_plain = |name: &&String| !first[name.as_str()].is_array() && !first[name.as_str()].is_object();
        let columns: Vec<&str> = first.keys().filter(is_plain).map(String::as_str).collect();
        let header: Vec<String> = columns.iter().map(|name| name.replace('_', " ")).collect();
        let mut table =
            table(&[&["topology"], &header.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
        for (on, measured) in rows {
            let cells = columns.iter().map(|name| plain(measured.get(*name)));
            table.add_row([on.to_string()].into_iter().chain(cells));
        }
        println!("\n{name}:\n{table}");
    }

    fn version(&self, topology: Topology, kernel: Kernel) -> &str {
        let machine =
            self.machines.iter().find(|machine| (machine.topology, machine.kernel) == (topology, kernel));
        machine.map_or("", |machine| &machine.version)
    }
}

/// A value as people read it.
fn plain(value: Option<&Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) if number.is_f64() => {
            format!("{:.2}", number.as_f64().unwrap_or(f64::NAN))
        }
        Some(other) => other.to_string(),
    }
}

impl MachineRow {
    fn is_sound(&self) -> bool {
        self.failure.is_none() && self.complaints.is_empty()
    }
}

impl From<Outcome> for MachineRow {
    fn from(outcome: Outcome) -> Self {
        let Outcome { boot, version, boot_seconds, seconds, failure, complaints, .. } = outcome;
        Self {
            topology: boot.topology,
            kernel: boot.kernel,
            version,
            boot_seconds,
            seconds,
            failure,
            complaints,
        }
    }
}

impl TestRow {
    fn of(outcome: &Outcome) -> Vec<Self> {
        let row = |name: &&'static str| {
            let ended = outcome.ended.iter().find(|ended| ended.test == *name);
            Self {
                test: name,
                proves: registry::find(name).map_or("", |test| test.proves),
                topology: outcome.boot.topology,
                kernel: outcome.boot.kernel,
                result: match ended {
                    Some(ended) if ended.passed() => TestResult::Passed,
                    Some(_) => TestResult::Failed,
                    None => TestResult::NotRun,
                },
                seconds: ended.map(|ended| ended.seconds),
                failure: ended.and_then(|ended| ended.failure.clone()),
                complaints: ended.map(|ended| ended.complaints.clone()).unwrap_or_default(),
                measured: ended.map(|ended| ended.measured.clone()).unwrap_or_default(),
            }
        };
        outcome.boot.tests.iter().map(row).collect()
    }
}

/// Prints every test with where it runs and what it proves.
pub(crate) fn print_tests() {
    let mut table = table(&["test", "topology", "kernel", "proves"]);
    for (name, test) in TESTS {
        let on: Vec<String> = test.on.iter().map(ToString::to_string).collect();
        table.add_row([*name, &on.join(", "), &test.kernel.to_string(), test.proves]);
    }
    println!("{table}");
}

fn table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(TABLE_COLUMNS).set_header(header);
    table
}
