//! The nightly suite `programs`: programs of Debian that use libpcap, under `nocopy run`. It writes a table
//! of docs/run.md.
//!
//! Each program runs four times, each time at the right end of a veth pair of its own, on the same traffic
//! from the left end: twice without nocopy, then with `nocopy run`, which is passive, and with
//! `nocopy run --take`. All four must show the same, each packet once, and both reports must be whole.

mod table;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy_lab::Lab;
use nocopy_lab::patience::PATIENCE;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, set_child_subreaper, wait};
use serde_json::Value;

use crate::gate::Outcome;
use crate::machine;
use crate::packages::UnpackedPackages;
use crate::processes;
use crate::senders::DOCUMENT;
use crate::started::RunningProgram;
use crate::step::{CommandStep, Failed, repository_root};
use crate::suite;
use crate::tables::write_table;
use table::{ALL, CapturingProgram, ProgramEnd};

const NAME: &str = "programs";

/// The client that reads what argus writes.
const FURTHER_PACKAGES: &[&str] = &["argus-client"];

const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A program that has slept at so many polls has seen what there is.
const SLEEPING_POLLS: usize = 5;

pub(crate) fn test_capturing_programs() -> Outcome {
    if !machine::has_apt() || !machine::can_create_namespaces() {
        return Outcome::unavailable(NAME, "root, network namespaces, and apt-get");
    }
    build_and_fetch_packages().map_or_else(Outcome::from, |unpacked| compare_all_programs(&unpacked))
}

fn build_and_fetch_packages() -> Result<UnpackedPackages, Failed> {
    let build = ["build", "--package", "nocopy-cli", "--package", "nocopy-pcap"];
    CommandStep::cargo("build nocopy and its libpcap", &build).run()?;
    // Daemons become children of this process, which ends them.
    set_child_subreaper(Some(getpid())).map_err(|error| Failed(format!("subreaper: {error}")))?;
    let packages = ALL.iter().map(|program| program.package);
    UnpackedPackages::fetch(NAME, packages.chain(FURTHER_PACKAGES.iter().copied()))
}

