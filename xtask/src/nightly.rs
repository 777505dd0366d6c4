//! Suites that take too long for every change. Their last verdicts are committed in docs/nightly.md.

mod ages;
mod due;
mod fuzz;
mod rows;

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;

use ages::{CommitHistory, VerdictAge};
use due::{SuiteStatus, TouchedFiles};
use rows::{RecordedRun, VerdictRow};

use crate::gate::{Gate, Outcome};
use crate::git::{Git, VERDICTS, current_commit};
use crate::step::{Failed, date_today, is_run_as_root, repository_root};
use crate::stops::{BusyThreads, RandomProcessStops};
use crate::suite::{self, Instrumentation, TestSuite, install_tool};
use crate::workspace::Workspace;
use crate::{
    aarch64, features, kernels, licences, machine, machines, newcomer, nfs_clients, oldest_rust, others,
    programs, release, semver, senders, vm, workflows,
};

struct NightlySuite {
    name: &'static str,
    about: &'static str,
    /// Files and directories that decide the verdict; a crate counts with the crates that it depends on.
    inputs: &'static [&'static str],
    run: fn() -> Outcome,
}

/// What all tests of the workspace are built from.
const EVERYTHING: &[&str] = &[".cargo", "crates", "fuzz", "xtask", "Cargo.lock", "Cargo.toml"];

/// What the VM lab is built from.
const VM_LAB: &[&str] = &["crates/nocopy-cli", "crates/nocopy-vm", "xtask/src/vm.rs"];

