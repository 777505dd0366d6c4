//! `nocopy serve nfs`, which exports a directory until it is asked to end; and the commands that copy from
//! servers without a mount.

mod arguments;
mod exposure;
mod live;
mod local_path;
mod remote;
mod summary;

use nocopy_proto::errno::ErrorCause;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use nocopy_report::{CommandEnd, Interrupt, Outcome, capability, print};
use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::process::{geteuid, umask};
use rustix::thread::CapabilitySet;

pub use arguments::NfsArguments;
use live::LiveTable;
pub use remote::{CatArguments, CpArguments, LsArguments, cat, cp, ls};
use summary::{ExportSummary, Summary};

use crate::client::{ClientError, escape_path};
use crate::export::{Caller, Export, ExportError, ImpersonationError};
use crate::server::core::CallerMapping;
use crate::server::{CONNECTIONS_MAX, Server, ServerError, ServerStatus, Settings};

const POLL_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Report(#[from] nocopy_report::Failure),
    #[error(transparent)]
    Export(#[from] ExportError),
    #[error(transparent)]
    Server(#[from] ServerError),
    #[error(transparent)]
    Act(#[from] ImpersonationError),
    #[error(
        "{option}: cannot be used; only a server started as root acts as other users; start it as root, or leave this out"
    )]
    NotRoot { option: &'static str },
    #[error("--listen {address}: no address to serve at{cause}; name an address of this host, or leave it out", cause = ErrorCause(.source))]
    Listen { address: String, source: io::Error },
    #[error("server: cannot wait for calls any more{cause}; start it again", cause = ErrorCause(.0))]
    Serve(#[source] io::Error),
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("buffers: cannot be allocated{cause}; end other programs to free memory", cause = ErrorCause(.0))]
    Memory(#[source] io::Error),
    #[error("{path}: cannot be read or written{cause}; {}", local_error_advice(.source), path = local_path::to_text(path), cause = ErrorCause(.source))]
    Local { path: PathBuf, source: io::Error },
    #[error(
        "{path}: not copied; it is a pipe, a socket or a device, and only files and directories are copied; read it into a file first, or write to it what 'nocopy cat' prints", path = local_path::to_text(path)
    )]
    Special { path: PathBuf },
    #[error(
        "{path}: became shorter while it was copied; another program changed it; copy it again", path = local_path::to_text(path)
    )]
    Shrunk { path: PathBuf },
    #[error(
        "{path}: not a directory; several sources are copied, so the target must be one; name a directory that exists"
    )]
    NotDirectory { path: String },
    #[error(
        "cp: cannot copy between these; one side must be nfs://HOST/PATH and the other a path of this host; use cp(1) between local paths, or copy to a local directory first"
    )]
    Sides,
    #[error(
        "{path}: the copy differs from byte {at} on; the file was changed during the copy, or the server or disk is faulty; copy it again"
    )]
    Differs { path: String, at: u64 },
    #[error(
        "{path}: not copied; it was replaced during the copy, by another copy to the same name; wait for that one to end, and copy it again"
    )]
    Replaced { path: String },
    #[error(
        "{path}: not copied; the server's directories have no end: they lie inside themselves, or more than {} inside each other, or too many beside each other; copy what you need of them one by one",
        remote::DEPTH_MAX
    )]
    Endless { path: String },
    #[error(
        "{path}: not followed; more than {} symbolic links follow each other, or they lead to themselves; name the file itself",
        remote::LINKS_MAX
    )]
    Links { path: String },
    #[error("{path}: not copied; its copy would be inside it, or itself; copy it to another directory")]
    IntoItself { path: String },
    #[error("copy: interrupted; a signal arrived; start it again")]
    Interrupted,
}

/// What to do about an error of a file of this host.
fn local_error_advice(error: &io::Error) -> &'static str {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE) => {
            "raise the limit of descriptors ('ulimit -n'): a copy holds one for each directory above"
        }
        Some(_) => "check the path and the permissions",
        None => "copy it again",
    }
}

impl Failure {
    /// Whether the server has answered about one file, and may have others.
    fn affects_one_file(&self) -> bool {
        match self {
            Self::Client(error) => error.status().is_some(),
            failure => matches!(failure, Self::Links { .. }),
        }
    }

