//! A server under test: started for one trial; at its end it reports its copies.

use std::fs::DirBuilder;
use std::io::{self, BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy_lab::ProgramForAnyUser;
use nocopy_report::capability;
use nocopy_report::result::Evidence;
use rustix::process::{Pid, Signal, geteuid, kill_process};
use serde_json::Value;

use super::export::Export;
use super::owner::{change_owner, run_as_owner};
use super::{NfsTestbed, files, writable};
use crate::baseline::nfs_server::{MOUNT_PORT, NfsServerTask, ServerMessage, TransferMethod};
use crate::child::ChildKind;
use crate::cpu;
use crate::lines::PATIENCE;

/// The file of recorded replies, beside the exported directory.
pub(super) const RECORDED: &str = "replies";

const GANESHA_CAUSE: &str = "a buffer of the server between file and socket: two copies a byte";
const PREAD_CAUSE: &str = "pread() into a buffer, and a socket call from there: two copies a byte";
const PWRITE_CAUSE: &str =
    "recv() into a buffer, and pwrite() from there into the page cache: two copies a byte";
const SENDFILE_CAUSE: &str =
    "sent by reference to the pages of the file: no completion ever tells whether they are copied on the way";

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ServerKind {
    PreadWritev,
    Sendfile,
    RecvPwrite,
    Ganesha,
    Nocopy,
    /// The server with `--stable`, which copies.
    Stable,
    /// A server that replays recorded replies, whatever the call.
    Recorded,
}

impl ServerKind {
    pub(super) fn method_name(self) -> &'static str {
        match self {
            Self::PreadWritev => "pread-writev",
            Self::Sendfile => "sendfile",
            Self::RecvPwrite => "recv-pwrite",
            Self::Ganesha => "ganesha",
            Self::Nocopy => "nocopy",
            Self::Stable => "nocopy-stable",
            Self::Recorded => "recorded replies",
        }
    }

    /// Whether it is one of our minimal hand-written servers, which serve one file by its handle.
    pub(super) fn is_by_hand(self) -> bool {
        matches!(self, Self::PreadWritev | Self::Sendfile | Self::RecvPwrite)
    }
}

/// This program.
const SELF: &str = "/proc/self/exe";

#[derive(Debug)]
pub(super) struct RunningServer {
    server_kind: ServerKind,
    child: Child,
    /// Closing it asks the process to end.
    input: Option<ChildStdin>,
    pub(super) address: SocketAddr,
    pub(super) mount_address: SocketAddr,
    process: u32,
}

impl RunningServer {
    pub(super) fn start(testbed: &NfsTestbed, server_kind: ServerKind) -> io::Result<Self> {
        Self::start_with_export(testbed, server_kind, &testbed.files.export())
    }

    /// Starts it on the sender's processor, and waits until it serves.
    pub(super) fn start_with_export(
        testbed: &NfsTestbed,
        server_kind: ServerKind,
        export: &Export,
    ) -> io::Result<Self> {
        testbed.stage.sender.run_pinned(|| match server_kind {
            ServerKind::Nocopy | ServerKind::Stable => Self::start_nocopy(testbed, server_kind, export),
            _ => Self::start_comparison_server(testbed, server_kind, export),
        })
    }

