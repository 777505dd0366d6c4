//! Errors of profiling.

use nocopy_proto::errno::Why;
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
        "profile: not available on {architecture}; its BPF programs know only the registers of x86_64 and aarch64; profile on one of these"
    )]
    Architecture { architecture: &'static str },
    #[error("profile: not permitted; this process lacks {name}; run it as root or grant the capability")]
    Capability { name: &'static str },
    #[error(
        "profile: cannot read the kernel's type information (BTF); {0}; use a kernel built with CONFIG_DEBUG_INFO_BTF"
    )]
    Types(#[source] BtfError),
    #[error(
        "profile: the kernel refused the BPF programs; {0}; 'nocopy doctor' shows what this kernel lacks"
    )]
    Load(#[source] EbpfError),
    #[error("profile: cannot attach to the tracepoint {tracepoint}; {source}; use Linux 5.15 or later")]
    Attach { tracepoint: &'static str, source: ProgramError },
    #[error("profile: the counters cannot be read; {0}; start it again")]
    Read(#[source] MapError),
    #[error(
        "profile: cannot name the kernel's functions; /proc/kallsyms hides their addresses; grant CAP_SYSLOG, and set \
         kernel.kptr_restrict to 0 or 1"
    )]
    SymbolsHidden,
    #[error("{path}: cannot be read{cause}; mount /proc, and let this process read it", cause = Why(.source))]
    Proc { path: String, source: io::Error },
    #[error("--pid {id}: no such process; it has ended, or never existed; 'ps -e' lists them")]
    NoProcess { id: u32 },
    #[error("--comm '{name}': no such process; names have 15 letters at most; 'ps -e' lists them")]
    NoName { name: String },
    #[error(
        "profile: cannot select a process by its number; numbers in this PID namespace differ from the host's, which BPF programs see; profile from outside the container, or by --port"
    )]
    PidNamespace,
    #[error("--port: too many ports; at most {max} are counted; give fewer")]
    TooManyPorts { max: usize },
    #[error("{program}: cannot be run{cause}; name a program that is there, with its path", cause = Why(.source))]
    Start { program: String, source: io::Error },
    #[error(
        "{program}: not started; the process that was to run it ended early ({status}); look at what it printed, or which signal ended it, and try again"
    )]
    EndedEarly { program: String, status: ExitStatus },
    #[error("{program}: not started; 'nocopy profile' ended before it watched the process; start it again")]
    ProfilerEnded { program: String },
    #[error("{program}: cannot be waited for{cause}; start nocopy where SIGCHLD is not ignored", cause = Why(.source))]
    Wait { program: String, source: io::Error },
}
