//! The VM lab, as a step of the gate: run, or its verdict remembered while nothing that it depends on has
//! changed.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::gate::{Outcome, StepFailure, TestNote};
use crate::git::current_commit;
use crate::step::{CommandStep, Failed, repository_root};
use crate::suite::built_program;

/// The files that determine what the machines run, without tests and documents.
const INPUTS: &[&str] = &[
    ".cargo",
    "Cargo.lock",
    "Cargo.toml",
    "crates/nocopy/Cargo.toml",
    "crates/nocopy/src",
    "crates/nocopy-bench/Cargo.toml",
    "crates/nocopy-bench/src",
    "crates/nocopy-cli/Cargo.toml",
    "crates/nocopy-cli/src",
    "crates/nocopy-lab/Cargo.toml",
    "crates/nocopy-lab/src",
    "crates/nocopy-nfs/Cargo.toml",
    "crates/nocopy-nfs/src",
    "crates/nocopy-profile/Cargo.toml",
    "crates/nocopy-profile/bpf",
    "crates/nocopy-profile/src",
    "crates/nocopy-proto/Cargo.toml",
    "crates/nocopy-proto/src",
    "crates/nocopy-report/Cargo.toml",
    "crates/nocopy-report/src",
    "crates/nocopy-transfer/Cargo.toml",
    "crates/nocopy-transfer/src",
    "crates/nocopy-vm/Cargo.toml",
    "crates/nocopy-vm/bpf",
    "crates/nocopy-vm/build.rs",
    "crates/nocopy-vm/src",
];

/// Results of the last run, in the form that the lab's README describes.
const RESULTS: &str = "target/xtask/vm.json";

const RESULTS_OF_NFS: &str = "target/xtask/vm-nfs.json";

const RESULTS_ON_ARM64: &str = "target/xtask/vm-arm64.json";

/// The lab's exit code if it cannot run: another system than Debian or Ubuntu, another processor, not root.
const UNAVAILABLE: i32 = 3;

/// Builds the lab, and runs it with these arguments.
pub(crate) fn run_lab(arguments: &[String]) -> Result<(), Failed> {
    build_lab()?;
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    lab_command("debug", &arguments).run()
}

/// The lab, and the command that one of its tests starts. Both have a test called `command`; building that
/// builds them with the features that all other builds have, so most of it is there.
fn build_lab() -> Result<(), Failed> {
    let what = ["test", "--workspace", "--all-features", "--no-run", "--test", "command"];
    CommandStep::cargo("build the VM lab", &what).run()
}

/// The same, fast: emulated, a server of files that is not optimised makes hours of a suite.
fn build_optimised_lab() -> Result<(), Failed> {
    let what = ["build", "--release", "--package", "nocopy-vm", "--package", "nocopy-cli"];
    CommandStep::cargo("build the VM lab, optimised", &what).run()
}

fn lab_command(profile: &str, arguments: &[&str]) -> CommandStep {
    CommandStep::new("the VM lab", &built_program(profile, "nocopy-vm").display().to_string(), arguments)
}

pub(crate) fn run_unless_already_passed() -> Outcome {
    let (before, built) = (hash_of_inputs(), build_lab());
    let inputs = match (before, built) {
        (Ok(inputs), Ok(())) => inputs,
        (Err(failed), _) | (_, Err(failed)) => return failed.into(),
    };
    if let Some(saved) = SavedVerdict::saved_for_inputs(inputs) {
        let remark = format!("nothing changed since it passed at {}: not run again", saved.commit);
        return Outcome { passed: saved.rows, ..Outcome::default() }.with_remark(remark);
    }
    let outcome = run_and_judge("debug", &[], RESULTS);
    // The result is kept only if the files are still the same.
    if outcome.is_good() && self::hash_of_inputs().is_ok_and(|after| after == inputs) {
        SavedVerdict::save(inputs, outcome.passed);
    }
    outcome
}