    fn start_nocopy(testbed: &NfsTestbed, server_kind: ServerKind, export: &Export) -> io::Result<Self> {
        let state = export.scratch.join("state");
        let listen = format!("{}:0", testbed.stage.sender.ipv4);
        DirBuilder::new().recursive(true).mode(0o700).create(&state)?;
        change_owner(&state)?;
        // As another user, who may have no access to the program's file.
        let is_root = geteuid().is_root();
        let for_all = is_root.then(|| ProgramForAnyUser::copy(Path::new(SELF))).transpose()?;
        let mut command = Command::new(for_all.as_ref().map_or_else(|| SELF.into(), ProgramForAnyUser::path));
        command.args(["serve", "nfs"]).arg(&export.directory).args(["--listen", &listen, "--json"]);
        command.arg("--state").arg(state).args((server_kind == ServerKind::Stable).then_some("--stable"));
        command.args(export.is_writable.then_some("--writable"));
        // Without privileges, as any user: the served files belong to it.
        if is_root {
            run_as_owner(&mut command);
        } else {
            capability::drop_others(capability::NONE)?;
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let mut line = String::new();
        if let Some(errors) = child.stderr.take() {
            let mut errors = BufReader::new(errors);
            errors.read_line(&mut line)?;
            child.stderr = Some(errors.into_inner());
        }
        let address = line.split("nfs://").nth(1).and_then(|rest| rest.split('/').next()?.parse().ok());
        let process = child.id();
        let unread = SocketAddr::from(([0, 0, 0, 0], 0));
        let server = Self {
            server_kind,
            child,
            input: None,
            address: address.unwrap_or(unread),
            mount_address: address.unwrap_or(unread),
            process,
        };
        match address {
            Some(_) => Ok(server),
            None => Err(io::Error::other(format!("it printed '{}' instead of its address", line.trim_end()))),
        }
    }

    fn start_comparison_server(
        testbed: &NfsTestbed,
        server_kind: ServerKind,
        export: &Export,
    ) -> io::Result<Self> {
        let at = testbed.stage.sender.ipv4;
        let by_hand = |method, name| NfsServerTask::ByHand { method, at, file: export.directory.join(name) };
        let Export { directory, scratch, is_writable } = export;
        let task = match server_kind {
            ServerKind::PreadWritev => by_hand(TransferMethod::PreadWritev, files::CACHED),
            ServerKind::Sendfile => by_hand(TransferMethod::Sendfile, files::CACHED),
            ServerKind::RecvPwrite => by_hand(TransferMethod::RecvPwrite, writable::FILE),
            ServerKind::Recorded => NfsServerTask::Recorded { at, file: scratch.join(RECORDED) },
            _ => NfsServerTask::Ganesha {
                directory: directory.clone(),
                scratch: scratch.clone(),
                is_writable: *is_writable,
            },
        };
        let mut command = ChildKind::ServeNfs.command(&task)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn()?;
        let input = child.stdin.take();
        let mut server = Self {
            server_kind,
            child,
            input,
            address: SocketAddr::from((at, 0)),
            mount_address: SocketAddr::from((at, MOUNT_PORT)),
            process: 0,
        };
        match server.read_message()? {
            ServerMessage::Serving { port, process } => {
                server.address.set_port(port);
                server.process = process;
                Ok(server)
            }
            ServerMessage::Failed(why) => Err(io::Error::other(why)),
        }
    }

    fn read_message(&mut self) -> io::Result<ServerMessage> {
        let Some(output) = self.child.stdout.take() else { unreachable!("it is a pipe, and asked once") };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        if line.is_empty() {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its process ended early"));
        }
        Ok(serde_json::from_str(&line)?)
    }

    pub(super) fn cpu_ns(&self) -> io::Result<u64> {
        Ok(cpu::cpu_time_of_process(self.process)?.as_nanos() as u64)
    }

    /// Asks it to end, waits for that, and returns the evidence about copies.
    pub(super) fn stop(mut self) -> io::Result<Evidence> {
        match self.server_kind {
            ServerKind::Nocopy | ServerKind::Stable => {
                kill_process(Pid::from_child(&self.child), Signal::INT)?
            }
            _ => drop(self.input.take()),
        }
        let give_up = Instant::now() + PATIENCE;
        while self.child.try_wait()?.is_none() {
            if Instant::now() > give_up {
                return Err(io::Error::other("it does not end when asked to"));
            }
            sleep(Duration::from_millis(1));
        }
        Ok(match self.server_kind {
            ServerKind::PreadWritev => Evidence::copied(PREAD_CAUSE),
            ServerKind::Sendfile => Evidence::unknown(SENDFILE_CAUSE),
            ServerKind::Recorded => Evidence::copied("send() from memory: a copy a byte"),
            ServerKind::RecvPwrite => Evidence::copied(PWRITE_CAUSE),
            ServerKind::Ganesha => Evidence::copied(GANESHA_CAUSE),
            ServerKind::Nocopy | ServerKind::Stable => {
                let mut summary = String::new();
                self.child.stdout.take().map_or(Ok(0), |mut output| output.read_to_string(&mut summary))?;
                evidence_from_summary(&serde_json::from_str(&summary)?)
            }
        })
    }
}

impl Drop for RunningServer {
    fn drop(&mut self) {
        // When its input ends, the process ends its child processes; so a process that has ended already
        // needs no kill.
        if self.input.take().is_none() {
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}

fn evidence_from_summary(summary: &Value) -> Evidence {
    let evidence = &summary["evidence"];
    if let Some(written) = summary["written_bytes"].as_u64().filter(|written| *written > 0) {
        return evidence_of_writes(evidence, written);
    }
    let causes = evidence["copied_bytes"].as_object().into_iter().flatten();
    let causes: Vec<(String, u64)> =
        causes.map(|(cause, bytes)| (readable_name(cause), bytes.as_u64().unwrap_or(0))).collect();
    let copied: u64 = causes.iter().map(|(_, bytes)| bytes).sum();
    let unknown = evidence["unknown_bytes"].as_u64().unwrap_or(0);
    let all = copied + unknown;
    if all == 0 {
        return Evidence::copied("socket calls; no bytes of files were sent");
    }
    let share = copied as f64 / all as f64;
    let names: Vec<&str> = causes.iter().map(|(cause, _)| cause.as_str()).collect();
    let because = if names.is_empty() { String::new() } else { format!(" ({})", names.join(", ")) };
    let cause = format!(
        "the server copied {share:.2} of each byte{because}; what went by reference is not reported further down"
    );
    if copied > unknown { Evidence::copied(cause) } else { Evidence::unknown(cause) }
}

/// A name of the summary, as people read it.
fn readable_name(name: &str) -> String {
    name.replace('-', " ")
}

fn evidence_of_writes(evidence: &Value, written: u64) -> Evidence {
    let copies = evidence["written_copied_bytes"].as_object().into_iter().flatten();
    let copies: Vec<(String, f64)> = copies
        .map(|(copy, bytes)| (readable_name(copy), bytes.as_u64().unwrap_or(0) as f64 / written as f64))
        .collect();
    let times: f64 = copies.iter().map(|(_, times)| times).sum();
    let parts: Vec<String> = copies.iter().map(|(copy, times)| format!("{copy} {times:.2}")).collect();
    Evidence::copied(format!(
        "the server copied each byte that was written {times:.2} times: {}",
        parts.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use nocopy_report::result::CopyEvidence;
    use serde_json::json;

    use super::*;

    #[test]
    fn evidence_is_derived_from_the_server_summary() {
        let of = |copied: Value, unknown: u64| {
            evidence_from_summary(&json!({"evidence": {"copied_bytes": copied, "unknown_bytes": unknown}}))
        };
        let referred = of(json!({}), 100);
        assert_eq!(referred.copies, CopyEvidence::Unknown);
        assert!(referred.cause.unwrap().contains("copied 0.00 of each byte;"));
        let small = of(json!({"small-reads": 75}), 25);
        assert_eq!(small.copies, CopyEvidence::Copied);
        assert!(small.cause.unwrap().contains("copied 0.75 of each byte (small reads);"));
        assert_eq!(of(json!({}), 0).copies, CopyEvidence::Copied);
        let copies = json!({"from-socket": 100, "between-buffers": 5, "to-page-cache": 100});
        let written = evidence_from_summary(
            &json!({"written_bytes": 100, "evidence": {"written_copied_bytes": copies}}),
        );
        assert_eq!(written.copies, CopyEvidence::Copied);
        assert!(written.cause.unwrap().contains("2.05 times: from socket 1.00, between buffers 0.05,"));
    }
}
