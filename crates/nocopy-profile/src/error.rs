//! Errors of profiling.

use nocopy_proto::errno::{ErrorCause, ErrorName};
use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::process::ExitStatus;

use aya::maps::MapError;
use aya::programs::ProgramError;
use aya::{BtfError, EbpfError};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Report(#[from] nocopy_report::Failure),
    #[error(
        "profile: not available on {architecture}; its BPF programs know only the registers of x86_64 and aarch64; profile on one of these"
    )]
    Architecture { architecture: &'static str },
    #[error("profile: not permitted; this process lacks {name}; run it as root or grant the capability")]
    Capability { name: &'static str },
    #[error(
        "profile: cannot read the kernel's type information{cause}; use a kernel built with CONFIG_DEBUG_INFO_BTF",
        cause = RootCause(.0)
    )]
    Types(#[source] BtfError),
    #[error(
        "profile: the kernel refused the BPF programs{cause}; 'nocopy doctor' shows what this kernel lacks",
        cause = RootCause(.0)
    )]
    Load(#[source] EbpfError),
    #[error("profile: cannot attach to the tracepoint {tracepoint}{cause}; use Linux 5.15 or later, with CAP_BPF and CAP_PERFMON", cause = RootCause(.source))]
    Attach { tracepoint: &'static str, source: ProgramError },
    #[error("profile: the counters cannot be read{cause}; start it again", cause = RootCause(.0))]
    Read(#[source] MapError),
    #[error(
        "profile: cannot name the kernel's functions; /proc/kallsyms hides their addresses; grant CAP_SYSLOG, and set \
         kernel.kptr_restrict to 0 or 1"
    )]
    SymbolsHidden,
    #[error("{path}: cannot be read{cause}; mount /proc, and let this process read it", cause = ErrorCause(.source))]
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
    #[error("{program}: cannot be run{cause}; name a program that is there, with its path", cause = ErrorCause(.source))]
    Start { program: String, source: io::Error },
    #[error(
        "{program}: not started; the process that was to run it ended early ({status}); look at what it printed, or which signal ended it, and try again"
    )]
    EndedEarly { program: String, status: ExitStatus },
    #[error("{program}: not started; 'nocopy profile' ended before it watched the process; start it again")]
    ProfilerEnded { program: String },
    #[error("{program}: cannot be waited for{cause}; start nocopy where SIGCHLD is not ignored", cause = ErrorCause(.source))]
    Wait { program: String, source: io::Error },
}

/// The innermost error, as [`ErrorCause`] writes it, because aya's own errors name only the system call.
struct RootCause<'a>(&'a (dyn StdError + 'static));

impl fmt::Display for RootCause<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let first = root_cause(self.0);
        match first.downcast_ref() {
            Some(error) => ErrorCause(error).fmt(f),
            None => write!(f, "; {first}"),
        }
    }
}

/// The innermost error, for a note: `permission denied (EACCES)`.
pub(crate) fn root_cause_text(error: &(dyn StdError + 'static)) -> String {
    let first = root_cause(error);
    first.downcast_ref().map_or_else(|| first.to_string(), |error| ErrorName(error).to_string())
}

fn root_cause<'a>(error: &'a (dyn StdError + 'static)) -> &'a (dyn StdError + 'static) {
    error.source().map_or(error, root_cause)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_architecture_error_names_cause_and_action() {
        assert_eq!(
            Error::Architecture { architecture: "riscv64" }.to_string(),
            "profile: not available on riscv64; its BPF programs know only the registers of x86_64 and aarch64; profile on one of these"
        );
    }
}
