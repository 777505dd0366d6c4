//! Developer commands: `cargo xtask --help`.

mod aarch64;
mod api;
mod bpf;
mod check;
mod circles;
mod docs;
mod features;
mod gate;
mod git;
mod imports;
mod instructions;
mod kernels;
mod layers;
mod licences;
mod links;
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
mod python_module;
mod release;
mod semver;
mod senders;
mod sizes;
mod started;
mod step;
mod stops;
mod suite;
mod support;
mod tables;
mod vm;
mod width;
mod workflows;
mod workspace;

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use gate::Gate;
use machines::MachineVariant;
use step::{Failed, is_run_as_root};
use suite::TestSuite;

#[derive(Parser)]
#[command(about = "Developer commands of nocopy")]
struct XtaskArguments {
    #[command(subcommand)]
    command: XtaskCommand,
}

#[derive(Subcommand)]
enum XtaskCommand {
    /// Everything that must pass before a change lands: checks, tests, loom models, instruction guards, the
    /// VM lab.
    Test(TestArguments),
    /// Formatting, lints, layers, circles of imports, public items, names and links in documents, what
    /// runs where, API documentation, BPF objects: everything that needs no traffic.
    Check,
    /// Build the API documentation, the man pages and the shell completions into target/.
    Docs,
    /// Write the list of public items of the library into docs/api.txt, which `check` compares.
    Api,
    /// Write the tables of docs/support.md, which `check` compares: what each feature needs, and what is
    /// known of drivers.
    Support,
    /// Count the instructions per packet of the library against loops written by hand (callgrind).
    Instructions,
    /// Build the BPF programs in C; `check` compares what was committed.
    Bpf,
    /// Build the Python module, and run its tests in Python.
    PythonModule,
    /// Build the Python module as users have it, beside what `nocopy bench python` compares it with.
    Python,
    /// Run the tests on real drivers, in emulated machines (see crates/nocopy-vm/README.md).
    Vm {
        /// A command of nocopy-vm with its options (default: run).
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, default_value = "run")]
        arguments: Vec<String>,
    },
    /// Run a suite that takes too long for every change, and note its verdict in docs/nightly.md.
    Nightly(nightly::NightlyArguments),
    /// Look for advisories about all dependencies, in a database that is fetched.
    Advisories,
    /// Check and make everything of a release, up to the commands of RELEASE.md that need accounts.
    Release(release::ReleaseArguments),
    /// Upload the crates that crates.io does not have: see RELEASE.md.
    Publish(release::PublishArguments),
    /// Make the files that users install: archives, Debian packages, the image's roots.
    ReleaseFiles,
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
    face: Option<MachineVariant>,
    /// The same, when this process has that face.
    #[arg(long, hide = true, conflicts_with = "face")]
    wearing: Option<MachineVariant>,
}

fn main() -> ExitCode {
    let done = match XtaskArguments::parse().command {
        XtaskCommand::Test(TestArguments { face: Some(face), .. }) => exec_as_machine_variant(&face),
        XtaskCommand::Test(arguments) => return run_test_command(arguments),
        XtaskCommand::Check => return run_gate(check::run_checks),
        XtaskCommand::Docs => docs::build_documentation(),
        XtaskCommand::Api => api::write_list(),
        XtaskCommand::Support => support::write_document_tables(),
        XtaskCommand::Instructions => {
            return run_gate(|gate| gate.run("instruction guards", instructions::check_instruction_counts));
        }
        XtaskCommand::Bpf => bpf::build_objects(),
        XtaskCommand::PythonModule => return run_gate(run_python_module),
        XtaskCommand::Python => python_module::build_for_bench(),
        XtaskCommand::Vm { arguments } => vm::run_lab(&arguments),
        XtaskCommand::Nightly(arguments) => return nightly::run_command(&arguments),
        XtaskCommand::Advisories => licences::check_advisories(),
        XtaskCommand::Release(arguments) => {
            return release::run_command(&arguments).unwrap_or_else(|failed| print_failure(&failed));
        }
        XtaskCommand::Publish(arguments) => release::run_publish_command(&arguments),
        XtaskCommand::ReleaseFiles => {
            return run_gate(|gate| gate.run("released files", release::build_files));
        }
        XtaskCommand::Doctor => return exit_code(machine::print_requirements()),
        XtaskCommand::Start { isolated, program, arguments } => {
            return suite::exec_test_program(&program, &arguments, isolated);
        }
    };
    done.map_or_else(|failed| print_failure(&failed), |()| ExitCode::SUCCESS)
}

fn run_gate(steps: impl FnOnce(&mut Gate)) -> ExitCode {
    let mut gate = Gate::default();
    steps(&mut gate);
    exit_code(gate.print_summary())
}

fn run_python_module(gate: &mut Gate) {
    gate.run("Python module", python_module::test_built_module);
}

fn exit_code(passed: bool) -> ExitCode {
    if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn print_failure(failed: &Failed) -> ExitCode {
    eprintln!("xtask: {failed}");
    ExitCode::FAILURE
}

/// Replaces this process by one with the same arguments, for which the machine has that face.
fn exec_as_machine_variant(face: &MachineVariant) -> Result<(), Failed> {
    let program =
        std::env::current_exe().map_err(|error| Failed(format!("no path of this program: {error}")))?;
    let wearing = |argument: String| {
        argument.replacen("--face", "--wearing", usize::from(argument.starts_with("--face")))
    };
    let arguments: Vec<String> = std::env::args().skip(1).map(wearing).collect();
    machines::exec_with_variant(face, &program, &arguments).map(|never| match never {})
}

/// Runs the gate, or the selected part of it.
fn run_test_command(arguments: TestArguments) -> ExitCode {
    if !is_run_as_root() || !machine::can_create_namespaces() {
        eprintln!(
            "xtask: not root, or without CAP_SYS_ADMIN: tests that make network namespaces, load BPF programs or open \
             AF_XDP and packet sockets are skipped, and so is the VM lab"
        );
    }
    let mut gate = Gate::default();
    let is_whole = arguments.names.is_empty() && !arguments.quick;
    let programs = if arguments.quick {
        machine::install_programs_for_unit_tests
    } else {
        machine::install_programs_for_tests
    };
    gate.run("programs that tests start", programs);
    if is_whole {
        check::run_checks(&mut gate);
    }
    let built = if arguments.quick { QUICK } else { suite::ALL };
    let face = arguments.wearing.unwrap_or_default();
    let suite =
        TestSuite { filters: &arguments.names, face, ..TestSuite::with_gate_settings("tests", built) };
    gate.run("tests", || suite.outcome());
    if is_whole {
        gate.run("loom models", || {
            TestSuite::with_gate_settings("loom", &["--package", "nocopy-loom"]).outcome()
        });
        run_python_module(&mut gate);
        gate.run("documentation examples", suite::documentation_examples);
        gate.run("instruction guards", instructions::check_instruction_counts);
        if !arguments.no_vm {
            gate.run("VM lab", vm::run_unless_already_passed);
        }
    }
    exit_code(gate.print_summary())
}

/// The packages of `--quick`: few, and without a need for privileges.
const QUICK: &[&str] = &["--package", "nocopy-proto", "--package", "nocopy", "--lib"];
