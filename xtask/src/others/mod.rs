//! Nightly suites of tests that others wrote for their own programs: each test has the same verdict with the
//! library of `nocopy run --batch-udp` as without.
//!
//! The library joins datagrams from the second equal one on, whether that pays or not, without a deadline or
//! with a random one.

mod libuv;
mod python;
mod test_run;

use std::collections::BTreeMap;

use crate::gate::Outcome;
use crate::machine;
use crate::step::{CommandStep, Failed};
use crate::suite::{map_in_parallel, processor_count};
pub(super) use test_run::{LibraryMode, run_in_namespace};
pub(crate) use test_run::{create_socket_counters_file, read_socket_counters};

type Verdicts = BTreeMap<String, String>;

#[derive(Debug, Default)]
struct PartResult {
    verdicts: Verdicts,
    /// Datagrams that joined bursts.
    joined: u64,
}

trait ForeignTests: Sync {
    /// Parts that run by themselves.
    fn part_names(&self) -> Vec<String>;

    fn run(&self, name: &str, mode: LibraryMode) -> Result<PartResult, Failed>;
}

/// How often a test that differs is run again, each time without the library and with it.
const TRIES: usize = 3;

pub(crate) fn run_python_tests() -> Outcome {
    run_foreign_tests("python", python::install_python_tests)
}

pub(crate) fn run_libuv_tests() -> Outcome {
    run_foreign_tests("libuv", libuv::build_libuv_tests)
}

fn run_foreign_tests<T: ForeignTests>(name: &str, prepare: fn() -> Result<T, Failed>) -> Outcome {
    if !machine::has_apt() || !machine::can_create_namespaces() {
        return Outcome::unavailable(name, "root, network namespaces, and apt-get");
    }
    let ready = || {
        let library = ["build", "--package", "nocopy-sockets"];
        CommandStep::cargo("build the library that joins datagrams", &library).run()?;
        prepare()
    };
    ready().map_or_else(Outcome::from, |tests| compare_all_parts(&tests))
}

/// Runs all parts, with and without the library.
fn compare_all_parts(tests: &impl ForeignTests) -> Outcome {
    let deadline_us = fastrand::u32(1..200);
    let modes = [LibraryMode::Joining { deadline_us: 0 }, LibraryMode::Joining { deadline_us }];
    let parts = tests.part_names();
    // Most tests wait most of the time.
    let all = map_in_parallel(2 * processor_count(), &parts, |part| compare_part(tests, part, &modes));
    let joined: u64 = all.iter().map(|(_, joined)| joined).sum();
    let outcome =
        all.into_iter().map(|(outcome, _)| outcome).reduce(Outcome::merged_with).unwrap_or_default();
    outcome.with_remark(format!("{joined} datagrams joined bursts; deadlines 0 and {deadline_us} us"))
}

/// The tests of one part that have the same verdict in all ways, those that have not, and how many datagrams
/// joined.
fn compare_part(tests: &impl ForeignTests, part: &str, modes: &[LibraryMode]) -> (Outcome, u64) {
    eprintln!("xtask: {part}");
    let plain = match tests.run(part, LibraryMode::Without) {
        Ok(found) => found.verdicts,
        Err(failed) => return (failed.into(), 0),
    };
    let (mut differ, mut joined) = (BTreeMap::new(), 0);
    for &mode in modes {
        match tests.run(part, mode) {
            Ok(found) => {
                joined += found.joined;
                differ.extend(differing_tests(&plain, &found.verdicts).into_iter().map(|name| (name, mode)));
            }
            Err(failed) => return (failed.into(), joined),
        }
    }
    let mut outcome = Outcome { passed: plain.len() - differ.len().min(plain.len()), ..Outcome::default() };
    for (name, mode) in differ {
        outcome = outcome.merged_with(repeat_test_alone(tests, &name, mode));
    }
    (outcome, joined)
}

/// Tests with different verdicts, or that only one of the two has.
fn differing_tests(plain: &Verdicts, ours: &Verdicts) -> Vec<String> {
    let names = plain.keys().chain(ours.keys().filter(|name| !plain.contains_key(*name)));
    names.filter(|name| plain.get(*name) != ours.get(*name)).cloned().collect()
}

/// Repeats one test whose verdicts differ, with the library and without, because such a test may fail now and
/// then even without it.
fn repeat_test_alone(tests: &impl ForeignTests, name: &str, mode: LibraryMode) -> Outcome {
    eprintln!("xtask: {name} differs ({mode:?}); once more, alone");
    let mut seen = String::new();
    for _ in 0..TRIES {
        let both =
            tests.run(name, LibraryMode::Without).and_then(|plain| Ok((plain, tests.run(name, mode)?)));
        match both {
            Ok((plain, ours)) if plain.verdicts == ours.verdicts => return Outcome::passed(),
            Ok((plain, ours)) => seen += &format!("{:?} without, {:?} with\n", plain.verdicts, ours.verdicts),
            Err(Failed(text)) => seen += &text,
        }
    }
    Outcome::failed(name, format!("{mode:?}:\n{seen}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdicts_of_pairs(all: &[(&str, &str)]) -> Verdicts {
        all.iter().map(|(name, verdict)| ((*name).into(), (*verdict).into())).collect()
    }

    /// A test that fails in its first `fails_with` runs, if it runs with the library.
    struct FakeTests {
        fails_with: usize,
        runs: std::sync::atomic::AtomicUsize,
    }

    impl ForeignTests for FakeTests {
        fn part_names(&self) -> Vec<String> {
            vec!["part".into()]
        }

        fn run(&self, _: &str, mode: LibraryMode) -> Result<PartResult, Failed> {
            let run = self.runs.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let fails = mode != LibraryMode::Without && run < self.fails_with;
            let verdict = if fails { "failed" } else { "passed" };
            Ok(PartResult {
                verdicts: verdicts_of_pairs(&[("one", verdict)]),
                joined: u64::from(mode != LibraryMode::Without),
            })
        }
    }

    fn outcome_of_fake_tests(fails_with: usize) -> Outcome {
        compare_all_parts(&FakeTests { fails_with, runs: 0.into() })
    }

    #[test]
    fn a_test_that_always_differs_fails_the_suite() {
        assert!(outcome_of_fake_tests(0).is_good());
        assert!(outcome_of_fake_tests(3).is_good(), "it did not differ when it was alone");
        assert_eq!(outcome_of_fake_tests(usize::MAX).failures.len(), 1);
    }

    #[test]
    fn tests_that_are_missing_differ() {
        let plain = verdicts_of_pairs(&[("a", "passed"), ("b", "skipped")]);
        assert_eq!(
            differing_tests(&plain, &verdicts_of_pairs(&[("a", "passed"), ("c", "passed")])),
            ["b", "c"]
        );
        assert!(differing_tests(&plain, &plain).is_empty());
    }
}
