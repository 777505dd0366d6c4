//! Reports on each handle to `nocopy run`, if that has started the program, and requests for filters.
//!
//! This must not disturb the program. It waits only for the answer to a request, and only if `nocopy run` has
//! answered before. It raises no signal, prints nothing, and returns no errors except those of requests. A
//! report that does not arrive is ignored.

mod channel;

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use nocopy::integration::Generation;
use nocopy_proto::filter::Program;
use nocopy_proto::run::{ClosedHandle, JoinRequest, LibraryMessage, OpenedHandle, VERSION, clip_text};
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};

use crate::environment;
use crate::timed_wait::lock_within;
use channel::RunnerChannel;
pub(crate) use nocopy_proto::run::{CaptureMode, CapturingLibrary, FilterLocation, HandleCounts};

/// Why a filter is not in front of the packets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FilterRefusal {
    /// The earlier one still is.
    Unchanged(String),
    /// Whether it is, `nocopy run` does not say, since it is stopped or gone. Should it go on, it removes
    /// every filter.
    Uncertain,
}

impl fmt::Display for FilterRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Unchanged(why) => why,
            Self::Uncertain => {
                "filter: not known to be set; 'nocopy run' stopped answering while it loaded the filter; open the handle anew"
            }
        })
    }
}

/// The process that has reported a handle.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ReportingProcess {
    process: Pid,
    channel: u64,
}

impl ReportingProcess {
    pub(crate) fn has_exited(self) -> bool {
        test_kill_process(self.process) == Err(Errno::SRCH)
    }
}

/// Reports a handle; returns by whom, if `nocopy run` has started this program.
pub(crate) fn report_opened(
    handle: u64,
    interface: &str,
    library: CapturingLibrary,
    promiscuous: bool,
    snap_bytes: u32,
) -> Option<ReportingProcess> {
    let channel = open_channel()?;
    let interface = clip_text(interface);
    let library = clip_texts(library);
    channel.send_message(&LibraryMessage::Opened(OpenedHandle {
        handle,
        interface,
        library,
        promiscuous,
        snap_bytes,
    }));
    Some(ReportingProcess { process: getpid(), channel: channel.number })
}

/// Reports that a handle is this process's now: it was forked by the one that has opened it, and that has
/// ended.
pub(crate) fn report_inherited(handle: u64, opener: ReportingProcess) {
    send_message(|| LibraryMessage::Inherited { handle, channel: opener.channel });
}

/// Reports where a handle's filter runs from now on; `None`: it has none.
pub(crate) fn report_filter(handle: u64, place: Option<FilterLocation>) {
    let place = place.map(|place| match place {
        FilterLocation::UserSpace { why } => FilterLocation::UserSpace { why: clip_text(&why) },
        other => other,
    });
    send_message(|| LibraryMessage::Filter { handle, place });
}

/// Sends `nocopy run` a control that can replace the filter of a handle's packets, for the time when this
/// process may no longer do that: `put` sends it through a socket (`FilterControl::send`), and returns
/// whether that succeeded.
pub(crate) fn share_filter_control(handle: u64, put: impl FnOnce(BorrowedFd<'_>) -> bool) {
    if let Some(channel) = open_channel() {
        channel.send_control(handle, put);
    }
}

/// Asks for a filter in front of a handle's packets, or with `None` for none, and waits for the answer, but
/// not without end. Errors: it could not be installed.
pub(crate) fn request_filter(handle: u64, filter: Option<&Program>) -> Result<(), FilterRefusal> {
    let channel = open_channel().ok_or_else(|| {
        FilterRefusal::Unchanged(
            "loading it takes privileges that the program has given up; start it with 'nocopy run'".into(),
        )
    })?;
    channel.request_filter(handle, filter)
}

pub(crate) fn report_closed(handle: u64, counts: HandleCounts, sending: Option<&str>) {
    send_message(|| LibraryMessage::Closed(ClosedHandle { handle, counts, sending: sending.map(clip_text) }));
}

fn clip_texts(library: CapturingLibrary) -> CapturingLibrary {
    match library {
        CapturingLibrary::System { why } => CapturingLibrary::System { why: clip_text(&why) },
        CapturingLibrary::Ours { mode, note } => {
            CapturingLibrary::Ours { mode: mode.clip(), note: note.as_deref().map(clip_text) }
        }
    }
}

fn send_message(message: impl FnOnce() -> LibraryMessage) {
    if let Some(channel) = open_channel() {
        channel.send_message(&message());
    }
}

/// This process's connection to `nocopy run`, as far as it is known.
#[derive(Debug)]
enum RunnerConnection {
    Unknown,
    /// No `nocopy run` listens to processes of this generation.
    Absent(Generation),
    Open(Generation, Arc<RunnerChannel>),
}

static CONNECTION: Mutex<RunnerConnection> = Mutex::new(RunnerConnection::Unknown);

/// How long another thread may have the channel: it waits for nothing. In the child of a fork it may be held
/// without end.
const LOCK_TIMEOUT: Duration = Duration::from_millis(100);

/// The channel, opened at first use, and again if it was lost; the child of a fork has its own.
fn open_channel() -> Option<Arc<RunnerChannel>> {
    let mut connection = lock_within(&CONNECTION, LOCK_TIMEOUT)?;
    let lost = match &*connection {
        RunnerConnection::Open(generation, channel) if !generation.is_outdated() => {
            if channel.is_open() {
                return Some(Arc::clone(channel));
            }
            // The program has closed it, among descriptors that it does not know.
            Some(channel.number)
        }
        RunnerConnection::Absent(generation) if !generation.is_outdated() => return None,
        _ => None,
    };
    let now = Generation::current();
    let opened = environment::runner_address().and_then(|runner| {
        let (key, channel) = (runner.key, lost.unwrap_or_else(new_channel_number));
        let join = JoinRequest {
            version: VERSION,
            process: std::process::id(),
            program: program_name(),
            key,
            channel,
        };
        RunnerChannel::open(&runner, join).ok()
    });
    let opened = opened.map(Arc::new);
    *connection = opened
        .as_ref()
        .map_or(RunnerConnection::Absent(now), |channel| RunnerConnection::Open(now, Arc::clone(channel)));
    opened
}

/// A number for a channel, which no other program has had in this process: the time.
fn new_channel_number() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec.cast_unsigned().wrapping_mul(1_000_000_000).wrapping_add(now.tv_nsec.cast_unsigned())
}

fn program_name() -> String {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = std::path::Path::new(&path).file_name().unwrap_or(&path);
    clip_text(&name.to_string_lossy())
}