const ALL: &[NightlySuite] = &[
    NightlySuite {
        name: "random",
        about: "all tests with new random inputs, and a million steps of the message protocol's simulation",
        inputs: EVERYTHING,
        run: run_with_random_seed,
    },
    NightlySuite {
        name: "fuzz",
        about: "every fuzz target for three minutes",
        inputs: &["fuzz"],
        run: fuzz::fuzz_all_targets,
    },
    NightlySuite {
        name: "stalls",
        about: "all tests while their processes are stopped for 100 to 280 ms, several times a second; three runs, no second try",
        inputs: EVERYTHING,
        run: run_during_stalls,
    },
    NightlySuite {
        name: "busy",
        about: "all tests while every processor is busy; three runs, no second try",
        inputs: EVERYTHING,
        run: run_while_processors_are_busy,
    },
    NightlySuite {
        name: "slow-disk",
        about: "all tests while fsync, fdatasync and syncfs take 300 ms more; no second try",
        inputs: EVERYTHING,
        run: run_on_slow_disk,
    },
    NightlySuite {
        name: "machines",
        about: "the tests of --quick and of the command on machines with other faces: processors, terminals, languages, limits, settings",
        inputs: &["crates/nocopy-cli", "xtask/src/machines", "xtask/src/suite"],
        run: machines::test_machine_variants,
    },
    NightlySuite {
        name: "trust",
        about: "attacks on servers of the command: what others are answered meanwhile, and how much memory is taken",
        inputs: &["crates/nocopy-cli", "xtask/src/suite"],
        run: run_trust_tests,
    },
    NightlySuite {
        name: "pair",
        about: "'nocopy bench --pair', killed at fifty random moments on veth, and on igb and virtio in the VM lab: the ports are as before",
        inputs: &["crates/nocopy-cli", "crates/nocopy-vm", "xtask/src/suite", "xtask/src/vm.rs"],
        run: run_pair_kills,
    },
    NightlySuite {
        name: "soak",
        about: "the VM lab's random operations for ten minutes, from a new seed",
        inputs: VM_LAB,
        run: run_soak_test,
    },
    NightlySuite {
        name: "kernels",
        about: "what works on Debian's kernels 6.1, 6.12 and its newest with the VM lab's drivers: writes the table in docs/support.md",
        inputs: VM_LAB,
        run: kernels::measure_kernels,
    },
    NightlySuite {
        name: "nfs",
        about: "calls of independent NFS clients: writes the table in docs/nfs.md; and writing by NFS in the VM lab, from a new seed: what programs expect of a directory, git, make, cargo, fsx, and what is lost",
        inputs: &["crates/nocopy-cli", "crates/nocopy-vm", "xtask/src/nfs_clients", "xtask/src/vm.rs"],
        run: run_nfs_suites,
    },
    NightlySuite {
        name: "sanitizer",
        about: "tests of sockets, pools and C interfaces under the address sanitizer",
        inputs: &["crates/nocopy", "crates/nocopy-pcap", "xtask/src/suite"],
        run: run_with_address_sanitizer,
    },
    NightlySuite {
        name: "aarch64",
        about: "everything compiled for aarch64; test programs and the command on an emulated machine with Debian's arm64 kernel",
        inputs: EVERYTHING,
        run: aarch64::build_and_test_on_arm64,
    },
    NightlySuite {
        name: "senders",
        about: "in which runs real programs send their datagrams: writes docs/senders.jsonl and the table in docs/run.md",
        inputs: &["crates/nocopy-lab", "xtask/src/packages.rs", "xtask/src/senders", "xtask/src/started.rs"],
        run: senders::measure_senders,
    },
    NightlySuite {
        name: "left-alone",
        about: "instructions that 'nocopy run --batch-udp' adds to programs that it leaves alone: writes the table in docs/run.md",
        inputs: &[
            "crates/nocopy-sockets",
            "xtask/src/packages.rs",
            "xtask/src/senders",
            "xtask/src/started.rs",
        ],
        run: senders::measure_cost_of_unhandled_calls,
    },
    NightlySuite {
        name: "python",
        about: "Python's own tests of sockets, processes and waits, with the library of 'nocopy run --batch-udp' and without",
        inputs: &["crates/nocopy-sockets", "xtask/src/others", "xtask/src/packages.rs"],
        run: others::run_python_tests,
    },
    NightlySuite {
        name: "libuv",
        about: "libuv's own tests of udp, tcp, fork and poll, with the library of 'nocopy run --batch-udp' and without",
        inputs: &["crates/nocopy-sockets", "xtask/src/others"],
        run: others::run_libuv_tests,
    },
    NightlySuite {
        name: "programs",
        about: "fifteen programs of Debian under 'nocopy run': the same output, each packet once, a whole report; writes the table in docs/run.md",
        inputs: &[
            "crates/nocopy-cli",
            "crates/nocopy-lab",
            "crates/nocopy-pcap",
            "xtask/src/packages.rs",
            "xtask/src/programs",
            "xtask/src/started.rs",
        ],
        run: programs::test_capturing_programs,
    },
    NightlySuite {
        name: "newcomer",
        about: "the first hour with the project on a bare Debian: measure, capture and replay, write a program, follow the tutorials",
        inputs: &[
            "crates/nocopy-cli",
            "docs/capture.md",
            "docs/directory.md",
            "docs/readout.md",
            "docs/record.md",
            "docs/send.md",
            "README.md",
            "xtask/newcomer",
            "xtask/src/newcomer.rs",
        ],
        run: newcomer::run_newcomer_tasks,
    },
    NightlySuite {
        name: "release",
        about: "archives, Debian packages, image and units: made twice and compared, and tried in bare roots of Debian 12 and 13, where the tutorials are followed, and in empty ones",
        inputs: &[
            "Cargo.lock",
            "README.md",
            "crates/nocopy-cli",
            "crates/nocopy-pcap",
            "crates/nocopy-python",
            "crates/nocopy-sockets",
            "docs/capture.md",
            "docs/directory.md",
            "docs/readout.md",
            "packaging",
            "xtask/newcomer/checks",
            "xtask/release",
            "xtask/src/release",
        ],
        run: release::build_and_try,
    },
    NightlySuite {
        name: "wheel",
        about: "wheels of the Python module: judged, compared with their stubs, and tried in bare roots of Debian 12 and 13, with Python 3.12, built from their sources, with the address sanitizer, and emulated for aarch64",
        inputs: &[
            "Cargo.lock",
            "crates/nocopy-python",
            "docs/python.md",
            "xtask/release/wheel.sh",
            "xtask/src/python_module",
            "xtask/src/release",
        ],
        run: release::build_and_try_wheels,
    },
    NightlySuite {
        name: "licences",
        about: "licences, bans and sources of all dependencies",
        inputs: &["Cargo.lock", "deny.toml"],
        run: licences::check_licences,
    },
    NightlySuite {
        name: "workflows",
        about: "actionlint accepts the workflows in .github",
        inputs: &[".github/workflows", "xtask/src/workflows.rs"],
        run: workflows::check_workflows,
    },
    NightlySuite {
        name: "features",
        about: "each feature of the libraries alone, none, and all compile without a warning",
        inputs: &["crates/nocopy", "crates/nocopy-proto", "xtask/src/features.rs"],
        run: features::check_all_selections,
    },
    NightlySuite {
        name: "semver",
        about: "programs written for 0.1.0 still compile: the public items by cargo-semver-checks against the commit in CHANGELOG.md",
        inputs: &["CHANGELOG.md", "crates/nocopy", "crates/nocopy-proto", "xtask/src/semver.rs"],
        run: semver::check_public_items,
    },
    NightlySuite {
        name: "oldest-rust",
        about: "everything compiles with the oldest Rust that is named; also to be run before a release",
        inputs: EVERYTHING,
        run: oldest_rust::check_with_oldest_rust,
    },
];

