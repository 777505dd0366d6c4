//! Developer commands: `cargo xtask --help`.

mod aarch64;
mod api;
mod bpf;
mod check;
mod circles;
mod docs;
mod gate;
mod git;
mod imports;
mod instructions;
mod layers;
mod licences;
mod machine;
mod machines;
mod names;
mod newcomer;
mod nfs_clients;
mod nightly;
mod oldest_rust;
mod others;
mod packages;
mod processes;
mod programs;
mod senders;
mod started;
mod step;
mod stops;
mod suite;
mod vm;
mod width;
mod workspace;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gate::Gate;
use machines::Face;
use step::{Failed, is_root};
use suite::Suite;

#[derive(Parser)]
#[command(about = "Developer commands of nocopy")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Everything that must pass before a change lands: checks, tests, loom models, instruction guards, the
    /// VM lab.
    Test(TestArguments),
    /// Formatting, lints, layers, circles of imports, public items, names in documents, API documentation,
    /// BPF objects: everything that needs no traffic.
    Check,
    /// Build the API documentation, the man pages and the shell completions into target/.
    Docs,
    /// Write the list of public items of the library into docs/api.txt, which `check` compares.
    Api,
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
    /// Run a suite that takes too long for every change, and note its verdict in docs/nightly.md.
    Nightly(nightly::Arguments),
    /// Say what this machine lacks for the tests, and how to install it.
    Doctor,
    /// Run a program that ends with xtask, perhaps in a network namespace of its own.
    #[command(hide = true)]
    Start {
        #[arg(long)]
        isolated: bool,
        program: String,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
}

#[derive(Args)]
struct TestArguments {
    /// Only tests whose names contain one of these ("PACKAGE::BINARY MODULE::TEST"), and nothing but tests.
    names: Vec<String>,
    /// Only what needs neither root nor traffic between namespaces: the unit tests of the library.
    #[arg(long)]
    quick: bool,
    /// Leave the VM lab out.
    #[arg(long)]
    no_vm: bool,
    /// Run them as on another machine: words FACTOR=VALUE, as the nightly suite 'machines' prints them.
    #[arg(long, value_name = "WORDS")]
    face: Option<Face>,
    /// The same, when this process has that face.
    #[arg(long, hide = true, conflicts_with = "face")]
    wearing: Option<Face>,
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Test(TestArguments { face: Some(face), .. }) => become_faced(&face),
        Command::Test(arguments) => return test(arguments),
        Command::Check => return gated(check::run),
        Command::Docs => docs::build(),
        Command::Api => api::write(),
        Command::Instructions => {
            return gated(|gate| gate.run("instruction guards", instructions::guards));
        }
        Command::Bpf => bpf::build(),
        Command::Vm { arguments } => vm::run(&arguments),
        Command::Nightly(arguments) => return nightly::run(&arguments),
        Command::Doctor => return exit_code(machine::doctor()),
        Command::Start { isolated, program, arguments } => {
            return suite::become_program(&program, &arguments, isolated);
        }
    };
    done.map_or_else(|failed| refuse(&failed), |()| ExitCode::SUCCESS)
}

fn gated(steps: impl FnOnce(&mut Gate)) -> ExitCode {
    let mut gate = Gate::default();
    steps(&mut gate);
    exit_code(gate.finish())
}

fn exit_code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn refuse(failed: &Failed) -> ExitCode {
    eprintln!("xtask: {failed}");
    ExitCode::FAILURE
}

/// Replaces this process by one with the same arguments, for which the machine has that face.
fn become_faced(face: &Face) -> Result<(), Failed> {
    let program =
        std::env::current_exe().map_err(|error| Failed(format!("no path of this program: {error}")))?;
    let wearing = |argument: String| {
        argument.replacen("--face", "--wearing", usize::from(argument.starts_with("--face")))
    };
    let arguments: Vec<String> = std::env::args().skip(1).map(wearing).collect();
    machines::become_with(face, &program, &arguments).map(|never| match never {})
}

/// Runs the gate, or the selected part of it.
fn test(arguments: TestArguments) -> ExitCode {
    if !is_root() || !machine::has_namespaces() {
        eprintln!(
            "xtask: not root, or without CAP_SYS_ADMIN: tests that make network namespaces, load BPF programs or open \
             AF_XDP and packet sockets are skipped, and so is the VM lab"
        );
    }
    let mut gate = Gate::default();
    let is_whole = arguments.names.is_empty() && !arguments.quick;
    let programs =
        if arguments.quick { machine::programs_for_unit_tests } else { machine::programs_for_tests };
    gate.run("programs that tests start", programs);
    if is_whole {
        check::run(&mut gate);
    }
    let built = if arguments.quick { QUICK } else { suite::ALL };
    let face = arguments.wearing.unwrap_or_default();
    let suite = Suite { filters: &arguments.names, face, ..Suite::of("tests", built) };
    gate.run("tests", || suite.outcome());
    if is_whole {
        gate.run("loom models", || Suite::of("loom", &["--package", "nocopy-loom"]).outcome());
        gate.run("documentation examples", suite::documentation_examples);
        gate.run("instruction guards", instructions::guards);
        if !arguments.no_vm {
            gate.run("VM lab", vm::outcome);
        }
    }
    exit_code(gate.finish())
}

/// The packages of `--quick`: few, and without a need for privileges.
const QUICK: &[&str] = &["--package", "nocopy-proto", "--package", "nocopy", "--lib"];
