//! Suites that take too long for every change. Their last verdicts are committed in docs/nightly.md.

use std::fs;
use std::process::ExitCode;

use crate::aarch64;
use crate::check;
use crate::gate::{Gate, Outcome};
use crate::git::{VERDICTS, commit};
use crate::machine;
use crate::machines;
use crate::newcomer;
use crate::others;
use crate::senders;
use crate::step::{Failed, Step, files, is_root, root};
use crate::stops::{Busy, Stops};
use crate::suite::{self, Instrument, Suite, processors, program, side_by_side};
use crate::vm;

struct Nightly {
    name: &'static str,
    about: &'static str,
    run: fn() -> Outcome,
}

const ALL: &[Nightly] = &[
    Nightly {
        name: "random",
        about: "all tests with new random inputs, and a million steps of the message protocol's simulation",
        run: random,
    },
    Nightly { name: "fuzz", about: "every fuzz target for three minutes", run: fuzz },
    Nightly {
        name: "stalls",
        about: "all tests while their processes are stopped for 100 to 280 ms, several times a second; three runs, no second try",
        run: stalls,
    },
    Nightly {
        name: "busy",
        about: "all tests while every processor is busy; three runs, no second try",
        run: busy,
    },
    Nightly {
        name: "machines",
        about: "the tests of --quick and of the command on machines with other faces: processors, terminals, languages, limits, settings",
        run: machines::outcome,
    },
    Nightly {
        name: "soak",
        about: "the VM lab's random operations for ten minutes, from a new seed",
        run: soak,
    },
    Nightly {
        name: "nfs",
        about: "writing by NFS in the VM lab, from a new seed: what programs expect of a directory, git, make, cargo, fsx, and what is lost",
        run: nfs,
    },
    Nightly {
        name: "sanitizer",
        about: "tests of sockets, pools and C interfaces under the address sanitizer",
        run: sanitizer,
    },
    Nightly {
        name: "aarch64",
        about: "everything compiled for aarch64; test programs and the command on an emulated machine with Debian's arm64 kernel",
        run: aarch64::outcome,
    },
    Nightly {
        name: "senders",
        about: "in which runs real programs send their datagrams: writes docs/senders.jsonl and the table in docs/run.md",
        run: senders::outcome,
    },
    Nightly {
        name: "left-alone",
        about: "instructions that 'nocopy run --batch-udp' adds to programs that it leaves alone: writes the table in docs/run.md",
        run: senders::left_alone,
    },
    Nightly {
        name: "python",
        about: "Python's own tests of sockets, processes and waits, with the library of 'nocopy run --batch-udp' and without",
        run: others::python,
    },
    Nightly {
        name: "libuv",
        about: "libuv's own tests of udp, tcp, fork and poll, with the library of 'nocopy run --batch-udp' and without",
        run: others::libuv,
    },
    Nightly {
        name: "newcomer",
        about: "the first hour with the project on a bare Debian: measure, capture and replay, write a program",
        run: newcomer::outcome,
    },
    Nightly {
        name: "licences",
        about: "licences, bans and sources of all dependencies",
        run: check::licences,
    },
];

/// Runs of a suite that looks for rare failures.
const ROUNDS: usize = 3;

/// For each fuzz target.
const FUZZ_SECONDS: u32 = 180;

