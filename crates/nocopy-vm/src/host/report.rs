//! The results: a table for people, JSON for programs.

use std::io::{self, Write};

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use serde::Serialize;
use serde_json::Value;

use super::boot::MachinePlan;
use super::lab::LabContext;
use super::machine::MachineResult;
use super::rows::{TestRunHistory, TestVerdict};
use crate::registry::{self, TESTS};
use crate::topology::{Kernel, Topology};

/// Changes when a field is removed or changes its meaning.
const SCHEMA: &str = "nocopy.vm/1";

/// The usual width of a terminal; sentences wrap.
const TABLE_COLUMNS: u16 = 120;

/// More flaky tests than these fail a run: then it is not the machine, or not a machine to test on.
const FLAKY_MAX: usize = 2;

#[derive(Serialize)]
pub(crate) struct LabReport {
    schema: &'static str,
    qemu: String,
    processors: String,
    seed: u64,
    machines: Vec<MachineResult>,
    tests: Vec<TestRow>,
}

#[derive(Serialize)]
struct TestRow {
    test: &'static str,
    proves: &'static str,
    topology: Topology,
    kernel: Kernel,
    result: TestVerdict,
    seconds: Option<f64>,
    failure: Option<String>,
    complaints: Vec<String>,
    stall: Option<String>,
    /// For a flaky test: its first failure, and the stall then.
    failed_before: Option<FailedRun>,
    measured: Vec<Value>,
}

#[derive(Serialize)]
struct FailedRun {
    failure: Option<String>,
    complaints: Vec<String>,
    stall: Option<String>,
}

impl LabReport {
    pub(crate) fn new(lab: &LabContext<'_>, machines: Vec<MachineResult>) -> Self {
        let tests = machines.iter().flat_map(TestRow::from_machine).collect();
        let (qemu, processors) = (lab.tools.qemu_version.clone(), lab.processors.to_string());
        Self { schema: SCHEMA, qemu, processors, seed: lab.random.seed(), machines, tests }
    }

    pub(crate) fn passed(&self) -> bool {
        let [passed, flaky, ..] = self.verdict_counts();
        passed + flaky == self.tests.len()
            && flaky <= FLAKY_MAX
            && self.machines.iter().all(MachineResult::is_sound)
    }

    /// Tests that passed, were flaky, failed, did not run.
    fn verdict_counts(&self) -> [usize; 4] {
        let all = [TestVerdict::Passed, TestVerdict::Flaky, TestVerdict::Failed, TestVerdict::NotRun];
        all.map(|result| self.tests.iter().filter(|test| test.result == result).count())
    }

    pub(crate) fn write(&self, mut file: impl Write) -> io::Result<()> {
        serde_json::to_writer_pretty(&mut file, self)?;
        file.write_all(b"\n")
    }

    pub(crate) fn print(&self) {
        let mut table = new_table(&["test", "topology", "kernel", "result", "s", "proves"]);
        for test in &self.tests {
            let seconds = test.seconds.map_or_else(|| "–".into(), |seconds| format!("{seconds:.1}"));
            let result = match test.result {
                TestVerdict::Passed => "ok",
                TestVerdict::Flaky => "flaky",
                TestVerdict::Failed => "FAILED",
                TestVerdict::NotRun => "NOT RUN",
            };
            let version = self.kernel_version_of(test.topology, test.kernel);
            table.add_row([test.test, &test.topology.to_string(), version, result, &seconds, test.proves]);
        }
        table.column_mut(4).expect("six columns").set_cell_alignment(CellAlignment::Right);
        println!("{table}");
        for (name, _) in TESTS {
            self.print_measurements(name);
        }
        self.print_failures();
        let [passed, flaky, failed, not_run] = self.verdict_counts();
        let all = self.tests.len();
        println!("\nvm: {all} rows: {passed} passed, {flaky} flaky, {failed} failed, {not_run} not run");
        if flaky > FLAKY_MAX {
            println!("vm: more than {FLAKY_MAX} flaky rows fail the run");
        }
    }