/// Runs the rows of the lab that the arguments ask for, with the results in that file.
fn run_and_judge(profile: &str, arguments: &[&str], results: &str) -> Outcome {
    let results = repository_root().join(results);
    // The lab says if the file cannot be written.
    let _ = (fs::create_dir_all(results.with_file_name("")), fs::remove_file(&results));
    let path = results.display().to_string();
    let run = lab_command(profile, &[&["run", "--json", &path], arguments].concat()).run_for_status();
    match (run, parse_file::<LabResults>(&results)) {
        (Ok((Some(UNAVAILABLE), output)), _) => Outcome::unavailable("VM lab", output.trim()),
        (Ok((code, output)), Ok(lab)) => lab.outcome(code, &output),
        (Ok((_, output)), Err(failed)) => Outcome::failed("VM lab", format!("{failed}\n{output}")),
        (Err(failed), _) => failed.into(),
    }
}

/// The rows on arm64, with the programs that the file lists.
pub(crate) fn run_on_arm64(built: &str) -> Outcome {
    let arguments = ["--kernel", "arm64", "--built", built];
    build_lab().map_or_else(Outcome::from, |()| run_and_judge("debug", &arguments, RESULTS_ON_ARM64))
}

/// The rows of these tests, on every kernel that they are for.
pub(crate) fn run_named_rows(tests: &[&str], results: &str) -> Outcome {
    let arguments: Vec<&str> = tests.iter().flat_map(|&test| ["--only", test]).collect();
    build_lab().map_or_else(Outcome::from, |()| run_and_judge("debug", &arguments, results))
}

/// The rows of writing by NFS, for long.
pub(crate) fn run_nfs_rows() -> Outcome {
    let rows = ["nfs_writing", "nfs_programs", "nfs_loss", "nfs_users"].map(|row| ["--only", row]).concat();
    let arguments = [&rows[..], &["--soak", "--seed", "random"]].concat();
    build_optimised_lab()
        .map_or_else(Outcome::from, |()| run_and_judge("release", &arguments, RESULTS_OF_NFS))
}

/// The parts of the lab's results that decide.
#[derive(Deserialize)]
struct LabResults {
    machines: Vec<MachineResult>,
    tests: Vec<RowResult>,
}

#[derive(Deserialize)]
struct MachineResult {
    topology: String,
    kernel: String,
    failure: Option<String>,
    complaints: Vec<String>,
}

#[derive(Deserialize)]
struct RowResult {
    test: String,
    topology: String,
    kernel: String,
    result: String,
    failure: Option<String>,
    complaints: Vec<String>,
    failed_before: Option<FailedFirstAttempt>,
    measured: Vec<MeasuredTests>,
}

/// A row of a test's results; only rows of test programs have these fields.
#[derive(Deserialize)]
struct MeasuredTests {
    program: Option<String>,
    passed: Option<usize>,
    /// A test and its missing requirement.
    skipped: Option<(String, String)>,
    /// A test that failed first.
    passed_at_second_try: Option<String>,
}

/// How a flaky row failed first.
#[derive(Deserialize)]
struct FailedFirstAttempt {
    stall: Option<String>,
}

/// The parts of a run's results that a suite shows.
pub(crate) fn parse_results<T: DeserializeOwned>(results: &str) -> Result<T, Failed> {
    parse_file(&repository_root().join(results))
}

fn parse_file<T: DeserializeOwned>(results: &Path) -> Result<T, Failed> {
    let text = fs::read_to_string(results).map_err(|error| Failed(format!("no results: {error}")))?;
    serde_json::from_str(&text).map_err(|error| Failed(format!("{}: {error}", results.display())))
}