    /// Whether every other file would fail in the same way.
    fn affects_all_files(&self) -> bool {
        match self {
            Self::Client(error) => matches!(error, ClientError::Transport(_) | ClientError::GivenUp { .. }),
            Self::Local { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Differs { .. }
            | Self::Special { .. }
            | Self::Shrunk { .. }
            | Self::NotDirectory { .. }
            | Self::Replaced { .. }
            | Self::Links { .. }
            | Self::IntoItself { .. }
            | Self::Endless { .. } => false,
            _ => true,
        }
    }
}

pub fn run(arguments: &NfsArguments) -> Result<Outcome, Failure> {
    let callers = caller_mapping(arguments)?;
    let interrupt = Interrupt::catch()?;
    let export =
        Arc::new(Export::open_named(&arguments.directory, arguments.state.as_deref(), arguments.fsid)?);
    if callers != CallerMapping::Server {
        Caller::check_impersonation()?;
    }
    let path = export.path().to_owned();
    let directory = local_path::to_text(&path);
    let handles_end = export.handle_expiry_text();
    let addresses = arguments.listen.local_addrs();
    let addresses =
        addresses.map_err(|source| Failure::Listen { address: arguments.listen.to_string(), source })?;
    let settings = Settings {
        addresses,
        allow: arguments.allow.clone(),
        is_stable: arguments.stable,
        is_writable: arguments.writable,
        callers,
        is_portmapper: arguments.portmap,
        connections_max: CONNECTIONS_MAX,
    };
    if arguments.writable {
        umask(Mode::empty()); // permissions are those that clients ask for
    }
    let server = Server::bind(export, settings.clone())?;
    capability::drop_all_but(needed_capabilities(callers, arguments.writable))?;
    let (address, addresses) = (server.address(), server.addresses());
    addresses.iter().for_each(|address| {
        print::print_status(format_args!(
            "nocopy: serving at nfs://{address}{}",
            escape_path(path.as_os_str().as_bytes())
        ));
    });
    let is_local = addresses.iter().all(|address| address.ip().is_loopback());
    if let Some(sentence) = exposure::exposure_warning(&settings, is_local, geteuid().as_raw()) {
        print::print_status(format_args!("nocopy: {sentence}"));
    }
    if let Some(end) = handles_end {
        print::print_status(format_args!(
            "nocopy: handles are stale once the file system of {directory} {end}"
        ));
    }
    let start = Instant::now();
    let mut ended = CommandEnd::Interrupted;
    let (accounts, done) =
        server.run(|progress| ended = wait_for_end(progress, arguments, &interrupt, start));
    let ended = if done.is_err() { CommandEnd::Failed } else { ended };
    let exported = ExportSummary { address, directory, stable: arguments.stable };
    let summary = Summary::from_statistics(ended, start.elapsed(), exported, &accounts);
    print::print_summary(&summary, arguments.json, done.err().map(Failure::Serve))
}

/// The users for whom calls are made: those that clients name, if the server is root. If it cannot act as
/// these, it does not serve: every call would have root's rights.
fn caller_mapping(arguments: &NfsArguments) -> Result<CallerMapping, Failure> {
    if geteuid().is_root() {
        let (is_root_trusted, is_any_port_trusted) = (arguments.no_root_squash, arguments.insecure);
        return Ok(CallerMapping::Users { is_root_trusted, is_any_port_trusted });
    }
    let of_root = [("--no-root-squash", arguments.no_root_squash), ("--insecure", arguments.insecure)];
    match of_root.into_iter().find(|(_, is_given)| *is_given) {
        Some((option, _)) => Err(Failure::NotRoot { option }),
        None => Ok(CallerMapping::Server),
    }
}

/// The capabilities of the server. If this process may read every file, so may the server.
fn needed_capabilities(callers: CallerMapping, is_writable: bool) -> CapabilitySet {
    let find = CapabilitySet::DAC_READ_SEARCH;
    let act = CapabilitySet::SETUID | CapabilitySet::SETGID;
    // Those that override file permissions, which a thread acting as another user does not have.
    let write =
        CapabilitySet::DAC_OVERRIDE | CapabilitySet::CHOWN | CapabilitySet::FOWNER | CapabilitySet::FSETID;
    match callers {
        CallerMapping::Server => find,
        // Devices are made by root of a client only.
        CallerMapping::Users { is_root_trusted: true, .. } if is_writable => {
            find | act | write | CapabilitySet::MKNOD
        }
        CallerMapping::Users { .. } if is_writable => find | act | write,
        CallerMapping::Users { .. } => find | act,
    }
}

/// Waits until the end is requested, the time is over, or the server fails.
fn wait_for_end(
    progress: &ServerStatus<'_>,
    arguments: &NfsArguments,
    interrupt: &Interrupt,
    start: Instant,
) -> CommandEnd {
    let mut live = LiveTable::new(start);
    loop {
        if interrupt.was_interrupted() {
            return CommandEnd::Interrupted;
        }
        if arguments.duration.is_some_and(|duration| start.elapsed() >= duration) {
            return CommandEnd::Duration;
        }
        if progress.is_failed() {
            return CommandEnd::Failed;
        }
        live.update(progress.statistics(), Instant::now());
        thread::sleep(POLL_INTERVAL);
    }
}
