//! The summary of a server: the JSON schema `nocopy.serve-nfs/2` (docs/nfs.md).

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};
use serde::Serialize;

use super::local_path;
use crate::client::escape_path;
use crate::server::{ClientCounts, CopyCause, ServerStatistics};

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    ended: CommandEnd,
    seconds: f64,
    #[serde(flatten)]
    export: ExportSummary,
    #[serde(flatten)]
    done: WorkSummary,
    clients: Vec<ClientSummary>,
    /// Connections of networks that are not allowed.
    refused: u64,
    /// Connections ended to make room for others.
    evicted: u64,
    /// Connections ended because of a message that is not a call.
    malformed: u64,
    /// Connections ended because the rest of a call did not arrive in time.
    timed_out: u64,
    /// How often the index of handles could not be written.
    index_write_errors: u64,
}

#[derive(Debug, Serialize)]
pub(super) struct ExportSummary {
    pub(super) address: SocketAddr,
    pub(super) directory: String,
    pub(super) stable: bool,
}

#[derive(Debug, Serialize)]
struct ClientSummary {
    /// Absent for the clients that are counted together.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<String>,
    #[serde(flatten)]
    done: WorkSummary,
}

#[derive(Debug, Serialize)]
struct WorkSummary {
    connections: u64,
    calls: u64,
    reads: u64,
    bytes: u64,
    writes: u64,
    written_bytes: u64,
    evidence: EvidenceSummary,
}

/// Bytes of files by evidence.
#[derive(Debug, Serialize)]
struct EvidenceSummary {
    copied_bytes: BTreeMap<CopyCause, u64>,
    /// Not copied by the server; whether the kernel or the device copied the pages is unknown.
    unknown_bytes: u64,
    /// Bytes written, counted once per copy, by place.
    written_copied_bytes: BTreeMap<&'static str, u64>,
}

impl From<&ClientCounts> for WorkSummary {
    fn from(counts: &ClientCounts) -> Self {
        let copied = CopyCause::ALL.into_iter().zip(counts.copied).filter(|(_, bytes)| *bytes > 0);
        let written = [
            ("from-socket", counts.written - counts.written_by_reference),
            ("between-buffers", counts.moved),
            ("to-page-cache", counts.written),
        ];
        Self {
            connections: counts.connections,
            calls: counts.calls,
            reads: counts.reads,
            bytes: counts.bytes(),
            writes: counts.writes,
            written_bytes: counts.written,
            evidence: EvidenceSummary {
                copied_bytes: copied.collect(),
                unknown_bytes: counts.spliced,
                written_copied_bytes: written.into_iter().filter(|(_, bytes)| *bytes > 0).collect(),
            },
        }
    }
}

impl WorkSummary {
    fn text(&self) -> String {
        let Self { connections, calls, reads, bytes, writes, written_bytes, evidence } = self;
        let copied: u64 = evidence.copied_bytes.values().sum();
        let causes: Vec<String> = evidence
            .copied_bytes
            .iter()
            .map(|(cause, bytes)| format!("{} {bytes} B", cause.text()))
            .collect();
        let causes = if causes.is_empty() { String::new() } else { format!(" ({})", causes.join(", ")) };
        let times =
            |written: u64| evidence.written_copied_bytes.values().sum::<u64>() as f64 / written as f64;
        let written = match *written_bytes {
            0 => String::new(),
            bytes => format!("; {writes} writes of {bytes} bytes: each copied {:.2} times", times(bytes)),
        };
        format!(
            "{connections} connections, {calls} calls, {reads} reads of {bytes} bytes: copied here {copied} B{causes}{written}"
        )
    }
}

impl Summary {
    pub(super) fn from_statistics(
        ended: CommandEnd,
        time: Duration,
        export: ExportSummary,
        accounts: &ServerStatistics,
    ) -> Self {
        let client = |(address, counts): &(Option<std::net::IpAddr>, ClientCounts)| ClientSummary {
            address: address.map(|address| address.to_string()),
            done: counts.into(),
        };
        Self {
            ended,
            seconds: time.as_secs_f64(),
            export,
            done: (&accounts.total()).into(),
            clients: accounts.clients().iter().map(client).collect(),
            refused: accounts.refused(),
            evicted: accounts.evicted(),
            malformed: accounts.malformed(),
            timed_out: accounts.timed_out(),
            index_write_errors: accounts.index_write_errors(),
        }
    }
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.serve-nfs/2";

    fn table(&self) -> Table {
        let ExportSummary { address, directory, .. } = &self.export;
        let path = local_path::parse(OsStr::new(directory)).unwrap_or_default();
        let path = escape_path(path.as_os_str().as_bytes());
        let all = (format!("nfs://{address}{path}"), self.done.text() + self.ended.words());
        let clients = self.clients.iter().map(|client| {
            let name =
                client.address.as_deref().map_or("other clients".into(), |address| format!("  {address}"));
            (name, client.done.text())
        });
        let faults = [
            ("refused", self.refused, "connections of networks that are not allowed"),
            ("evicted", self.evicted, "connections ended to make room for others"),
            ("malformed", self.malformed, "connections ended by something that was no call"),
            ("timed out", self.timed_out, "connections ended because the rest of a call did not arrive"),
            (
                "index write errors",
                self.index_write_errors,
                "times the index of handles could not be written; check the disk of --state",
            ),
        ];
        let faults = faults.into_iter().filter(|(_, count, _)| *count > 0);
        let faults = faults.map(|(name, count, words)| (name.to_owned(), format!("{count} {words}")));
        std::iter::once(all).chain(clients).chain(faults).collect::<Vec<_>>().into()
    }

    fn outcome(&self) -> Outcome {
        Outcome::Positive
    }
}