impl LabResults {
    /// The outcome by rows and machines; the lab's own verdict must be the same.
    fn outcome(self, code: Option<i32>, output: &str) -> Outcome {
        let mut outcome = Outcome::default();
        for machine in self.machines {
            let complaints = machine.complaints.join("\n");
            if machine.failure.is_some() || !complaints.is_empty() {
                let name = format!("VM lab, machine {}, {} kernel", machine.topology, machine.kernel);
                let output = format!("{}\n{complaints}", machine.failure.unwrap_or_default());
                outcome.failures.push(StepFailure { name, output });
            }
        }
        for row in self.tests {
            let name = format!("VM lab, {} on {}, {} kernel", row.test, row.topology, row.kernel);
            row.measured.into_iter().for_each(|measured| measured.add_to(&mut outcome));
            match row.result.as_str() {
                "passed" => outcome.passed += 1,
                "flaky" => {
                    outcome.passed += 1;
                    let stall = row.failed_before.and_then(|before| before.stall);
                    outcome.flaky.push(TestNote { name, text: stall.unwrap_or_default() });
                }
                _ => {
                    let output =
                        format!("{}\n{}", row.failure.unwrap_or(row.result), row.complaints.join("\n"));
                    outcome.failures.push(StepFailure { name, output });
                }
            }
        }
        if outcome.passed + outcome.failures.len() == 0 {
            return Outcome::failed("VM lab", format!("no test was run\n{output}"));
        }
        if code != Some(0) && outcome.failures.is_empty() && outcome.flaky.is_empty() {
            return Outcome::failed(
                "VM lab",
                format!("it failed (exit code {code:?}) without a reason\n{output}"),
            );
        }
        outcome
    }
}

impl MeasuredTests {
    /// A skipped test is a skip of the run; the number of passed tests is put beside the verdict, which
    /// counts rows.
    fn add_to(self, outcome: &mut Outcome) {
        let program = self.program.unwrap_or_default();
        if let Some((test, needs)) = self.skipped {
            outcome.skips.push(TestNote { name: format!("{program} {test}"), text: needs });
        } else if let Some(test) = self.passed_at_second_try {
            outcome.flaky.push(TestNote { name: format!("{program} {test}"), text: String::new() });
        } else if let Some(passed) = self.passed {
            outcome.remark.push_str(&format!("{program}: {passed} tests; "));
        }
    }
}

/// A run that passed, and the files it was made from.
#[derive(Serialize, Deserialize)]
struct SavedVerdict {
    inputs: u64,
    rows: usize,
    commit: String,
}

impl SavedVerdict {
    /// The run that passed with these inputs, if the last one that passed is that.
    fn saved_for_inputs(inputs: u64) -> Option<Self> {
        let saved: Self = serde_json::from_str(&fs::read_to_string(Self::path()?).ok()?).ok()?;
        (saved.inputs == inputs).then_some(saved)
    }

    /// Beside the lab's kernels, so that another checkout finds it.
    fn save(inputs: u64, rows: usize) {
        let saved = Self { inputs, rows, commit: current_commit() };
        let text = serde_json::to_string(&saved).expect("numbers and a string");
        let written = Self::path().map(|path| {
            fs::create_dir_all(path.parent().expect("a file in a directory"))
                .and_then(|()| fs::write(path, text))
        });
        if let Some(Err(error)) = written {
            eprintln!("xtask: the VM lab's verdict is not kept: {error}");
        }
    }

    fn path() -> Option<PathBuf> {
        Some(kernel_directory()?.join("verdict.json"))
    }
}

/// The directory of the lab's kernels (`crates/nocopy-vm/src/host/cache.rs`).
fn kernel_directory() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache"));
    Some(base.or_else(home)?.join("nocopy/vm"))
}

/// A number that changes with anything that the lab's verdict depends on.
fn hash_of_inputs() -> Result<u64, Failed> {
    let mut hasher = DefaultHasher::new();
    for (program, question) in [("rustc", "--version"), ("qemu-system-x86_64", "--version")] {
        // Without QEMU there is no verdict to be kept.
        CommandStep::new(program, program, &[question]).captured_output().ok().hash(&mut hasher);
    }
    fs::read_to_string("/proc/sys/kernel/osrelease").ok().hash(&mut hasher);
    ["RUSTFLAGS", "NOCOPY_TEST_SEED"].map(std::env::var_os).hash(&mut hasher);
    unpacked_kernels().hash(&mut hasher);
    for input in INPUTS {
        let path = repository_root().join(input);
        input.hash(&mut hasher);
        hash_file_or_directory(&path, &mut hasher)
            .map_err(|error| Failed(format!("{input}, of which the VM lab is made: {error}")))?;
    }
    Ok(hasher.finish())
}

