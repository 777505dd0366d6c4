//! Why nothing could be profiled. One line each: fact, cause, action.

use std::io;
use std::process::ExitStatus;

use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::{BtfError, EbpfError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Report(#[from] nocopy_report::Failure),
    #[error(transparent)]
    Bench(#[from] nocopy_bench::Failure),
    #[error(transparent)]
    Lab(#[from] nocopy_lab::Error),
    #[error(
        "cannot profile on {architecture}: the programs know the registers and calls of x86_64 and aarch64 only: profile on one \
         of these"
    )]
    Architecture { architecture: &'static str },
    #[error("cannot profile: this process lacks {name}: run it as root or grant the capability")]
    Capability { name: &'static str },
    #[error(
        "cannot profile: the kernel's type information is not there: {0}: use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    Types(#[source] BtfError),
    #[error(
        "cannot profile: the kernel refused the programs: {0}: 'nocopy doctor' says what this kernel lacks"
    )]
    Load(#[source] EbpfError),
    #[error(
        "cannot profile: the kernel refused to attach at {tracepoint}: {source}: use Linux 5.15 or later"
    )]
    Attach { tracepoint: &'static str, source: ProgramError },
    #[error("cannot read what was counted: {0}: start it again")]
    Read(#[source] MapError),
    #[error(
        "cannot name the kernel's functions: /proc/kallsyms hides their addresses: grant CAP_SYSLOG, and set \
         kernel.kptr_restrict to 0 or 1"
    )]
    SymbolsHidden,
    #[error("cannot read {path}: {source}: mount /proc, and let this process read it")]
    Proc { path: String, source: io::Error },
    #[error("no process {id}: it has ended, or never was: 'ps' lists them")]
    NoProcess { id: u32 },
    #[error("no process is called '{name}': 'ps -e' lists the names, which have 15 letters at most")]
    NoName { name: String },
    #[error(
        "cannot tell processes by their number: this process is in a PID namespace of its own, and the kernel counts in the \
         first one: profile from outside the container, or by --port"
    )]
    PidNamespace,
    #[error("more than {max} ports: give fewer")]
    TooManyPorts { max: usize },
    #[error("{program}: cannot be run: {source}: name a program that is there, with its path")]
    Start { program: String, source: io::Error },
    #[error(
        "{program}: not started: the process that was to run it ended with {status} before it could be watched: see what it \
         printed, or which signal ended it, and try again"
    )]
    EndedEarly { program: String, status: ExitStatus },
    #[error("{program}: not started: 'nocopy profile' ended before it watched the process: start it again")]
    ProfilerEnded { program: String },
    #[error("{program}: cannot be waited for: {source}: start nocopy where SIGCHLD is not ignored")]
    Wait { program: String, source: io::Error },
}