    /// Prints failed and flaky tests, and failures of machines.
    fn print_failures(&self) {
        for machine in self.machines.iter().filter(|machine| machine.has_incidents()) {
            println!("\nthe machine {} with Linux {}:", machine.boot.topology, machine.version);
            machine.restarts.iter().for_each(|why| println!("started once more: {why}"));
            machine.log.stalls.iter().for_each(|line| println!("stalled: {line}"));
            machine.failure.iter().chain(&machine.log.complaints).for_each(|line| println!("{line}"));
        }
        for test in &self.tests {
            let heading = format!("\n{} on {}", test.test, test.topology);
            if let Some(FailedRun { failure, complaints, stall }) = &test.failed_before {
                let stall = stall.as_deref().unwrap_or_default();
                println!("{heading} was flaky: it failed while {stall}, and passed then:");
                failure.iter().chain(complaints).for_each(|line| println!("{line}"));
            }
            if test.result == TestVerdict::Failed {
                println!("{heading} failed:");
                test.failure.iter().chain(&test.complaints).for_each(|line| println!("{line}"));
            }
        }
    }

    /// The rows that a test measured, on every topology: a table whose columns are the names of the plain
    /// values.
    fn print_measurements(&self, name: &str) {
        let rows = self.tests.iter().filter(|test| test.test == name);
        let rows = rows.flat_map(|test| test.measured.iter().map(move |measured| (test.topology, measured)));
        let rows: Vec<_> = rows.filter_map(|(on, measured)| Some((on, measured.as_object()?))).collect();
        let Some((_, first)) = rows.first() else { return };
        let is_plain = |name: &&String| !first[name.as_str()].is_array() && !first[name.as_str()].is_object();
        let columns: Vec<&str> = first.keys().filter(is_plain).map(String::as_str).collect();
        let header: Vec<String> = columns.iter().map(|name| name.replace('_', " ")).collect();
        let mut table =
            new_table(&[&["topology"], &header.iter().map(String::as_str).collect::<Vec<_>>()[..]].concat());
        for (on, measured) in rows {
            let cells = columns.iter().map(|name| plain_value_text(measured.get(*name)));
            table.add_row([on.to_string()].into_iter().chain(cells));
        }
        println!("\n{name}:\n{table}");
    }

    fn kernel_version_of(&self, topology: Topology, kernel: Kernel) -> &str {
        let is_it = |boot: &MachinePlan| (boot.topology, boot.kernel) == (topology, kernel);
        let machine = self.machines.iter().find(|machine| is_it(&machine.boot));
        machine.map_or("", |machine| &machine.version)
    }
}

fn plain_value_text(value: Option<&Value>) -> String {
    match value {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(Value::Number(number)) if number.is_f64() => {
            format!("{:.2}", number.as_f64().unwrap_or(f64::NAN))
        }
        Some(other) => other.to_string(),
    }
}

impl TestRow {
    fn from_machine(outcome: &MachineResult) -> Vec<Self> {
        let row = |row: &TestRunHistory| {
            let last = row.last_run();
            let failed_before = row.excused_failure().map(|run| FailedRun {
                failure: run.ended.failure.clone(),
                complaints: run.ended.log.complaints.clone(),
                stall: run.stall.clone(),
            });
            Self {
                test: row.test,
                proves: registry::find_test(row.test).map_or("", |test| test.proves),
                topology: outcome.boot.topology,
                kernel: outcome.boot.kernel,
                result: row.verdict(),
                seconds: last.map(|run| run.ended.seconds),
                failure: last.and_then(|run| run.ended.failure.clone()),
                complaints: last.map(|run| run.ended.log.complaints.clone()).unwrap_or_default(),
                stall: last.and_then(|run| run.stall.clone()),
                failed_before,
                measured: last.map(|run| run.ended.measured.clone()).unwrap_or_default(),
            }
        };
        outcome.rows.iter().map(row).collect()
    }
}

pub(crate) fn print_tests() {
    let mut table = new_table(&["test", "topology", "kernel", "proves"]);
    for (name, test) in TESTS {
        let on: Vec<String> = test.on.iter().map(ToString::to_string).collect();
        let kernels: Vec<String> = test.kernels.iter().map(ToString::to_string).collect();
        table.add_row([*name, &on.join(", "), &kernels.join(", "), test.proves]);
    }
    println!("{table}");
}

fn new_table(header: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_width(TABLE_COLUMNS).set_header(header);
    table
}
