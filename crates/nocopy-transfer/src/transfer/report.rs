//! The counts of a run, in the same words at both ends.

use serde::Serialize;

use super::datagram::{Received, Sent};

/// Counts of a run, at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunCounts {
    pub received: Received,
    /// The number of expected datagrams: all that were sent, or those up to the last received.
    pub expected: u64,
    /// The sender's counts, once it has reported them.
    pub sent: Option<Sent>,
    /// Whether these are all sent datagrams, not only those before the receiver's limit.
    pub is_whole: bool,
    pub is_final: bool,
}

impl RunCounts {
    /// Datagrams that did not arrive, or not as they were sent.
    pub(crate) fn lost(&self) -> u64 {
        self.expected.saturating_sub(self.received.datagrams)
    }

    /// Whether the received data is the sent data, up to the receiver's limit; for datagrams with checksums.
    /// `None`: unknown.
    pub(crate) fn verified(&self) -> Option<bool> {
        let Self { received, sent, .. } = self;
        let same = |sent: Sent| {
            (sent.datagrams, sent.bytes, sent.checksum)
                == (received.datagrams, received.bytes, received.checksum)
        };
        let all = if self.is_whole { sent.is_some_and(same) } else { self.lost() == 0 };
        self.is_final.then_some(all)
    }

    /// Rows of a table; with checksums if requested.
    pub(crate) fn rows(&self, has_checksums: bool) -> Vec<(String, String)> {
        let Received { datagrams, bytes, reordered, duplicate, corrupt, stale, kernel_dropped, .. } =
            &self.received;
        let until = if self.is_final { "" } else { ", when it was last known" };
        let received = format!("{datagrams} datagrams, {bytes} bytes of the stream{until}");
        let mut rows = vec![("received".to_owned(), received), ("lost".to_owned(), self.lost_words())];
        for (name, count, meaning) in [
            (
                "kernel dropped",
                kernel_dropped,
                "packets, of one datagram or a run of many, at the receiver's socket: its buffer was full (recv --buffer)",
            ),
            ("corrupt", corrupt, "arrived changed, and do not count as received"),
            ("too late", stale, "arrived so late that they do not count as received"),
            ("reordered", reordered, "arrived after later ones"),
            ("duplicate", duplicate, "arrived once more"),
        ] {
            if *count > 0 {
                rows.push((name.to_owned(), format!("{count} {meaning}")));
            }
        }
        if has_checksums {
            let text = match self.verified() {
                Some(true) => "every byte arrived as it was sent",
                Some(false) => "NO: not all of it arrived as it was sent",
                None => "not known: one end did not hear the other to the end",
            };
            rows.push(("verified".into(), text.into()));
        }
        rows
    }

    fn lost_words(&self) -> String {
        let Self { expected, received, .. } = self;
        let percent = 100.0 * self.lost() as f64 / (*expected).max(1) as f64;
        let text = format!("{} datagrams of {expected} ({percent:.3} %)", self.lost());
        match self.sent.filter(|_| self.is_whole) {
            Some(sent) => format!("{text}, {} bytes", sent.bytes.saturating_sub(received.bytes)),
            None => format!("{text}: those before the last that came"),
        }
    }
}

/// The part of a summary, at either end, that is about a run: empty with `--raw`.
#[derive(Debug, Serialize)]
pub(crate) struct RunRow {
    /// The sender's counts, at the receiver once the sender has reported that it is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sent: Option<Sent>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<Received>,
    #[serde(rename = "final", skip_serializing_if = "Option::is_none")]
    pub is_final: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lost: Option<u64>,
    /// Whether every byte arrived as it was sent; absent without checksums.
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<bool>,
    #[serde(skip)]
    pub run_counts: Option<RunCounts>,
    #[serde(skip)]
    pub has_checksums: bool,
}

impl RunRow {
    pub(crate) fn new(sent: Option<Sent>, run_counts: Option<RunCounts>, has_checksums: bool) -> Self {
        Self {
            sent,
            received: run_counts.map(|run_counts| run_counts.received),
            is_final: run_counts.map(|run_counts| run_counts.is_final),
            lost: run_counts.map(|run_counts| run_counts.lost()),
            verified: run_counts.filter(|_| has_checksums).and_then(|run_counts| run_counts.verified()),
            run_counts,
            has_checksums,
        }
    }

    /// Whether something is known to be lost or damaged.
    pub(crate) fn has_lost(&self) -> bool {
        self.lost.is_some_and(|lost| lost > 0) || self.verified == Some(false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_reported_as_they_are() {
        let sent = Sent { datagrams: 10, bytes: 100, checksum: 5 };
        let received = Received { datagrams: 10, bytes: 100, checksum: 5, ..Received::default() };
        let mut run_counts =
            RunCounts { received, expected: 10, sent: Some(sent), is_whole: true, is_final: true };
        assert_eq!((run_counts.verified(), run_counts.lost()), (Some(true), 0));
        run_counts.received.checksum = 6;
        assert_eq!(run_counts.verified(), Some(false));
        let received = &mut run_counts.received;
        (received.datagrams, received.bytes, received.reordered) = (8, 80, 3);
        assert_eq!((run_counts.verified(), run_counts.lost()), (Some(false), 2));
        let said: Vec<String> =
            run_counts.rows(true).into_iter().map(|(name, said)| format!("{name}: {said}")).collect();
        assert!(said[1].contains("2 datagrams of 10 (20.000 %), 20 bytes"), "{said:?}");
        assert!(said[2].starts_with("reordered: 3 arrived") && said[3].contains("NO"), "{said:?}");
    }

    #[test]
    fn unknown_counts_are_not_reported() {
        let received = Received { datagrams: 8, bytes: 80, ..Received::default() };
        let sent = Some(Sent { datagrams: 100, bytes: 1000, checksum: 5 });
        let enough = RunCounts { received, expected: 8, sent, is_whole: false, is_final: true };
        assert_eq!((enough.verified(), enough.lost()), (Some(true), 0));
        assert!(enough.rows(false)[1].1.contains("before the last that came"));
        assert_eq!(RunCounts { expected: 9, ..enough }.verified(), Some(false));
        let unknown = RunCounts { is_final: false, ..enough };
        assert_eq!(unknown.verified(), None);
        assert!(unknown.rows(true)[2].1.contains("not known"));
    }
}
