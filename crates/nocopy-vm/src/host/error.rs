use std::io;
use std::path::PathBuf;

use nocopy_proto::errno::ErrorCause;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("test '{name}': not found; the lab has no such test; 'nocopy-vm list' lists them")]
    NoTest { name: String },
    #[error(
        "tests: none to run; no chosen test runs on the chosen machine and kernel; 'nocopy-vm list' shows where each runs (arm64 needs '--kernel arm64')"
    )]
    NoRow,
    #[error(
        "arm64: cannot run tests; no programs were built for it; run 'cargo xtask nightly aarch64', which builds them and passes them with --built"
    )]
    NothingBuilt,
    #[error("lab: not available to this user; it installs packages and makes namespaces; run it as root")]
    NotRoot,
    #[error(
        "lab: not available on this machine; it needs apt of Debian or Ubuntu for x86-64, and this is {found}; run it on one of them"
    )]
    OtherSystem { found: String },
    #[error(
        "apt: no source; its sources have no suite {codename} with component main; add Debian's own archive to /etc/apt"
    )]
    NoSource { codename: String },
    #[error(
        "{package}: not found; it is not in {suite}; check by 'apt-cache policy' that the mirror is complete"
    )]
    NoPackage { package: String, suite: String },
    #[error("{package}: has no kernel image; the packaging has changed; please report it")]
    NoImage { package: String },
    #[error(
        "lab: not available on this machine; its QEMU has no device '{device}'; install qemu-system-x86 8.0 or newer"
    )]
    NoDevice { device: &'static str },
    #[error("{0}")]
    Seed(String),
    #[error("lab: cannot start a thread{cause}; raise the limit on threads (ulimit -u)", cause = ErrorCause(.0))]
    Witness(io::Error),
    #[error("lab: no place for kernels; neither HOME nor XDG_CACHE_HOME is set; set one")]
    NoHome,
    #[error("{path}: cannot be read or written{cause}; check the path and its permissions", path = path.display(), cause = ErrorCause(.source))]
    File { path: PathBuf, source: io::Error },
    #[error("{program}: cannot be started{cause}; install it", cause = ErrorCause(.source))]
    Start { program: String, source: io::Error },
    #[error("{what}: failed ({status}); '{command}' printed: {words}; run it by hand to see more")]
    Command { what: String, command: String, status: std::process::ExitStatus, words: String },
}

impl Error {
    /// Whether the lab is not for this machine or this user, so that not running it is no failure.
    pub(crate) fn is_unsupported_machine(&self) -> bool {
        matches!(self, Self::NotRoot | Self::OtherSystem { .. } | Self::NoDevice { .. })
    }

    /// For `map_err`: the file an operation was about.
    pub(crate) fn for_file(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of other machines, and of package mirrors that lack something: made by hand.
    #[test]
    fn machine_errors_have_the_common_form() {
        let (suite, package) = ("bookworm".to_owned(), "linux-image-amd64".to_owned());
        for (error, expected) in [
            (
                Error::NoRow,
                "tests: none to run; no chosen test runs on the chosen machine and kernel; 'nocopy-vm list' shows where each runs (arm64 needs '--kernel arm64')",
            ),
            (
                Error::NothingBuilt,
                "arm64: cannot run tests; no programs were built for it; run 'cargo xtask nightly aarch64', which builds them and passes them with --built",
            ),
            (
                Error::NotRoot,
                "lab: not available to this user; it installs packages and makes namespaces; run it as root",
            ),
            (
                Error::OtherSystem { found: "Fedora".into() },
                "lab: not available on this machine; it needs apt of Debian or Ubuntu for x86-64, and this is Fedora; run it on one of them",
            ),
            (
                Error::NoSource { codename: suite.clone() },
                "apt: no source; its sources have no suite bookworm with component main; add Debian's own archive to /etc/apt",
            ),
            (
                Error::NoPackage { package: package.clone(), suite },
                "linux-image-amd64: not found; it is not in bookworm; check by 'apt-cache policy' that the mirror is complete",
            ),
            (
                Error::NoImage { package },
                "linux-image-amd64: has no kernel image; the packaging has changed; please report it",
            ),
            (
                Error::NoDevice { device: "igb" },
                "lab: not available on this machine; its QEMU has no device 'igb'; install qemu-system-x86 8.0 or newer",
            ),
            (
                Error::Witness(io::Error::from_raw_os_error(11)),
                "lab: cannot start a thread (EAGAIN); resource temporarily unavailable; raise the limit on threads (ulimit -u)",
            ),
            (Error::NoHome, "lab: no place for kernels; neither HOME nor XDG_CACHE_HOME is set; set one"),
            (
                Error::Start { program: "virtiofsd".into(), source: io::Error::from_raw_os_error(2) },
                "virtiofsd: cannot be started (ENOENT); no such file or directory; install it",
            ),
        ] {
            assert_eq!(error.to_string(), expected);
        }
    }
}
