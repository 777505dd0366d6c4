use std::io;
use std::path::PathBuf;

/// Why the lab cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no test of the name '{name}'; 'nocopy-vm list' lists them")]
    NoTest { name: String },
    #[error(
        "no test that was asked for runs there; 'nocopy-vm list' says where each does, and those on arm64 need '--kernel arm64'"
    )]
    NoRow,
    #[error(
        "arm64 machines need programs that were built for them: run 'cargo xtask nightly aarch64', which gives them by --built"
    )]
    NothingBuilt,
    #[error("not available to this user: the lab installs packages and makes namespaces: run it as root")]
    NotRoot,
    #[error(
        "not available on this machine: the lab fetches programs and kernels by apt of Debian or Ubuntu for x86-64, this is {found}: \
         run it on one of them"
    )]
    OtherSystem { found: String },
    #[error(
        "apt's sources name no suite {codename} with component main: add Debian's own archive to /etc/apt"
    )]
    NoSource { codename: String },
    #[error("{package} is not in {suite}: look with 'apt-cache policy' whether the mirror is complete")]
    NoPackage { package: String, suite: String },
    #[error("{package} holds no kernel image: report it, the packaging has changed")]
    NoImage { package: String },
    #[error(
        "not available on this machine: its release's QEMU has no device '{device}': install qemu-system-x86 8.0 or newer"
    )]
    NoDevice { device: &'static str },
    #[error("{0}")]
    Seed(String),
    #[error("cannot start a thread: {0}")]
    Witness(io::Error),
    #[error("neither HOME nor XDG_CACHE_HOME is set: set one, the lab keeps kernels there")]
    NoHome,
    #[error("{path}: {source}")]
    File { path: PathBuf, source: io::Error },
    #[error("cannot start '{program}': {source}: install it")]
    Start { program: String, source: io::Error },
    #[error("{what} failed ({status}): '{command}' said: {words}")]
    Command { what: String, command: String, status: std::process::ExitStatus, words: String },
}

impl Error {
    /// Whether the lab is not for this machine or this user, so that not running it is no failure.
    pub(crate) fn is_of_the_machine(&self) -> bool {
        matches!(self, Self::NotRoot | Self::OtherSystem { .. } | Self::NoDevice { .. })
    }

    /// For `map_err`: the file an operation was about.
    pub(crate) fn at(path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { path, source }
    }
}
