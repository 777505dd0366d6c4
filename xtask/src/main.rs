//! Developer commands: `cargo xtask test | check | docs | instructions | bpf | vm`.

mod bpf;
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
    /// Build the BPF programs in C; `check` compares what was committed.
    Bpf,
    /// Run the tests on real drivers, in emulated machines (see crates/nocopy-vm/README.md).
    Vm {
        /// A command of nocopy-vm with its options (default: run).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, default_value = "run")]
        arguments: Vec<String>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Test => test(),
        Command::Check => check(),
        Command::Docs => docs(),
        Command::Instructions => instructions::install_and_compare(),
        Command::Bpf => bpf::build(),
        Command::Vm { arguments } => vm(&arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("xtask: {failed}");
            ExitCode::FAILURE
        }
    }
}

/// What tests run of Debian's: how to ask whether it is there, and its package. They read what `nocopy record` writes, and run on
/// nocopy-pcap, some of them written in C for the purpose.
const PROGRAMS: [(&str, &str, &str); 6] = [
    ("tshark", "--version", "tshark"),
    ("dumpcap", "--version", "wireshark-common"),
    ("tcpdump", "--version", "tcpdump"),
    ("ngrep", "-V", "ngrep"),
    ("nmap", "--version", "nmap"),
    ("gcc", "--version", "gcc"),
];

fn install_programs() -> Result<(), Failed> {
    let missing = PROGRAMS
        .iter()
        .filter(|(program, question, _)| !Step::new(program, program, &[question]).succeeds_quietly());
    let packages: Vec<&str> = missing.map(|&(_, _, package)| package).collect();
    if packages.is_empty() { Ok(()) } else { step::install(&[&packages[..], &["libpcap0.8"]].concat()) }
}

fn test() -> Result<(), Failed> {
    install_programs()?;
    run_all(&[
        // The binary first: tests of the command line start it.
        Step::cargo("build the workspace", &["build", "--workspace", "--all-features", "--all-targets"]),
        Step::cargo("test the workspace", &["test", "--workspace", "--all-features", "--no-fail-fast"]),
        loom(),
        Step::cargo("compile the fuzz targets", &["check", "--manifest-path", "fuzz/Cargo.toml"]),
    ])?;
    instructions::install_and_compare()?;
    vm(&["run".into()])
}

/// The lab of emulated machines, on the build that the other tests use.
fn vm(arguments: &[String]) -> Result<(), Failed> {
    let fixed = ["run", "--quiet", "--package", "nocopy-vm", "--"];
    let all: Vec<&str> = fixed.into_iter().chain(arguments.iter().map(String::as_str)).collect();
    // A test starts the command.
    run_all(&[
        Step::cargo("build the command", &["build", "--package", "nocopy-cli"]),
        Step::cargo("the VM lab", &all),
    ])
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
        vm_tests_formatting()?,
        Step::cargo(
            "lints",
            &["clippy", "--workspace", "--all-features", "--all-targets", "--", "-D", "warnings"],
        ),
        Step::cargo("documentation", &["doc", "--workspace", "--all-features", "--no-deps"])
            .with("RUSTDOCFLAGS", "-D warnings"),
    ])?;
    bpf::check()?;
    if !Step::cargo("cargo deny there", &["deny", "--version"]).succeeds_quietly() {
        run_all(&[Step::cargo("install cargo-deny", &["install", "cargo-deny", "--locked"])])?;
    }
    // Not `advisories`: their database is fetched from a host that a build machine need not reach.
    run_all(&[Step::cargo("licences, bans, sources", &["deny", "check", "bans", "licenses", "sources"])])
}

/// cargo fmt does not see files that a build script makes modules.
fn vm_tests_formatting() -> Result<Step, Failed> {
    let files = step::files("crates/nocopy-vm/src/tests", ".rs")?;
    let paths: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let options = ["--check", "--edition", "2024"];
    let all: Vec<&str> = options.into_iter().chain(paths.iter().map(String::as_str)).collect();
    Ok(Step::new("formatting of the VM lab's tests", "rustfmt", &all))
}

fn docs() -> Result<(), Failed> {
    let print = |what: &str, arguments: &[&str], file: &str| {
        let nocopy = ["run", "--quiet", "-p", "nocopy-cli", "--"];
        Step::cargo(what, &[&nocopy, arguments].concat()).into_file(&format!("target/{file}"))
    };
    let page = |command: &&str| {
        print(&format!("man page of {command}"), &["man", command], &format!("man/nocopy-{command}.1"))
    };
    let completions = |(shell, file): (&str, &str)| {
        let arguments = ["completions", shell];
        print(&format!("completions for {shell}"), &arguments, &format!("completions/{file}"))
    };
    let api = Step::cargo("API documentation", &["doc", "--workspace", "--all-features", "--no-deps"])
        .with("RUSTDOCFLAGS", "-D warnings");
    let shells = [("bash", "nocopy.bash"), ("zsh", "_nocopy"), ("fish", "nocopy.fish")];
    let all: Vec<Step> = [api, print("man page", &["man"], "man/nocopy.1")]
        .into_iter()
        .chain(["bench", "doctor", "stats", "sniff", "record", "send"].iter().map(page))
        .chain(shells.map(completions))
        .collect();
    run_all(&all)
}
