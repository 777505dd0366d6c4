//! The counts of a run, in the same words at both ends.

use serde::Serialize;

use super::datagram::{ReceivedCounts, SentCounts};

/// Counts of a run, at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunCounts {
    pub received: ReceivedCounts,
    /// The number of expected datagrams: all that were sent, or those up to the last received.
    pub expected: u64,
    /// The sender's counts, once it has reported them.
    pub sent: Option<SentCounts>,
    /// Whether these are all sent datagrams, not only those before the receiver's limit.
    pub is_whole: bool,
    pub is_final: bool,
}

impl RunCounts {
    /// Datagrams that did not arrive, or not as they were sent.
    pub(crate) fn lost_datagrams(&self) -> u64 {
        self.expected.saturating_sub(self.received.datagrams)
    }

    /// Whether the received data is the sent data, up to the receiver's limit; for datagrams with checksums.
    /// `None`: unknown.
    pub(crate) fn verified(&self) -> Option<bool> {
        let Self { received, sent, .. } = self;
        let same = |sent: SentCounts| {
            (sent.datagrams, sent.bytes, sent.checksum)
                == (received.datagrams, received.bytes, received.checksum)
        };
        let all = if self.is_whole { sent.is_some_and(same) } else { self.lost_datagrams() == 0 };
        self.is_final.then_some(all)
    }

    /// Rows of a table; with checksums if requested.
    pub(crate) fn rows(&self, has_checksums: bool) -> Vec<(String, String)> {
        let ReceivedCounts { datagrams, bytes, reordered, duplicate, corrupt, stale, kernel_dropped, .. } =
            &self.received;
        let until = if self.is_final { "" } else { ", when it was last known" };
        let received = format!("{datagrams} datagrams, {bytes} bytes of the stream{until}");
        let mut rows = vec![("received".to_owned(), received), ("lost".to_owned(), self.lost_text())];
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

    fn lost_text(&self) -> String {
        let Self { expected, received, .. } = self;
        let percent = 100.0 * self.lost_datagrams() as f64 / (*expected).max(1) as f64;
        let text = format!("{} datagrams of {expected} ({percent:.3} %)", self.lost_datagrams());
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
    pub sent: Option<SentCounts>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub received: Option<ReceivedCounts>,
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
    pub(crate) fn new(sent: Option<SentCounts>, run_counts: Option<RunCounts>, has_checksums: bool) -> Self {
        Self {
            sent,
            received: run_counts.map(|run_counts| run_counts.received),
            is_final: run_counts.map(|run_counts| run_counts.is_final),
            lost: run_counts.map(|run_counts| run_counts.lost_datagrams()),
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
    fn lost_and_changed_datagrams_are_reported() {
        let sent = SentCounts { datagrams: 10, bytes: 100, checksum: 5 };
        let received = ReceivedCounts { datagrams: 10, bytes: 100, checksum: 5, ..ReceivedCounts::default() };
        let mut run_counts =
            RunCounts { received, expected: 10, sent: Some(sent), is_whole: true, is_final: true };
        assert_eq!((run_counts.verified(), run_counts.lost_datagrams()), (Some(true), 0));
        run_counts.received.checksum = 6;
        assert_eq!(run_counts.verified(), Some(false));
        let received = &mut run_counts.received;
        (received.datagrams, received.bytes, received.reordered) = (8, 80, 3);
        assert_eq!((run_counts.verified(), run_counts.lost_datagrams()), (Some(false), 2));
        let said: Vec<String> =
            run_counts.rows(true).into_iter().map(|(name, said)| format!("{name}: {said}")).collect();
        assert!(said[1].contains("2 datagrams of 10 (20.000 %), 20 bytes"), "{said:?}");
        assert!(said[2].starts_with("reordered: 3 arrived") && said[3].contains("NO"), "{said:?}");
    }

    #[test]
    fn unknown_counts_are_not_reported() {
        let received = ReceivedCounts { datagrams: 8, bytes: 80, ..ReceivedCounts::default() };
        let sent = Some(SentCounts { datagrams: 100, bytes: 1000, checksum: 5 });
        let enough = RunCounts { received, expected: 8, sent, is_whole: false, is_final: true };
        assert_eq!((enough.verified(), enough.lost_datagrams()), (Some(true), 0));
        assert!(enough.rows(false)[1].1.contains("before the last that came"));
        assert_eq!(RunCounts { expected: 9, ..enough }.verified(), Some(false));
        let unknown = RunCounts { is_final: false, ..enough };
        assert_eq!(unknown.verified(), None);
        assert!(unknown.rows(true)[2].1.contains("not known"));
    }
}