/// Runs of a suite that looks for rare failures.
const ROUNDS: usize = 3;

#[derive(Args)]
pub(crate) struct NightlyArguments {
    /// Which one; without a name they are listed, with the age of each row.
    #[arg(conflicts_with = "due")]
    name: Option<String>,
    /// With 'fuzz': how long all targets together run, on all processors.
    #[arg(long, value_parser = fuzz::parse_hours, requires = "name")]
    hours: Option<f64>,
    /// With 'newcomer': only the tutorials, with the installed command of this directory; notes no verdict.
    #[arg(long, value_name = "DIRECTORY", requires = "name", conflicts_with = "hours")]
    installed: Option<PathBuf>,
    /// Run those whose inputs a change touched since their last run, the one with the oldest row first.
    #[arg(long)]
    due: bool,
    /// The commit at which the change starts (default: where the branch left origin/main).
    #[arg(long, value_name = "COMMIT", requires = "due")]
    since: Option<String>,
    /// Only list those that are due.
    #[arg(long, requires = "due")]
    list: bool,
}

pub(crate) fn run_command(arguments: &NightlyArguments) -> ExitCode {
    run_or_list(arguments).unwrap_or_else(|failed| {
        eprintln!("xtask: {failed}");
        ExitCode::from(2)
    })
}

fn run_or_list(arguments: &NightlyArguments) -> Result<ExitCode, Failed> {
    if let Some(name) = &arguments.name {
        let nightly = suite_named(name).ok_or_else(|| {
            Failed(format!("no nightly suite is called {name}; 'cargo xtask nightly' lists all"))
        })?;
        return match (arguments.hours, &arguments.installed) {
            (Some(_), _) if name != "fuzz" => Err(Failed("--hours is for 'cargo xtask nightly fuzz'".into())),
            (Some(hours), _) => run_suites(&[nightly], |_| fuzz::fuzz_for_hours(hours)),
            (None, Some(_)) if name != "newcomer" => {
                Err(Failed("--installed is for 'cargo xtask nightly newcomer'".into()))
            }
            (None, Some(directory)) => {
                run_in_gate(&[nightly], |_| newcomer::run_tutorials_with_installed(directory))
            }
            (None, None) => run_suites(&[nightly], |nightly| (nightly.run)()),
        };
    }
    let mut statuses = suite_statuses(&read_verdict_rows()?)?;
    if arguments.due {
        let change = TouchedFiles::since(&Git::at(&repository_root()), arguments.since.as_deref())?;
        statuses = due::due_suites(statuses, &change);
    }
    if statuses.is_empty() {
        println!("no nightly suite is due");
    } else if arguments.due && !arguments.list {
        let suites: Vec<&NightlySuite> =
            statuses.iter().filter_map(|status| suite_named(status.suite)).collect();
        return run_suites(&suites, |nightly| (nightly.run)());
    } else {
        print!("{}", status_list(&statuses));
    }
    Ok(ExitCode::SUCCESS)
}

