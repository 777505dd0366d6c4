//! The counts of a run at both ends, in the same words.

use serde::{Serialize, Serializer};

use super::message::Count;

/// Counts of a run, at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunCounts {
    /// The announced total, if it was known at the beginning.
    pub total: Option<u64>,
    /// The sender's count, once it is done.
    pub sent: Option<Count>,
    /// The receiver's latest reported count.
    pub received: Option<Count>,
    pub is_final: bool,
    /// Whether it counted everything, instead of stopping at its limit.
    pub is_whole: bool,
}

/// The fields of the summaries of both ends.
impl Serialize for RunCounts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Fields {
            #[serde(skip_serializing_if = "Option::is_none")]
            sent: Option<Count>,
            #[serde(skip_serializing_if = "Option::is_none")]
            received: Option<Count>,
            #[serde(rename = "final")]
            is_final: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            missing: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            verified: Option<bool>,
        }
        let Self { sent, received, is_final, .. } = *self;
        let (missing, verified) = (self.missing(), self.verified());
        Fields { sent, received, is_final, missing, verified }.serialize(serializer)
    }
}

impl RunCounts {
    /// Bytes that were sent and did not arrive. `None`: not known.
    pub(crate) fn missing(&self) -> Option<u64> {
        let (sent, received) = self.sent.zip(self.received).filter(|_| self.is_final && self.is_whole)?;
        Some(sent.bytes.saturating_sub(received.bytes))
    }

    pub(crate) fn is_short(&self) -> bool {
        self.total.is_some_and(|total| self.received.is_none_or(|received| received.bytes < total))
    }

    /// Whether the received data is the sent data. `None`: unknown.
    pub(crate) fn verified(&self) -> Option<bool> {
        let (sent, received) = self.sent.zip(self.received).filter(|_| self.is_final && self.is_whole)?;
        let (ours, theirs) = sent.crc32c.zip(received.crc32c)?;
        Some(sent.bytes == received.bytes && ours == theirs)
    }

    /// Whether the run was successful, by the counts of both.
    pub(crate) fn are_good(&self) -> bool {
        let differ = self.sent.zip(self.received).is_some_and(|(sent, received)| {
            received.bytes > sent.bytes || self.is_whole && received.bytes < sent.bytes
        });
        self.is_final && !self.is_short() && self.verified() != Some(false) && !differ
    }

    /// Rows of a table; with checksums if requested.
    pub(crate) fn rows(&self, has_checksums: bool) -> Vec<(String, String)> {
        let announced = match self.total {
            Some(total) if self.is_short() => format!(" of {total} that were announced"),
            _ => String::new(),
        };
        let until = match (self.is_final, self.is_whole) {
            (true, true) => "",
            (true, false) => ", then the receiver had enough",
            (false, _) => ", when it was last known",
        };
        let received = match self.received {
            Some(received) => format!("{} bytes{announced}{until}", received.bytes),
            None => "not known: the receiver never told".into(),
        };
        let mut rows = vec![("received".to_owned(), received)];
        match self.missing() {
            Some(0) => {}
            Some(missing) => rows.push(("missing".into(), format!("{missing} bytes that were sent"))),
            None if self.is_whole => {
                rows.push(("missing".into(), "not known: one end did not hear the other to the end".into()));
            }
            None => {}
        }
        if has_checksums {
            rows.push(("verified".into(), self.verified_words()));
        }
        rows
    }

    fn verified_words(&self) -> String {
        let [sent, received] = [self.sent, self.received].map(|count| count.and_then(|count| count.crc32c));
        match (self.verified(), sent, received) {
            (Some(true), Some(sent), _) => format!("every byte arrived as it was sent, CRC32C {sent:08x}"),
            (Some(false), Some(sent), Some(received)) => {
                format!("NO: CRC32C {sent:08x} was sent, {received:08x} arrived")
            }
            _ => "not known: one end did not hear the other to the end".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(bytes: u64, crc32c: u32) -> Option<Count> {
        Some(Count { bytes, crc32c: Some(crc32c) })
    }

    #[test]
    fn counts_are_reported_as_they_are() {
        let good = RunCounts {
            total: Some(10),
            sent: count(10, 5),
            received: count(10, 5),
            is_final: true,
            is_whole: true,
        };
        assert!(good.are_good());
        assert_eq!((good.verified(), good.missing()), (Some(true), Some(0)));
        let changed = RunCounts { received: count(10, 6), ..good };
        assert!(!changed.are_good() && changed.verified() == Some(false));
        assert!(changed.rows(true)[1].1.contains("NO: CRC32C 00000005"), "{:?}", changed.rows(true));
        let short = RunCounts { received: count(8, 5), ..good };
        assert_eq!((short.verified(), short.missing(), short.are_good()), (Some(false), Some(2), false));
        assert!(short.rows(false)[0].1.contains("8 bytes of 10"));
        let more = RunCounts { total: None, received: count(11, 5), ..good };
        assert!(!more.are_good() && more.verified() == Some(false));
    }

    #[test]
    fn unknown_counts_are_not_reported() {
        let broken =
            RunCounts { total: None, sent: None, received: count(8, 1), is_final: false, is_whole: true };
        assert_eq!((broken.verified(), broken.missing(), broken.are_good()), (None, None, false));
        let fields = serde_json::json!({"received": {"bytes": 8, "crc32c": "00000001"}, "final": false});
        assert_eq!(serde_json::to_value(broken).unwrap(), fields);
        let enough = RunCounts { sent: count(9, 1), is_final: true, is_whole: false, ..broken };
        assert_eq!((enough.verified(), enough.missing(), enough.are_good()), (None, None, true));
        assert!(enough.rows(true)[1].1.contains("not known"));
        assert!(!RunCounts { received: count(10, 1), ..enough }.are_good(), "more than was sent");
        assert!(!RunCounts { total: Some(9), ..enough }.are_good(), "a file that is not whole");
    }
}