pub(crate) fn run(name: Option<&str>) -> ExitCode {
    let Some(nightly) = ALL.iter().find(|nightly| Some(nightly.name) == name) else {
        for Nightly { name, about, .. } in ALL {
            println!("{name:<12} {about}");
        }
        return name.map_or(ExitCode::SUCCESS, |name| {
            eprintln!("xtask: no nightly suite is called {name}; the list above has all");
            ExitCode::from(2)
        });
    };
    if !is_root() {
        eprintln!("xtask: the nightly suites need root: run it as root");
        return ExitCode::from(2);
    }
    let mut gate = Gate::default();
    gate.run("programs that tests start", machine::programs_for_tests);
    gate.run(nightly.name, || {
        let outcome = (nightly.run)();
        let noted = note(nightly.name, &outcome);
        match noted {
            Ok(()) => outcome,
            Err(failed) => outcome.and(failed.into()),
        }
    });
    if gate.finish() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn random() -> Outcome {
    let seed = fastrand::u64(..);
    let outcome = Suite { seed: Some(seed), ..Suite::of("nightly", suite::ALL) }.outcome();
    outcome.with_remark(format!("PROPTEST_RNG_SEED = NOCOPY_TEST_SEED = {seed}"))
}

fn stalls() -> Outcome {
    rounds(|| {
        let _stops = Stops::begin();
        Suite { retry: false, ..Suite::of("nightly", suite::ALL) }.outcome()
    })
}

fn busy() -> Outcome {
    rounds(|| {
        let _busy = Busy::begin();
        Suite { retry: false, ..Suite::of("nightly", suite::ALL) }.outcome()
    })
}

fn rounds(run: impl Fn() -> Outcome) -> Outcome {
    (0..ROUNDS).map(|_| run()).reduce(Outcome::and).unwrap_or_default()
}

fn soak() -> Outcome {
    vm::run(&["run", "--only", "soak", "--soak", "--seed", "random"].map(str::to_owned)).into()
}

/// A program of crates.io, with its version, that the VM lab starts and Debian does not package.
const FSX: [&str; 2] = ["fsx", "0.3.2"];

fn nfs() -> Outcome {
    let [name, version] = FSX;
    let place = program("tools", "").display().to_string();
    let what = ["install", name, "--version", version, "--locked", "--quiet", "--root", &place];
    if let Err(failed) = Step::cargo("install fsx", &what).run() {
        return failed.into();
    }
    vm::outcome_of_nfs()
}

fn sanitizer() -> Outcome {
    let built = ["--target", "x86_64-unknown-linux-gnu", "--target-dir", "target/sanitizer"];
    let packages = ["--package", "nocopy", "--package", "nocopy-pcap"];
    let all = [&built[..], &packages[..]].concat();
    Suite { instrument: Instrument::AddressSanitizer, ..Suite::of("sanitizer", &all) }.outcome()
}

/// Runs every target for its time; the remark has the edges covered at the start and the end.
fn fuzz() -> Outcome {
    if !Step::cargo("cargo fuzz there", &["fuzz", "--version"]).succeeds_quietly() {
        let install = Step::cargo("install cargo-fuzz", &["install", "cargo-fuzz", "--locked"]);
        if let Err(failed) = install.run() {
            return failed.into();
        }
    }
    let targets = match files("fuzz/fuzz_targets", ".rs") {
        Ok(targets) => targets,
        Err(failed) => return failed.into(),
    };
    let names: Vec<&str> = targets.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
    match fuzz_command("build the fuzz targets", &["build"]).run() {
        Ok(()) => side_by_side(processors(), &names, |name| fuzz_target(name))
            .into_iter()
            .reduce(Outcome::and)
            .unwrap_or_default(),
        Err(failed) => failed.into(),
    }
}

/// A command of cargo-fuzz, which needs the compiler's unstable instrumentation.
fn fuzz_command(name: &str, arguments: &[&str]) -> Step {
    let arguments = [&["fuzz"], arguments].concat();
    // The library's release profile takes minutes for every target.
    Step::cargo(name, &arguments)
        .with("RUSTC_BOOTSTRAP", "1")
        .with("CARGO_PROFILE_RELEASE_LTO", "off")
        .with("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

fn fuzz_target(name: &str) -> Outcome {
    let time = format!("-max_total_time={FUZZ_SECONDS}");
    // A corpus of this run alone, so that growth is growth.
    let corpus = root().join("target/fuzz-corpus").join(name);
    let _ = fs::remove_dir_all(&corpus);
    if let Err(error) = fs::create_dir_all(&corpus) {
        return Outcome::failed(name, error.to_string());
    }
    let corpus = corpus.display().to_string();
    let step = fuzz_command(name, &["run", name, &corpus, "--", &time, "-len_control=0"]);
    match step.status() {
        Ok((Some(0), output)) => match coverage(&output) {
            Some((first, last)) => Outcome::passed().with_remark(format!("{name} {first} -> {last} edges; ")),
            None => Outcome::failed(name, format!("no coverage was reported\n{output}")),
        },
        Ok((_, output)) => Outcome::failed(name, output),
        Err(failed) => failed.into(),
    }
}

/// The first and last number of edges in libFuzzer's lines `#2 INITED cov: 12 ft: 13 …`.
fn coverage(output: &str) -> Option<(u32, u32)> {
    let mut numbers =
        output.lines().filter_map(|line| line.split_once("cov: ")?.1.split(' ').next()?.parse().ok());
    let first = numbers.next()?;
    Some((first, numbers.next_back().unwrap_or(first)))
}

fn note(name: &str, outcome: &Outcome) -> Result<(), Failed> {
    let path = root().join(VERDICTS);
    let failed = |error: std::io::Error| Failed(format!("{}: {error}", path.display()));
    let date = Step::new("date", "date", &["--utc", "+%Y-%m-%d"]).captured()?;
    let row = format!("| {name} | {} | {} | {} |", outcome.line(), commit(), date.trim());
    let text = fs::read_to_string(&path).map_err(failed)?;
    fs::write(&path, with_row(&text, name, &row)).map_err(failed)
}

/// The text with the row of this name replaced, or added at the end.
fn with_row(text: &str, name: &str, row: &str) -> String {
    let start = format!("| {name} |");
    let mut lines: Vec<&str> = text.lines().collect();
    match lines.iter_mut().find(|line| line.starts_with(&start)) {
        Some(line) => *line = row,
        None => lines.push(row),
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coverage_is_the_first_and_the_last() {
        let output =
            "INFO: seed corpus\n#2\tINITED cov: 12 ft: 13 corp: 1\n#9\tNEW    cov: 40 ft: 50\nDone 9 runs";
        assert_eq!(coverage(output), Some((12, 40)));
        assert_eq!(coverage("nothing"), None);
    }

    #[test]
    fn a_verdict_replaces_the_one_before() {
        let text = "# Table\n\n| a | old |\n| b | old |\n";
        assert_eq!(with_row(text, "a", "| a | new |"), "# Table\n\n| a | new |\n| b | old |\n");
        assert_eq!(with_row(text, "c", "| c | new |"), format!("{text}| c | new |\n"));
    }
}
