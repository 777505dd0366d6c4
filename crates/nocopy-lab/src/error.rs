use nocopy_proto::errno::ErrorCause;
use std::io;
use std::path::PathBuf;

use crate::Missing;

/// Why a laboratory could not be made or changed, or a library cannot be preloaded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The machine lacks something; a test may skip on this (see [`crate::skip`]).
    #[error("lab: {0}")]
    Missing(#[from] Missing),
    /// A thread that enters a namespace could not be started.
    #[error("network namespace: no thread to run in it{cause}; raise the limit on threads (ulimit -u)", cause = ErrorCause(.0))]
    Thread(#[source] io::Error),
    /// Making, opening or entering a network namespace failed.
    #[error(
        "network namespace: cannot {operation} one{cause}; check that /proc is mounted and that no seccomp filter denies it", cause = ErrorCause(.source))]
    Namespace {
        /// The operation, a verb.
        operation: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The kernel refused a netlink request.
    #[error("lab: cannot {operation}{cause}; see 'dmesg' for the kernel's messages", cause = ErrorCause(.source))]
    Netlink {
        /// The operation, with the interface's name.
        operation: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A setting under /proc/sys could not be written inside the namespace.
    #[error("{path}: cannot be written{cause}; mount /proc/sys writable", cause = ErrorCause(.source))]
    Setting {
        /// The file.
        path: String,
        /// Why.
        source: io::Error,
    },
    /// Both ends are up, but one has no carrier.
    #[error(
        "{interface}: no carrier after {waited_ms} ms; the kernel is busy or the other end is down; try again"
    )]
    NoCarrier {
        /// The interface waited for.
        interface: &'static str,
        /// How long.
        waited_ms: u128,
    },
    /// Interfaces that are not as they were.
    #[error(
        "interfaces: not all put back as they were; {source}; find them by their link address ('ip link'), and set with 'ip link' and 'ip address' what is missing: {before}"
    )]
    NotPutBack {
        /// How they were.
        before: String,
        /// The first thing that failed.
        source: Box<Error>,
    },
    /// A library that is preloaded is nowhere.
    #[error(
        "{file}: not found; it is not at {}, and 'cargo install' installs no libraries; install the release's package nocopy (.deb), copy the file from lib/nocopy of the release's archive (.tar.gz) to one of these places, or name it with --library; in a clone 'cargo build --release' builds it",
        join_paths(places)
    )]
    NoLibrary {
        /// Its name.
        file: &'static str,
        /// Where it was looked for.
        places: Vec<PathBuf>,
    },
    /// A library has a path that `LD_PRELOAD` cannot name.
    #[error(
        "{path}: cannot be preloaded; LD_PRELOAD ends a name at a blank or a colon, and no link to it can be made{cause}; install it elsewhere, and name it with --library",
        path = path.display(), cause = ErrorCause(.source)
    )]
    LibraryPath {
        /// The library.
        path: PathBuf,
        /// Why there is no link.
        source: io::Error,
    },
}

fn join_paths(places: &[PathBuf]) -> String {
    let names: Vec<_> = places.iter().map(|place| place.display().to_string()).collect();
    names.join(", ")
}

impl Error {
    /// The missing capability or feature, if that is the reason.
    pub fn missing(&self) -> Option<&Missing> {
        match self {
            Error::Missing(missing) => Some(missing),
            _ => None,
        }
    }

    /// Whether the error is that an interface does not exist, or that its name is too long (`ERANGE`).
    pub fn is_missing_interface(&self) -> bool {
        let errno = match self {
            Error::Netlink { source, .. } => source.raw_os_error(),
            _ => None,
        };
        matches!(errno, Some(nix::libc::ENODEV | nix::libc::ERANGE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The errors of namespaces and netlink are provoked by tests of the command; these take other machines.
    #[test]
    fn errors_print_fact_cause_and_action() {
        for (error, expected) in [
            (
                Error::NoCarrier { interface: "nc0", waited_ms: 5000 },
                "nc0: no carrier after 5000 ms; the kernel is busy or the other end is down; try again",
            ),
            (
                Error::Missing(Missing::Kernel("CONFIG_VETH")),
                "lab: needs CONFIG_VETH; this kernel does not have it; use a kernel built with it",
            ),
            (
                Error::Missing(Missing::Device("a card with zero-copy XDP")),
                "lab: needs a card with zero-copy XDP; this machine does not have it; run it where there is one",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