fn compare_all_programs(unpacked: &UnpackedPackages) -> Outcome {
    let mut outcome = Outcome::default();
    let mut table = "| program | version | output | with `--take` | report | compared without |\n|---|---|---|---|---|---|\n".to_owned();
    for program in ALL {
        let verdict = ProgramVerdict::judge(unpacked, program);
        eprintln!("xtask: {}", verdict.status_line(program));
        verdict.faults.iter().for_each(|fault| eprintln!("  {fault}"));
        table += &verdict.table_row(program);
        outcome = outcome.merged_with(match verdict.faults.is_empty() {
            true => Outcome::passed(),
            false => Outcome::failed(program.name, verdict.faults.join("\n")),
        });
    }
    outcome.checked_if_good(|| write_table(DOCUMENT, "nightly programs", &table))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RunMode {
    Plain,
    PlainAgain,
    Passive,
    Taking,
}

/// What a program did in one run.
struct RunResult {
    packets: u64,
    shown: String,
    /// The exit code as a shell gives it.
    code: i32,
    faults_of_report: Vec<String>,
}

#[derive(Default)]
struct ProgramVerdict {
    version: String,
    is_same: bool,
    taken: u64,
    is_reported: bool,
    faults: Vec<String>,
}

impl ProgramVerdict {
    fn judge(unpacked: &UnpackedPackages, program: &CapturingProgram) -> Self {
        let mut verdict = Self::default();
        if let Err(Failed(why)) = verdict.run_all_modes(unpacked, program) {
            verdict.faults.push(why);
        }
        verdict
    }

    fn run_all_modes(
        &mut self,
        unpacked: &UnpackedPackages,
        program: &CapturingProgram,
    ) -> Result<(), Failed> {
        self.version = unpacked.package_version(program.package)?;
        let run = |mode| ProgramRun::start_and_finish(unpacked, program, mode);
        let plain = run(RunMode::Plain)?;
        self.compare_runs(program, &plain, &run(RunMode::PlainAgain)?, "two runs without nocopy");
        let passive = run(RunMode::Passive)?;
        self.compare_runs(program, &plain, &passive, "without nocopy and with it");
        self.is_same = self.faults.is_empty();
        let taking = run(RunMode::Taking)?;
        self.taken = taking.packets;
        self.compare_runs(program, &plain, &taking, "without nocopy and with --take");
        let faults = [passive, taking].map(|result| result.faults_of_report).concat();
        self.is_reported = faults.is_empty();
        self.faults.extend(faults);
        Ok(())
    }

    fn compare_runs(&mut self, program: &CapturingProgram, one: &RunResult, other: &RunResult, what: &str) {
        let sent = program.expected_packets();
        if (one.packets, other.packets) != (sent, sent) {
            self.faults.push(format!("{what}: saw {} and {} packets of {sent}", one.packets, other.packets));
        }
        if one.code != other.code {
            self.faults.push(format!("{what}: exit codes {} and {}", one.code, other.code));
        }
        if one.shown.trim().is_empty() {
            self.faults.push(format!("{what}: nothing was shown"));
        }
        if let Some(difference) = first_difference(&one.shown, &other.shown) {
            self.faults.push(format!("{what}: {difference}"));
        }
    }

    fn status_line(&self, program: &CapturingProgram) -> String {
        let yes = |is: bool| if is { "yes" } else { "NO" };
        format!(
            "{} {}: same output {}, taken {} of {}, report {}",
            program.name,
            self.version,
            yes(self.is_same),
            self.taken,
            program.expected_packets(),
            yes(self.is_reported)
        )
    }

    /// Written only if there are no faults.
    fn table_row(&self, program: &CapturingProgram) -> String {
        let (name, sent) = (program.name, program.expected_packets());
        let passive = if program.is_passive { ", captured passively" } else { "" };
        format!(
            "| {name} | {} | the same | {} of {sent}{passive} | whole | {} |\n",
            self.version, self.taken, program.output.without
        )
    }
}

/// The first line that differs.
fn first_difference(one: &str, other: &str) -> Option<String> {
    let (ones, others): (Vec<&str>, Vec<&str>) = (one.lines().collect(), other.lines().collect());
    let at = (0..ones.len().max(others.len())).find(|&at| ones.get(at) != others.get(at))?;
    let counts = [ones.len(), others.len()];
    Some(format!("line {at} of {counts:?} differs:\n  {:?}\n  {:?}", ones.get(at), others.get(at)))
}

/// One run of a program.
struct ProgramRun<'a> {
    program: &'a CapturingProgram,
    mode: RunMode,
    lab: Lab,
    directory: PathBuf,
    variables: Vec<(&'static str, String)>,
}

impl<'a> ProgramRun<'a> {
    fn start_and_finish(
        unpacked: &UnpackedPackages,
        program: &'a CapturingProgram,
        mode: RunMode,
    ) -> Result<RunResult, Failed> {
        let name: String = program.name.chars().filter(char::is_ascii_alphanumeric).collect();
        let directory =
            repository_root().join("target").join(NAME).join("run").join(format!("{name}-{mode:?}"));
        let failed = |error: std::io::Error| Failed(format!("{}: {error}", directory.display()));
        let _ = fs::remove_dir_all(&directory);
        fs::create_dir_all(&directory).map_err(failed)?;
        let scripts = [("traffic.py", include_str!("traffic.py")), ("screen.py", include_str!("screen.py"))];
        for (name, text) in scripts {
            fs::write(directory.join(name), text).map_err(failed)?;
        }
        let mut variables = unpacked.environment_variables();
        variables.retain(|(name, _)| *name != "PYTHONHOME"); // Python is the system's
        let nocopy = suite::built_program("debug", "nocopy").display().to_string();
        let run = match mode {
            RunMode::Plain | RunMode::PlainAgain => String::new(),
            RunMode::Passive => format!("{nocopy} run --json --report=report --"),
            RunMode::Taking => format!("{nocopy} run --take --json --report=report --"),
        };
        // This process may have been started in the background of a shell, which ignores interrupts.
        let run = format!("env --default-signal=INT {run}");
        let [utc, plain] = ["UTC", "C"].map(str::to_owned);
        variables.extend([("run", run), ("root", unpacked.path("").display().to_string())]);
        variables.extend([("TZ", utc), ("LC_ALL", plain)]);
        let lab = Lab::new().map_err(|error| Failed(error.to_string()))?;
        let run = ProgramRun { program, mode, lab, directory, variables };
        let result = run.run_traffic();
        end_daemons();
        result.map_err(|Failed(why)| Failed(format!("{mode:?}: {why}\n{}", run.ends_of_files())))
    }

    fn start_at_left(&self, line: &str) -> Result<RunningProgram, Failed> {
        RunningProgram::start(self.lab.left().namespace(), &self.directory, &self.variables, line)
    }

    fn start_at_right(&self, line: &str) -> Result<RunningProgram, Failed> {
        RunningProgram::start(self.lab.right().namespace(), &self.directory, &self.variables, line)
    }

    fn run_traffic(&self) -> Result<RunResult, Failed> {
        let program = self.program;
        self.start_at_left(program.before)?.wait_for_success()?;
        let mut started = self.start_at_right(program.line)?;
        if program.end != ProgramEnd::Itself {
            self.wait_until_ready(&mut started)?;
            self.send_traffic(&mut started)?;
        }
        match program.end {
            ProgramEnd::Interrupted => started.interrupt(),
            ProgramEnd::Asked(line) => self.start_at_right(line)?.wait_for_success()?,
            ProgramEnd::Itself => {}
        }
        let status = started.wait_for_end()?;
        let code = status.code().or_else(|| Some(128 + status.signal()?)).unwrap_or_default();
        let final_count = if program.output.final_count.is_empty() {
            program.output.count
        } else {
            program.output.final_count
        };
        let packets = self.number_printed_by(final_count)?;
        let shown = self.start_at_right(program.output.shown)?.wait_for_output()?;
        let faults_of_report = match self.mode {
            RunMode::Plain | RunMode::PlainAgain => Vec::new(),
            RunMode::Passive | RunMode::Taking => self.report_faults(code),
        };
        Ok(RunResult { packets, shown, code, faults_of_report })
    }

    fn wait_until_ready(&self, started: &mut RunningProgram) -> Result<(), Failed> {
        let ready = self.program.ready;
        let is_ready = || match ready {
            "" => self.has_capture(),
            words => ["out", "err"].iter().any(|file| self.read_file(file).contains(words)),
        };
        let what = if ready.is_empty() { "a capture" } else { ready };
        wait_until(started, what, is_ready)?;
        if ready.is_empty() {
            wait_until_asleep(started)?;
        }
        Ok(())
    }

    fn has_capture(&self) -> bool {
        let right = self.lab.right();
        let sockets = || fs::read_to_string("/proc/thread-self/net/packet").unwrap_or_default();
        right.namespace().run(sockets).lines().count() > 1 || right.xdp_program().is_ok_and(|id| id.is_some())
    }

    /// Sends the traffic, and waits until the program has shown it.
    fn send_traffic(&self, started: &mut RunningProgram) -> Result<(), Failed> {
        let rounds = table::ROUNDS;
        self.start_at_left(&format!("exec python3 -E traffic.py nc0 {rounds}"))?.wait_for_success()?;
        let more = match self.program.needs_more_traffic {
            true => Some(self.start_at_left("exec python3 -E traffic.py nc0 more")?),
            false => None,
        };
        let start = Instant::now();
        // How many it has not shown is found out when it has ended.
        while self.count_shown()? < self.program.expected_packets()
            && start.elapsed() < PATIENCE
            && !started.has_ended()
        {
            sleep(POLL_INTERVAL);
        }
        drop(more);
        wait_until_asleep(started)?;
        self.count_shown().map(drop)
    }

    fn count_shown(&self) -> Result<u64, Failed> {
        self.start_at_right(self.program.output.query)?.wait_for_output()?;
        self.number_printed_by(self.program.output.count)
    }

    /// The number that a line prints; 0 if it prints none.
    fn number_printed_by(&self, line: &str) -> Result<u64, Failed> {
        let mut started = self.start_at_right(line)?;
        started.wait_for_end()?;
        Ok(started.output_so_far().trim().parse().unwrap_or(0))
    }

    fn read_file(&self, name: &str) -> String {
        let bytes = fs::read(self.directory.join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The ends of the files that say what went wrong.
    fn ends_of_files(&self) -> String {
        let end = |name: &&str| {
            let text = self.read_file(name);
            let lines: Vec<&str> = text.lines().collect();
            format!("---- {name}\n{}\n", lines[lines.len().saturating_sub(10)..].join("\n"))
        };
        ["out", "err", "report"].iter().map(end).collect()
    }

    /// What is missing in the report.
    fn report_faults(&self, code: i32) -> Vec<String> {
        let text = self.read_file("report");
        let Ok(report) = serde_json::from_str::<Value>(&text) else {
            return vec![format!("{:?}: the report is not JSON: {text}", self.mode)];
        };
        let is_taking = self.mode == RunMode::Taking;
        let ended = report["exit_code"].as_i64().or_else(|| Some(128 + report["signal"].as_i64()?));
        let mut faults = Vec::new();
        let mut expect = |what: &str, found: &Value, is_expected: bool| {
            if !is_expected {
                faults.push(format!("{:?}: the report has {what} {found}", self.mode));
            }
        };
        expect("schema", &report["schema"], report["schema"] == "nocopy.run/2");
        expect("take", &report["take"], report["take"] == is_taking);
        expect("notes", &report["notes"], report["notes"].as_array().is_some_and(Vec::is_empty));
        expect("the end", &report["exit_code"], ended == Some(i64::from(code)));
        let handles = report["handles"].as_array().map(Vec::as_slice).unwrap_or_default();
        for handle in handles {
            let mode = if is_taking && !self.program.is_passive { "take" } else { "passive" };
            let state = if self.program.closes { "closed" } else { "process-ended" };
            let is_right = [("library", "nocopy"), ("interface", "nc1"), ("mode", mode), ("state", state)];
            expect("a handle", handle, is_right.iter().all(|(field, value)| handle[field] == *value));
            let note = handle["note"].as_str().unwrap_or_default();
            expect(
                "a note",
                handle,
                note.contains("this process lacks CAP_") == (is_taking && self.program.is_passive),
            );
        }
        let received = handles.iter().filter_map(|handle| handle["counts"]["received"].as_u64()).max();
        let is_enough = received.is_some_and(|received| received >= self.program.expected_packets());
        expect("handles", &report["handles"], !handles.is_empty() && (is_enough || !self.program.closes));
        faults
    }
}

fn wait_until(
    started: &mut RunningProgram,
    what: &str,
    mut is_true: impl FnMut() -> bool,
) -> Result<(), Failed> {
    let start = Instant::now();
    while !is_true() {
        if start.elapsed() > PATIENCE || started.has_ended() {
            return Err(started.error(&format!("waited for '{what}'")));
        }
        sleep(POLL_INTERVAL);
    }
    Ok(())
}

/// Waits until a program and all its processes sleep, poll after poll.
fn wait_until_asleep(started: &mut RunningProgram) -> Result<(), Failed> {
    let mut sleeping_polls = 0;
    let process = started.process_id();
    wait_until(started, "sleep", || {
        sleeping_polls = if is_asleep(process) { sleeping_polls + 1 } else { 0 };
        sleeping_polls == SLEEPING_POLLS
    })
}

fn is_asleep(process: Pid) -> bool {
    let state = |path: PathBuf| {
        let status = fs::read_to_string(path.join("stat")).unwrap_or_default();
        // The name before it may contain spaces and brackets.
        status.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('S'))
    };
    let tasks = |process: &Pid| {
        fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).into_iter().flatten()
    };
    let all = [vec![process], processes::process_and_descendants(process)].concat();
    all.iter().flat_map(tasks).flatten().all(|task| state(task.path()))
}

/// Ends what a program has left running.
fn end_daemons() {
    for process in processes::process_and_descendants(getpid()) {
        let _ = kill_process(process, Signal::KILL);
    }
    while let Ok(Some(_)) = wait(WaitOptions::empty()) {}
}
