//! Developer commands: `cargo xtask test | check | docs | instructions`.

mod instructions;
mod step;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use step::{Failed, Step, run_all};

#[derive(Parser)]
#[command(about = "Developer commands of nocopy")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Install what the tests need, and run every test (as root: the labs make network namespaces).
    Test,
    /// Formatting, lints, documentation, licences: everything that needs no traffic.
    Check,
    /// Build the API documentation, the man pages and the shell completions into target/.
    Docs,
    /// Count the instructions per packet of the library against loops written by hand (callgrind).
    Instructions,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Test => test(),
        Command::Check => check(),
        Command::Docs => docs(),
        Command::Instructions => instructions::install_and_compare(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("xtask: {failed}");
            ExitCode::FAILURE
        }
    }
}

fn test() -> Result<(), Failed> {
    run_all(&[
        // The binary first: tests of the command line start it.
        Step::cargo("build the workspace", &["build", "--workspace", "--all-targets"]),
        Step::cargo("test the workspace", &["test", "--workspace", "--no-fail-fast"]),
        loom(),
        Step::cargo("compile the fuzz targets", &["check", "--manifest-path", "fuzz/Cargo.toml"]),
    ])?;
    instructions::install_and_compare()
}

/// The models of rings and return lists, in every interleaving: another build of the library, on loom's atomics.
fn loom() -> Step {
    let arguments =
        ["test", "-p", "nocopy", "--lib", "--profile", "loom", "--target-dir", "target/loom", "loom_tests"];
    Step::cargo("run the loom models", &arguments).with("RUSTFLAGS", "--cfg nocopy_loom")
}

fn check() -> Result<(), Failed> {
    run_all(&[
        Step::cargo("formatting", &["fmt", "--all", "--check"]),
        Step::cargo("lints", &["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]),
        Step::cargo("documentation", &["doc", "--workspace", "--no-deps"])
            .with("RUSTDOCFLAGS", "-D warnings"),
    ])?;
    if !Step::cargo("cargo deny there", &["deny", "--version"]).succeeds_quietly() {
        run_all(&[Step::cargo("install cargo-deny", &["install", "cargo-deny", "--locked"])])?;
    }
    // Not `advisories`: their database is fetched from a host that a build machine need not reach.
    run_all(&[Step::cargo("licences, bans, sources", &["deny", "check", "bans", "licenses", "sources"])])
}

fn docs() -> Result<(), Failed> {
    run_all(&[
        Step::cargo("API documentation", &["doc", "--workspace", "--no-deps"])
            .with("RUSTDOCFLAGS", "-D warnings"),
        Step::cargo("man page", &["run", "--quiet", "-p", "nocopy-cli", "--", "man"])
            .into_file("target/man/nocopy.1"),
        Step::cargo("man page of bench", &["run", "--quiet", "-p", "nocopy-cli", "--", "man", "bench"])
            .into_file("target/man/nocopy-bench.1"),
        Step::cargo(
            "completions for bash",
            &["run", "--quiet", "-p", "nocopy-cli", "--", "completions", "bash"],
        )
        .into_file("target/completions/nocopy.bash"),
        Step::cargo(
            "completions for zsh",
            &["run", "--quiet", "-p", "nocopy-cli", "--", "completions", "zsh"],
        )
        .into_file("target/completions/_nocopy"),
        Step::cargo(
            "completions for fish",
            &["run", "--quiet", "-p", "nocopy-cli", "--", "completions", "fish"],
        )
        .into_file("target/completions/nocopy.fish"),
    ])
}
