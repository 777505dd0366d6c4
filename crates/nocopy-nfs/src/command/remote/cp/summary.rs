//! The summary of a copy: the JSON schema `nocopy.cp/2` (docs/nfs-client.md).

use std::time::Duration;

use nocopy::{Cause, Evidence};
use nocopy_report::quantity::short_number;
use nocopy_report::table::Table;
use nocopy_report::{CommandEnd, Outcome};
use serde::Serialize;

use crate::client::Client;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct CopyCounts {
    pub(super) files: u64,
    pub(super) directories: u64,
    pub(super) bytes: u64,
    /// Symbolic links that were made, and further names of files.
    pub(super) links_made: u64,
    /// FIFOs, sockets and devices that were made.
    pub(super) special_files: u64,
    /// Not copied because of what they are, such as a directory without `--recursive`; each is also among
    /// those that failed.
    pub(super) skipped: u64,
    /// Not copied by `--resume`: copied already.
    pub(super) unchanged: u64,
    /// Bytes of an earlier, incomplete copy that were kept.
    pub(super) resumed_bytes: u64,
    pub(super) verified_bytes: u64,
    /// Known so far.
    #[serde(skip)]
    pub(super) files_all: u64,
    #[serde(skip)]
    pub(super) bytes_all: u64,
}

impl CopyCounts {
    /// Counts a file that is to be copied. A server may say that it has any length.
    pub(super) fn count_expected(&mut self, bytes: u64) {
        self.files_all += 1;
        self.bytes_all = self.bytes_all.saturating_add(bytes);
    }
}

#[derive(Debug, Serialize)]
struct FailedFile {
    path: String,
    error: String,
}

#[derive(Debug, Serialize)]
pub(super) struct Summary {
    ended: CommandEnd,
    seconds: f64,
    #[serde(flatten)]
    counts: CopyCounts,
    evidence: EvidenceSummary,
    /// Calls that were sent again because a connection was lost.
    retransmitted_calls: u64,
    /// Bytes that were sent again because the server had lost them.
    lost_bytes: u64,
    failed: Vec<FailedFile>,
}

#[derive(Debug, Default, Serialize)]
struct EvidenceSummary {
    /// Bytes copied once, from the socket into the posted buffer.
    copied_once_bytes: u64,
    /// Together with a header, and a second time.
    copied_twice_bytes: u64,
}

impl Summary {
    pub(super) fn from_counts(
        ended: CommandEnd,
        time: Duration,
        counts: CopyCounts,
        failures: Vec<(String, String)>,
        clients: &[Client],
    ) -> Self {
        let sum = |name: &str| clients.iter().filter_map(|client| client.stats().get(name)).sum::<u64>();
        let copied = |cause| {
            let bytes = |client: &Client| client.ledger().bytes_of(Evidence::Copied(cause));
            clients.iter().map(bytes).sum()
        };
        Self {
            ended,
            seconds: time.as_secs_f64(),
            counts,
            evidence: EvidenceSummary {
                copied_once_bytes: copied(Cause::SocketCall),
                copied_twice_bytes: copied(Cause::Gathered),
            },
            retransmitted_calls: sum("retransmitted_calls"),
            lost_bytes: sum("lost_bytes"),
            failed: failures.into_iter().map(|(path, error)| FailedFile { path, error }).collect(),
        }
    }
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.cp/2";

    fn table(&self) -> Table {
        let CopyCounts { files, directories, bytes, links_made, special_files, skipped, .. } = self.counts;
        let CopyCounts { unchanged, resumed_bytes, verified_bytes, .. } = self.counts;
        let speed = short_number(bytes as f64 / self.seconds.max(1e-9));
        let all = format!(
            "{files} files, {directories} directories, {bytes} bytes in {:.2} s ({speed}B/s){}",
            self.seconds,
            self.ended.words()
        );
        let others = [
            ("links made", links_made, "symbolic links, and further names of files"),
            ("special files", special_files, "FIFOs, sockets and devices"),
            ("skipped", skipped, "that are not copied, as named above"),
            ("unchanged", unchanged, "files that were there already"),
            ("resumed", resumed_bytes, "bytes of an earlier copy that was not finished"),
            ("verified", verified_bytes, "bytes read again and found equal"),
            ("retransmitted", self.retransmitted_calls, "calls sent again because a connection was lost"),
            ("lost", self.lost_bytes, "bytes that the server had lost, and that were sent again"),
            (
                "failed",
                self.failed.len() as u64 - skipped,
                "that could not be copied, or not with all attributes",
            ),
        ];
        let others = others.into_iter().filter(|(_, count, _)| *count > 0);
        let others = others.map(|(name, count, words)| (name.to_owned(), format!("{count} {words}")));
        std::iter::once(("copied".to_owned(), all)).chain(others).collect::<Vec<_>>().into()
    }

    fn outcome(&self) -> Outcome {
        match self.failed.is_empty() && self.ended == CommandEnd::Done {
            true => Outcome::Positive,
            false => Outcome::Negative,
        }
    }
}
