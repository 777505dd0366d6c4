//! Programs that record packets into a file, run as users run them.

use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::retry_on_intr;
use rustix::process::{Pid, Signal, kill_process};

use crate::child::ScopedChild;
use crate::cpu;
use crate::lines::PATIENCE;

/// The buffer of each program: small compared with the sent data, so that writing must keep up.
const BUFFER_MIB: u32 = 64;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RecorderKind {
    Nocopy,
    Tcpdump,
    Dumpcap,
}

impl RecorderKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            RecorderKind::Nocopy => "record",
            RecorderKind::Tcpdump => "tcpdump",
            RecorderKind::Dumpcap => "dumpcap",
        }
    }

    pub(crate) fn is_installed(self) -> bool {
        let asked = match self {
            RecorderKind::Nocopy => return true,
            other => Command::new(other.name())
                .arg("--version")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .status(),
        };
        asked.is_ok_and(|status| status.success())
    }

    fn command(self, interface: &str, file: &Path) -> io::Result<Command> {
        let mut command = match self {
            RecorderKind::Nocopy => Command::new(std::env::current_exe()?),
            other => Command::new(other.name()),
        };
        let mib = BUFFER_MIB.to_string();
        match self {
            RecorderKind::Nocopy => command
                .args(["record", interface, "--force", "--json", "--buffer", &format!("{mib}MiB"), "-o"])
                .arg(file),
            // Its buffer is in KiB; it stays root, or it could not write the file.
            RecorderKind::Tcpdump => {
                let kib = (BUFFER_MIB << 10).to_string();
                command.args(["-n", "-i", interface, "-B", &kib, "-s", "0", "-Z", "root", "-w"]).arg(file)
            }
            RecorderKind::Dumpcap => command.args(["-q", "-P", "-i", interface, "-B", &mib, "-w"]).arg(file),
        };
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    fn parse_counts(self, text: &str) -> Option<RecordedCounts> {
        let before = |words: &str| {
            let line = text.lines().find(|line| line.contains(words))?;
            line.split_whitespace().next()?.parse().ok()
        };
        match self {
            RecorderKind::Nocopy => {
                let summary: serde_json::Value =
                    serde_json::from_str(text.lines().find(|line| line.starts_with('{'))?).ok()?;
                let lost = ["tp_drops", "malformed", "beyond_count", "not_written", "missing"];
                let lost: Option<u64> = lost.iter().map(|name| summary[*name].as_u64()).sum();
                Some(RecordedCounts { packets: summary["written"].as_u64()?, dropped: lost? })
            }
            RecorderKind::Tcpdump => {
                Some(RecordedCounts { packets: before("captured")?, dropped: before("dropped by kernel")? })
            }
            RecorderKind::Dumpcap => {
                // Packets received/dropped on interface 'nc1': 300000/0
                // (pcap:0/dumpcap:0/flushed:0/ps_ifdrop:0) (100.0%)
                let line = text.lines().find(|line| line.starts_with("Packets received/dropped"))?;
                let counts = line.rsplit("': ").next()?.split_whitespace().next()?;
                let (packets, dropped) = counts.split_once('/')?;
                Some(RecordedCounts { packets: packets.parse().ok()?, dropped: dropped.parse().ok()? })
            }
        }
    }

    /// How long packets may wait in the kernel before the program sees them; those it has not seen when it is
    /// asked to end are not in its file.
    pub(crate) const fn capture_delay(self) -> Duration {
        Duration::from_millis(match self {
            RecorderKind::Tcpdump => 1100,
            RecorderKind::Nocopy | RecorderKind::Dumpcap => 300,
        })
    }

    /// Starts it in the calling thread's namespace; returns when it captures.
    pub(crate) fn start(self, interface: &str, file: &Path) -> io::Result<RunningRecorder> {
        let before = count_capturing_sockets()?;
        let child = ScopedChild(self.command(interface, file)?.spawn()?);
        let mut running = RunningRecorder { recorder: self, child };
        let give_up = Instant::now() + PATIENCE;
        while count_capturing_sockets()? <= before {
            if running.child.try_wait()?.is_some() || Instant::now() > give_up {
                return Err(running.failure_with_output("did not begin to capture"));
            }
            sleep(Duration::from_millis(5));
        }
        Ok(running)
    }
}

/// A program's output at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordedCounts {
    pub packets: u64,
    pub dropped: u64,
}