fn suite_named(name: &str) -> Option<&'static NightlySuite> {
    ALL.iter().find(|nightly| nightly.name == name)
}

/// Runs suites one after the other, and notes each verdict.
fn run_suites(
    suites: &[&'static NightlySuite],
    run: impl Fn(&NightlySuite) -> Outcome,
) -> Result<ExitCode, Failed> {
    run_in_gate(suites, |nightly| {
        let outcome = run(nightly);
        match save_verdict_row(nightly.name, &outcome) {
            Ok(()) => outcome,
            Err(failed) => outcome.merged_with(failed.into()),
        }
    })
}

/// Runs suites, or parts of them, one after the other.
fn run_in_gate(
    suites: &[&'static NightlySuite],
    run: impl Fn(&NightlySuite) -> Outcome,
) -> Result<ExitCode, Failed> {
    if !is_run_as_root() {
        return Err(Failed("the nightly suites need root: run it as root".into()));
    }
    let mut gate = Gate::default();
    gate.run("programs that tests start", machine::install_programs_for_tests);
    for nightly in suites {
        gate.run(nightly.name, || run(nightly));
    }
    Ok(if gate.print_summary() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The suites with their last runs, in the order of the table.
fn suite_statuses(rows: &[VerdictRow]) -> Result<Vec<SuiteStatus>, Failed> {
    let (workspace, history) = (Workspace::read()?, CommitHistory::from_git(Git::at(&repository_root())));
    let status = |nightly: &NightlySuite| {
        let inputs = workspace.with_dependencies(nightly.inputs);
        let row = rows.iter().find(|row| row.suite == nightly.name);
        let run = row.and_then(|row| row.run.clone());
        SuiteStatus { suite: nightly.name, age: history.age_of_run(run.as_ref(), &inputs), inputs, run }
    };
    Ok(ALL.iter().map(status).collect())
}

/// A line for each suite, and why ages are unknown.
fn status_list(statuses: &[SuiteStatus]) -> String {
    let mut text = format!("{:<12} {:>7}  {:<40} about\n", "suite", "age", "last run");
    let mut unknown = String::new();
    for SuiteStatus { suite, age, run, .. } in statuses {
        let overdue = if age.is_overdue() { "OVERDUE" } else { "" };
        let last = run.as_ref().map(RecordedRun::verdict_and_commit);
        let last = [last.as_deref().unwrap_or_default(), overdue].join(" ");
        let about = suite_named(suite).map_or("", |nightly| nightly.about);
        let _ = writeln!(text, "{suite:<12} {:>7}  {:<40} {about}", age.to_string(), last.trim());
        if let VerdictAge::Unknown(why) = age {
            let _ = writeln!(unknown, "{suite}: the row's age is unknown: {why}");
        }
    }
    text + "\nage: commits since the last run that touch what the suite tests\n" + &unknown
}

/// Whether each suite has a row and each row a suite; a warning for each row that is old or not of a success.
pub(crate) fn check_verdict_rows() -> Outcome {
    let names: Vec<&str> = ALL.iter().map(|nightly| nightly.name).collect();
    let judged = || {
        let rows = read_verdict_rows()?;
        match rows::unpaired_rows_and_suites(&rows, &names) {
            faults if faults.is_empty() => Ok(judge_ages(&suite_statuses(&rows)?)),
            faults => Err(Failed(format!("{VERDICTS}\n{}", faults.join("\n")))),
        }
    };
    judged().unwrap_or_else(|failed: Failed| failed.into())
}

fn judge_ages(statuses: &[SuiteStatus]) -> Outcome {
    let warnings = statuses.iter().filter_map(overdue_row_warning).collect();
    let outcome = Outcome { passed: statuses.len(), warnings, ..Outcome::default() };
    let skips = statuses.iter().filter_map(|SuiteStatus { suite, age, .. }| match age {
        VerdictAge::Unknown(why) => Some(Outcome::skipped(format!("age of the row {suite}"), why)),
        VerdictAge::NeverRun | VerdictAge::Commits(_) => None,
    });
    skips.fold(outcome, Outcome::merged_with)
}

/// What to do about a row that is old, or not of a success.
fn overdue_row_warning(SuiteStatus { suite, age, run, .. }: &SuiteStatus) -> Option<String> {
    let fact = match age {
        _ if run.as_ref().is_some_and(|run| !run.passed()) => "the last run failed".to_owned(),
        VerdictAge::NeverRun => "has never run".to_owned(),
        VerdictAge::Commits(count) if age.is_overdue() => {
            format!("the last run is {count} commits old, which is overdue")
        }
        VerdictAge::Commits(count) if age.is_old() => format!("the last run is {count} commits old"),
        VerdictAge::Commits(_) | VerdictAge::Unknown(_) => return None,
    };
    Some(format!("{suite}: {fact}; run 'cargo xtask nightly {suite}'"))
}

fn run_with_random_seed() -> Outcome {
    let seed = fastrand::u64(..);
    let outcome =
        TestSuite { seed: Some(seed), ..TestSuite::with_gate_settings("nightly", suite::ALL) }.outcome();
    outcome.with_remark(format!("PROPTEST_RNG_SEED = NOCOPY_TEST_SEED = {seed}"))
}

fn run_during_stalls() -> Outcome {
    run_in_rounds(|| {
        let _stops = RandomProcessStops::begin();
        TestSuite { retry: false, ..TestSuite::with_gate_settings("nightly", suite::ALL) }.outcome()
    })
}

fn run_while_processors_are_busy() -> Outcome {
    run_in_rounds(|| {
        let _busy = BusyThreads::begin();
        TestSuite { retry: false, ..TestSuite::with_gate_settings("nightly", suite::ALL) }.outcome()
    })
}

fn run_on_slow_disk() -> Outcome {
    let suite =
        TestSuite { retry: false, slow_disk: true, ..TestSuite::with_gate_settings("nightly", suite::ALL) };
    machine::install_strace().then(|| suite.outcome())
}

fn run_trust_tests() -> Outcome {
    let filters = [" trust::".to_owned()];
    let built = ["--package", "nocopy-cli"];
    TestSuite { filters: &filters, ignored: true, ..TestSuite::with_gate_settings("trust", &built) }.outcome()
}

fn run_pair_kills() -> Outcome {
    let filters = [" pair::".to_owned()];
    let built = ["--package", "nocopy-cli"];
    let on_veth =
        TestSuite { filters: &filters, ignored: true, ..TestSuite::with_gate_settings("pair", &built) };
    let on_cards = ["run", "--only", "bench_pair", "--soak", "--seed", "random"].map(str::to_owned);
    on_veth.outcome().merged_with(vm::run_lab(&on_cards).into())
}

fn run_in_rounds(run: impl Fn() -> Outcome) -> Outcome {
    (0..ROUNDS).map(|_| run()).reduce(Outcome::merged_with).unwrap_or_default()
}

fn run_soak_test() -> Outcome {
    vm::run_lab(&["run", "--only", "soak", "--soak", "--seed", "random"].map(str::to_owned)).into()
}

/// A program of crates.io, with its version, that the VM lab starts and Debian does not package.
const FSX: [&str; 2] = ["fsx", "0.3.2"];

fn run_nfs_suites() -> Outcome {
    install_tool(FSX).map_or_else(Outcome::from, |_| {
        nfs_clients::measure_and_write_table().merged_with(vm::run_nfs_rows())
    })
}

fn run_with_address_sanitizer() -> Outcome {
    let built = ["--target", "x86_64-unknown-linux-gnu", "--target-dir", "target/sanitizer"];
    let packages = ["--package", "nocopy", "--package", "nocopy-pcap"];
    let all = [&built[..], &packages[..]].concat();
    TestSuite {
        instrument: Instrumentation::AddressSanitizer,
        ..TestSuite::with_gate_settings("sanitizer", &all)
    }
    .outcome()
}

fn save_verdict_row(name: &str, outcome: &Outcome) -> Result<(), Failed> {
    let row = format!("| {name} | {} | {} | {} |", outcome.table_line(), current_commit(), date_today()?);
    let path = repository_root().join(VERDICTS);
    let written =
        fs::read_to_string(&path).and_then(|text| fs::write(&path, rows::with_row(&text, name, &row)));
    written.map_err(|error| verdicts_unreadable(&error))
}

fn read_verdict_rows() -> Result<Vec<VerdictRow>, Failed> {
    let text =
        fs::read_to_string(repository_root().join(VERDICTS)).map_err(|error| verdicts_unreadable(&error))?;
    rows::parse_table(&text)
}

fn verdicts_unreadable(error: &std::io::Error) -> Failed {
    Failed(format!("{VERDICTS}: {error}"))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn inputs_exist_without_the_verdicts() {
        for NightlySuite { name, inputs, .. } in ALL {
            for input in *inputs {
                assert!(repository_root().join(input).exists(), "{name}: {input}");
                // A verdict that is noted must not age the row.
                assert!(!Path::new(VERDICTS).starts_with(input), "{name}: {input}");
            }
        }
    }

    #[test]
    fn each_suite_has_a_row_and_each_row_a_suite() {
        let names: Vec<&str> = ALL.iter().map(|nightly| nightly.name).collect();
        assert_eq!(rows::unpaired_rows_and_suites(&read_verdict_rows().unwrap(), &names), [""; 0]);
    }

    fn status_without_run(suite: &'static str, age: VerdictAge) -> SuiteStatus {
        SuiteStatus { suite, inputs: Vec::new(), run: None, age }
    }

    #[test]
    fn failed_and_old_rows_are_warnings_and_unknown_ages_are_skips() {
        let table = "| | | | |\n|-|-|-|-|\n| bad | FAILED; 1 failed | 0123abcd | 2026-01-02 |\n";
        let failed = rows::parse_table(table).unwrap().remove(0).run;
        let statuses = [
            status_without_run("young", VerdictAge::Commits(100)),
            status_without_run("old", VerdictAge::Commits(101)),
            status_without_run("overdue", VerdictAge::Commits(301)),
            status_without_run("new", VerdictAge::NeverRun),
            SuiteStatus { run: failed, ..status_without_run("bad", VerdictAge::Commits(1)) },
            status_without_run("elsewhere", VerdictAge::Unknown("the clone is shallow".into())),
        ];
        let outcome = judge_ages(&statuses);
        assert!(outcome.failures.is_empty());
        let starts = [
            "old: the last run is 101 commits old;",
            "overdue: the last run is 301 commits old, which is overdue;",
            "new: has never run;",
            "bad: the last run failed; run 'cargo xtask nightly bad'",
        ];
        assert_eq!(outcome.warnings.len(), starts.len());
        for (warning, start) in outcome.warnings.iter().zip(starts) {
            assert!(warning.starts_with(start), "{warning}");
        }
        assert_eq!(outcome.skips.len(), 1);
        assert_eq!(
            (outcome.skips[0].name.as_str(), outcome.skips[0].text.as_str()),
            ("age of the row elsewhere", "the clone is shallow")
        );
    }

    #[test]
    fn the_list_names_overdue_rows_and_unknown_ages() {
        let text = status_list(&[
            status_without_run("random", VerdictAge::Commits(301)),
            status_without_run("fuzz", VerdictAge::Unknown("the clone is shallow".into())),
        ]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].starts_with("random           301  OVERDUE "), "{text}");
        assert!(lines[2].starts_with("fuzz         unknown  "), "{text}");
        assert_eq!(lines.last(), Some(&"fuzz: the row's age is unknown: the clone is shallow"));
    }
}
