//! The nightly suite `fuzz`: every fuzz target, from an empty corpus.

use std::fs;

use crate::gate::Outcome;
use crate::step::{CommandStep, files_with_ending, repository_root};
use crate::suite::{built_program, install_tool, map_in_parallel, processor_count};

/// The program of crates.io, with its version: one that builds with Rust 1.95.
const PROGRAM: [&str; 2] = ["cargo-fuzz", "0.13.2"];

/// For each target, if nothing else is asked for.
const SECONDS: u32 = 180;

/// Runs every target for three minutes.
pub(super) fn fuzz_all_targets() -> Outcome {
    fuzz_each_target_for(|_| SECONDS)
}

/// Runs every target for the same share of this time on all processors.
pub(super) fn fuzz_for_hours(hours: f64) -> Outcome {
    let processors = processor_count();
    let outcome =
        fuzz_each_target_for(|targets| (hours * 3600.0 * processors as f64 / targets as f64) as u32);
    let remark = format!("{hours} h on {processors} processors; {}", outcome.remark);
    outcome.with_remark(remark)
}

/// Reads hours: more than none, and less than a week.
pub(super) fn parse_hours(text: &str) -> Result<f64, String> {
    let hours = text.parse().ok().filter(|hours| (0.01..168.0).contains(hours));
    hours.ok_or_else(|| "a number of hours, such as 0.5".into())
}

/// Runs every target for that many seconds of their number; the remark has the edges covered at the start and
/// the end.
fn fuzz_each_target_for(seconds: impl Fn(usize) -> u32) -> Outcome {
    let built = || {
        install_tool(PROGRAM)?;
        let targets = files_with_ending("fuzz/fuzz_targets", ".rs")?;
        cargo_fuzz("build the fuzz targets", &["build"]).run().map(|()| targets)
    };
    built().map_or_else(Outcome::from, |targets| {
        let names: Vec<&str> = targets.iter().filter_map(|path| path.file_stem()?.to_str()).collect();
        let seconds = seconds(names.len());
        let outcomes = map_in_parallel(processor_count(), &names, |name| run_target(name, seconds));
        outcomes.into_iter().reduce(Outcome::merged_with).unwrap_or_default()
    })
}

/// A command of cargo-fuzz, which needs the compiler's unstable instrumentation.
fn cargo_fuzz(name: &str, arguments: &[&str]) -> CommandStep {
    let program = built_program("tools", "bin").join(PROGRAM[0]).display().to_string();
    // The library's release profile takes minutes for every target.
    CommandStep::new(name, &program, arguments)
        .with_variable("RUSTC_BOOTSTRAP", "1")
        .with_variable("CARGO_PROFILE_RELEASE_LTO", "off")
        .with_variable("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16")
}

fn run_target(name: &str, seconds: u32) -> Outcome {
    let time = format!("-max_total_time={seconds}");
    // A corpus of this run alone, so that growth is growth.
    let corpus = repository_root().join("target/fuzz-corpus").join(name);
    let _ = fs::remove_dir_all(&corpus);
    if let Err(error) = fs::create_dir_all(&corpus) {
        return Outcome::failed(name, error.to_string());
    }
    let corpus = corpus.display().to_string();
    let step = cargo_fuzz(name, &["run", name, &corpus, "--", &time, "-len_control=0"]);
    match step.run_for_status() {
        Ok((Some(0), output)) => match first_and_last_coverage(&output) {
            Some((first, last)) => Outcome::passed().with_remark(format!("{name} {first} -> {last} edges; ")),
            None => Outcome::failed(name, format!("no coverage was reported\n{output}")),
        },
        Ok((_, output)) => Outcome::failed(name, output),
        Err(failed) => failed.into(),
    }
}

/// The first and last number of edges in libFuzzer's lines `#2 INITED cov: 12 ft: 13 …`.
fn first_and_last_coverage(output: &str) -> Option<(u32, u32)> {
    let mut numbers =
        output.lines().filter_map(|line| line.split_once("cov: ")?.1.split(' ').next()?.parse().ok());
    let first = numbers.next()?;
    Some((first, numbers.next_back().unwrap_or(first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_and_invalid_hours_are_refused() {
        assert_eq!(parse_hours("0.5"), Ok(0.5));
        assert!(["0", "-1", "NaN", "inf", "two"].iter().all(|text| parse_hours(text).is_err()));
    }

    #[test]
    fn the_first_and_last_coverage_are_read_from_the_output() {
        let output =
            "INFO: seed corpus\n#2\tINITED cov: 12 ft: 13 corp: 1\n#9\tNEW    cov: 40 ft: 50\nDone 9 runs";
        assert_eq!(first_and_last_coverage(output), Some((12, 40)));
        assert_eq!(first_and_last_coverage("nothing"), None);
    }
}
