//! Everything that ends a command with exit code 2. One line each: fact, cause, action.

use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Lab(#[from] nocopy_lab::Error),
    #[error(transparent)]
    Xdp(#[from] nocopy::integration::xdp::Error),
    #[error(transparent)]
    Open(#[from] nocopy::port::OpenError),
    #[error(transparent)]
    Socket(#[from] nocopy::udp::OpenError),
    #[error(transparent)]
    Statistics(#[from] nocopy::integration::statistics::SnapshotError),
    #[error(transparent)]
    Send(#[from] crate::send::Error),
    #[error(transparent)]
    SendUdp(#[from] crate::send::UdpError),
    #[error(transparent)]
    SendTcp(#[from] crate::send::TcpError),
    #[error(transparent)]
    RecvUdp(#[from] crate::recv::UdpError),
    #[error(transparent)]
    RecvTcp(#[from] crate::recv::TcpError),
    #[error(transparent)]
    Ping(#[from] crate::ping::Error),
    #[error(transparent)]
    Serve(#[from] crate::serve::Error),
    #[error(transparent)]
    Call(#[from] crate::call::Error),
    #[error(transparent)]
    Profile(#[from] crate::profile::Error),
    #[error(transparent)]
    MessageEndpoint(#[from] nocopy::message::OpenError),
    #[error("cannot write {path}: {source}: {}", output_advice(source), path = path.display())]
    Output { path: PathBuf, source: io::Error },
    #[error("cannot read {path}: {source}: name a file that exists and is readable", path = path.display())]
    Input { path: PathBuf, source: io::Error },
    #[error("{path}: not results as nocopy writes them: {source}: give a file of 'nocopy bench --json' or 'nocopy profile sweep --json'", path = path.display())]
    Results { path: PathBuf, source: serde_json::Error },
    #[error("{path}: results of the kind '{schema}', which this nocopy does not show: give those of 'nocopy bench' or 'nocopy profile sweep', or use a newer nocopy", path = path.display())]
    Schema { path: PathBuf, schema: String },
    #[error("{path}: the page would take the place of these results: name another file with --html", path = path.display())]
    PageOverResults { path: PathBuf },
    #[error(transparent)]
    Filter(#[from] nocopy::filter::CompileError),
    #[error("{path}: not a filter: {source}", path = path.display())]
    Bytecode { path: PathBuf, source: nocopy_proto::filter::ParseError },
    #[error(transparent)]
    Capture(#[from] nocopy::capture::OpenError),
    #[error("{path}: the file exists: give --force to overwrite it, or another name", path = path.display())]
    Exists { path: PathBuf },
    #[error("cannot record to standard output: a pipe takes no direct writes: name a file")]
    RecordToPipe,
    #[error("{option} goes with {needed} only: {action}")]
    Needs { option: &'static str, needed: &'static str, action: &'static str },
    #[error("{path}: the recording ended early: {source}: {}: what the file has is whole", advice(source), path = path.display())]
    RecordWrite { path: PathBuf, source: io::Error },
    #[error("{interface}: the recording ended early: {source}: what the file has is whole")]
    RecordSource { interface: String, source: io::Error },
    #[error("cannot print: {0}: check where the output goes")]
    Print(#[source] io::Error),
    #[error("cannot give up capabilities: {0}: start it where capset(2) and prctl(2) are allowed")]
    Capabilities(#[source] io::Error),
    #[error("cannot catch signals: {0}: start it where sigaction(2) is allowed")]
    Signals(#[source] io::Error),
    #[error("no manual page for '{name}': nocopy has no such command: see 'nocopy --help'")]
    NoSuchCommand { name: String },
    #[error(
        "cannot use {interface} as both ends: a frame must go from one to the other: give --peer another interface"
    )]
    SameInterface { interface: String },
    #[error("{interface}: no such interface in this network namespace: 'ip link' lists them")]
    NoInterface { interface: String },
    #[error(
        "{interface} has no carrier: it is down or not connected: run 'ip link set {interface} up' and check the cable"
    )]
    NoCarrier { interface: String },
    #[error(
        "{interface} has an MTU of {mtu_bytes} bytes: frames of {frame_bytes} do not fit: raise it to 1500"
    )]
    SmallMtu { interface: String, mtu_bytes: u32, frame_bytes: usize },
    #[error(
        "nothing to measure: no method of the chosen workloads is among those given by --method: leave one out"
    )]
    NothingToMeasure,
    #[error(
        "{workload}: not between two interfaces of one namespace, where the kernel delivers by loopback: leave out --interface \
         and --peer"
    )]
    Loopback { workload: String },
    #[error("not a task: {0}: this command is for 'nocopy bench' alone")]
    Task(#[source] serde_json::Error),
    #[error(transparent)]
    Receive(io::Error),
    #[error("{interface}: its packets cannot be taken: {why}: leave out '--take' to look on")]
    NotTaken { interface: String, why: String },
    #[error("{method}: cannot {doing}: {source}: {action}")]
    Step { method: &'static str, doing: &'static str, source: io::Error, action: &'static str },
}

impl Failure {
    pub(crate) fn is_broken_pipe(&self) -> bool {
        matches!(self, Failure::Print(error) if error.kind() == io::ErrorKind::BrokenPipe)
    }

    /// Whether a signal, such as a stop and the word to go on, ended a call early: nothing is wrong.
    pub(crate) fn is_interrupted(&self) -> bool {
        match self {
            Failure::Step { source, .. } | Failure::Receive(source) => {
                source.kind() == io::ErrorKind::Interrupted
            }
            _ => false,
        }
    }

    /// What it means that a file could not be opened for writing.
    pub(crate) fn output(path: &Path, source: io::Error) -> Failure {
        match source.kind() {
            io::ErrorKind::AlreadyExists => Failure::Exists { path: path.into() },
            _ => Failure::Output { path: path.into(), source },
        }
    }

    /// For `map_err`: what a lookup of an interface failed for.
    pub(crate) fn lookup(interface: &str) -> impl FnOnce(nocopy_lab::Error) -> Failure {
        move |error| match error {
            // `ERANGE`: no interface has so long a name.
            nocopy_lab::Error::Netlink { source, .. }
                if matches!(source.raw_os_error(), Some(libc::ENODEV | libc::ERANGE)) =>
            {
                Failure::NoInterface { interface: interface.into() }
            }
            other => other.into(),
        }
    }

    /// For `map_err`: gives an errno its fact and action.
    pub(crate) fn step(
        method: &'static str,
        doing: &'static str,
        action: &'static str,
    ) -> impl FnOnce(io::Error) -> Failure {
        move |source| Failure::Step { method, doing, source, action }
    }
}

/// What to do when a file cannot be written, or not to its end.
fn output_advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => "free space, or name a file elsewhere",
        io::ErrorKind::FileTooLarge => "raise 'ulimit -f', or name a file on another file system",
        _ if error.raw_os_error() == Some(libc::ELOOP) => "name the file itself, and no symbolic link to it",
        _ if error.raw_os_error() == Some(libc::EPERM) => {
            "the file is protected, or its file system has no permissions: name another file"
        }
        _ => "name a file in a directory that exists and is writable",
    }
}

/// What to do when a recording cannot be written.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            "free space, or keep only the last files with --rotate-size and --files"
        }
        io::ErrorKind::FileTooLarge => "raise 'ulimit -f', or use --rotate-size",
        io::ErrorKind::NotFound | io::ErrorKind::PermissionDenied | io::ErrorKind::AlreadyExists => {
            "check the directory"
        }
        _ => "check the disk",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_no_reason_to_look_for_a_directory() {
        let said = |errno: i32| {
            let source = io::Error::from_raw_os_error(errno);
            Failure::Output { path: "/mnt/file".into(), source }.to_string()
        };
        assert!(
            said(libc::ENOSPC).ends_with("free space, or name a file elsewhere"),
            "{}",
            said(libc::ENOSPC)
        );
        assert!(said(libc::EACCES).contains("directory that exists and is writable"));
    }
}