/// The kernels that are unpacked, by the names of their module trees, and whether KVM works, by the name of
/// that answer.
fn unpacked_kernels() -> Vec<PathBuf> {
    let entries =
        |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let all: Vec<PathBuf> = kernel_directory().into_iter().flat_map(entries).collect();
    let starts = |path: &PathBuf, with: &str| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(with))
    };
    let modules = all
        .iter()
        .filter(|path| starts(path, "kernel-"))
        .flat_map(|path| ["lib/modules", "usr/lib/modules"].map(|below| path.join(below)))
        .flat_map(entries);
    let mut names: Vec<PathBuf> =
        modules.chain(all.iter().filter(|path| starts(path, "kvm-")).cloned()).collect();
    names.sort();
    names
}

/// Adds a file, or all below a directory, by name and content.
fn hash_file_or_directory(path: &Path, hasher: &mut DefaultHasher) -> std::io::Result<()> {
    path.file_name().hash(hasher);
    if !path.is_dir() {
        fs::read(path)?.hash(hasher);
        return Ok(());
    }
    let entries: std::io::Result<Vec<PathBuf>> = fs::read_dir(path)?.map(|entry| Ok(entry?.path())).collect();
    let mut entries = entries?;
    entries.sort();
    entries.len().hash(hasher);
    entries.iter().try_for_each(|entry| hash_file_or_directory(entry, hasher))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome_of_lab_result(result: &str) -> Outcome {
        let text = format!(
            r#"{{"machines":[{{"topology":"igb","kernel":"newest","failure":null,"complaints":[]}}],
                "tests":[{{"test":"copies","topology":"igb","kernel":"newest","result":"{result}","failure":null,"complaints":[],
                "failed_before":{{"failure":"f","complaints":[],"stall":"stalled for 300 ms"}},
                "measured":[{{"mode":"xdp copy native"}},{{"program":"nocopy","passed":7,"left_out":0,"skipped":null}},
                {{"program":"nocopy","skipped":["a::b","needs a card: there is none"]}}]}}]}}"#
        );
        serde_json::from_str::<LabResults>(&text).unwrap().outcome(Some(0), "")
    }

    #[test]
    fn a_row_that_did_not_run_has_failed() {
        assert_eq!(outcome_of_lab_result("passed").passed, 1);
        let flaky = outcome_of_lab_result("flaky");
        assert_eq!((flaky.passed, flaky.flaky[0].text.as_str()), (1, "stalled for 300 ms"));
        for result in ["failed", "not_run", "what a later version says"] {
            assert_eq!(outcome_of_lab_result(result).failures.len(), 1);
        }
        let none = LabResults { machines: vec![], tests: vec![] };
        assert_eq!(none.outcome(Some(0), "").failures.len(), 1);
    }

    #[test]
    fn tests_that_a_row_skipped_are_skips() {
        let outcome = outcome_of_lab_result("passed");
        assert_eq!((outcome.skips.len(), outcome.remark.as_str()), (1, "nocopy: 7 tests; "));
        assert_eq!(outcome.skips[0].name, "nocopy a::b");
    }

    #[test]
    fn inputs_change_with_a_file() {
        let directory = tempfile::tempdir().unwrap();
        let of = || {
            let mut hasher = DefaultHasher::new();
            hash_file_or_directory(directory.path(), &mut hasher).unwrap();
            hasher.finish()
        };
        fs::write(directory.path().join("a"), "1").unwrap();
        let before = of();
        assert_eq!(before, of());
        fs::write(directory.path().join("a"), "2").unwrap();
        assert_ne!(before, of());
    }
}