/// Packet sockets of this thread's network namespace that are running, each with a ring.
fn count_capturing_sockets() -> io::Result<usize> {
    let sockets = fs::read_to_string("/proc/thread-self/net/packet")?;
    let is_running = |line: &str| line.split_whitespace().nth(5) == Some("1");
    Ok(sockets.lines().skip(1).filter(|line| is_running(line)).count())
}

#[derive(Debug)]
pub(crate) struct RunningRecorder {
    recorder: RecorderKind,
    child: ScopedChild,
}

impl RunningRecorder {
    /// Starts tcpdump by the given command; returns when it prints that it listens.
    pub(crate) fn start_tcpdump(mut tcpdump: Command) -> io::Result<Self> {
        tcpdump.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Self { recorder: RecorderKind::Tcpdump, child: ScopedChild(tcpdump.spawn()?) };
        let (mut text, give_up) = (String::new(), Instant::now() + PATIENCE);
        while !text.contains("listening on ") || !text.ends_with('\n') {
            let Some(output) = &mut running.child.stderr else { unreachable!("piped, as said above") };
            let mut byte = [0];
            let left = give_up.saturating_duration_since(Instant::now());
            let left = Timespec::try_from(left).map_err(io::Error::other)?;
            let ready = retry_on_intr(|| poll(&mut [PollFd::new(output, PollFlags::IN)], Some(&left)))?;
            if ready == 0 || output.read(&mut byte)? == 0 {
                let _ = running.child.kill();
                let last = text.lines().last().unwrap_or_default();
                return Err(io::Error::other(format!(
                    "tcpdump did not begin to capture, and printed '{last}'"
                )));
            }
            text.push(byte[0].into());
        }
        Ok(running)
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn capture_delay(&self) -> Duration {
        self.recorder.capture_delay()
    }

    /// Processor time of all its threads so far, including kernel threads started for it.
    pub(crate) fn cpu_time(&self) -> io::Result<Duration> {
        cpu::cpu_time_of_process(self.child.id())
    }

    /// Ends it, and returns how many packets it reports as recorded.
    pub(crate) fn stop(mut self) -> io::Result<RecordedCounts> {
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::INT)?;
        let give_up = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait()? {
                // 1: some packets were dropped.
                if !matches!(status.code(), Some(0 | 1)) {
                    return Err(self.failure_with_output("ended with an error"));
                }
                let mut text = String::new();
                self.child.stdout.take().map_or(Ok(0), |mut output| output.read_to_string(&mut text))?;
                self.child.stderr.take().map_or(Ok(0), |mut output| output.read_to_string(&mut text))?;
                let recorded = self.recorder.parse_counts(&text);
                return recorded
                    .ok_or_else(|| io::Error::other(format!("{} printed no summary", self.recorder.name())));
            }
            if Instant::now() > give_up {
                return Err(self.failure_with_output("did not end"));
            }
            sleep(Duration::from_millis(5));
        }
    }

    /// The error, with the last line that the program printed.
    fn failure_with_output(&mut self, fact: &str) -> io::Error {
        let _ = self.child.kill();
        let mut text = String::new();
        if let Some(output) = &mut self.child.stderr {
            let _ = output.read_to_string(&mut text);
        }
        let last = text.lines().rfind(|line| !line.trim().is_empty()).unwrap_or_default().to_owned();
        io::Error::other(format!("{} {fact}, and printed '{last}'", self.recorder.name()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packet_counts_are_parsed_from_program_output() {
        let tcpdump = "tcpdump: listening on nc1\n300007 packets captured\n300010 packets received by filter\n3 packets dropped by kernel\n";
        assert_eq!(
            RecorderKind::Tcpdump.parse_counts(tcpdump),
            Some(RecordedCounts { packets: 300_007, dropped: 3 })
        );
        let dumpcap = "Capturing on 'nc1'\nFile: x\nPackets captured: 12\nPackets received/dropped on interface 'nc1': 12/4 (pcap:4/dumpcap:0/flushed:0/ps_ifdrop:0) (75.0%)\n";
        assert_eq!(
            RecorderKind::Dumpcap.parse_counts(dumpcap),
            Some(RecordedCounts { packets: 12, dropped: 4 })
        );
        assert_eq!(RecorderKind::Dumpcap.parse_counts("Capturing on 'nc1'"), None);
    }
}
