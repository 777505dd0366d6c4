//! A program that reads, as the bench sees it.

use std::io;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nix::sys::resource::{UsageWho, getrusage};
use nocopy_report::capability;

use crate::baseline::nfs_client::{ClientMessage, ReadResult};
use crate::child::ScopedChild;
use crate::cpu;
use crate::lines::ChildOutputLines;
use crate::stage::NetworkSite;

/// A copy that takes longer counts as broken.
const COPY_MAX: Duration = Duration::from_secs(120);

/// The interval of measurements of its memory.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

#[derive(Debug)]
pub(super) struct ReaderProcess {
    _child: ScopedChild,
    messages: ChildOutputLines,
}

impl ReaderProcess {
    pub(super) fn start(site: &NetworkSite, command: &mut Command) -> io::Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let mut child = ScopedChild(spawn_unprivileged(site, command)?);
        let messages = child.stdout.take().expect("it is piped");
        Ok(Self { _child: child, messages: ChildOutputLines::new(messages) })
    }

    pub(super) fn wait_until_measuring(&mut self) -> io::Result<()> {
        match self.next_message()? {
            ClientMessage::Measuring => Ok(()),
            other => Err(unexpected_message(&other)),
        }
    }

    /// Its work, once the window is over.
    pub(super) fn wait_for_result(&mut self) -> io::Result<ReadResult> {
        match self.next_message()? {
            ClientMessage::Done(result) => Ok(result),
            other => Err(unexpected_message(&other)),
        }
    }

    fn next_message(&mut self) -> io::Result<ClientMessage> {
        match serde_json::from_slice(&self.messages.next_line()?)? {
            ClientMessage::Failed(why) => Err(io::Error::other(why)),
            message => Ok(message),
        }
    }
}

fn unexpected_message(message: &ClientMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its process wrote {message:?} out of turn"))
}

/// Starts on the processor of its side, without privileges.
fn spawn_unprivileged(site: &NetworkSite, command: &mut Command) -> io::Result<Child> {
    site.run_pinned(|| {
        capability::drop_others(capability::NONE)?;
        command.spawn()
    })
}

#[derive(Debug, Clone, Copy)]
pub(super) struct CopyMeasurement {
    pub(super) elapsed: Duration,
    pub(super) cpu: Duration,
    /// The peak of its memory, and the peak after a quarter of the time.
    pub(super) peak_bytes: u64,
    pub(super) early_peak_bytes: u64,
}

pub(super) fn run_copy(site: &NetworkSite, command: &mut Command) -> io::Result<CopyMeasurement> {
    let before = cpu_time_of_children()?;
    let start = Instant::now();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = spawn_unprivileged(site, command)?;
    let (id, mut peaks) = (child.id().to_string(), Vec::new());
    while child.try_wait()?.is_none() {
        if start.elapsed() > COPY_MAX {
            child.kill()?;
        }
        // A process that has just ended has no memory any more.
        peaks.extend(cpu::peak_memory_kib(&id));
        sleep(POLL_INTERVAL);
    }
    let elapsed = start.elapsed();
    let ended = child.wait_with_output()?;
    if !ended.status.success() {
        let errors = String::from_utf8_lossy(&ended.stderr);
        let first = errors.lines().next().unwrap_or_default();
        return Err(io::Error::other(format!("it ended ({}), and printed '{first}'", ended.status)));
    }
    let cpu = cpu_time_of_children()?.saturating_sub(before);
    let at = |index: usize| peaks.get(index).copied().unwrap_or(0) << 10;
    let (peak_bytes, early_peak_bytes) = (at(peaks.len().saturating_sub(1)), at(peaks.len() / 4));
    Ok(CopyMeasurement { elapsed, cpu, peak_bytes, early_peak_bytes })
}

/// Processor time of the processes that were waited for.
fn cpu_time_of_children() -> io::Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_CHILDREN)?;
    let time = [usage.user_time(), usage.system_time()];
    Ok(time
        .map(|time| Duration::from_micros((time.tv_sec() * 1_000_000 + time.tv_usec()) as u64))
        .iter()
        .sum())
}
