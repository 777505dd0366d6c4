//! The counts of a run at both ends, in the same words.

use serde::{Serialize, Serializer};

use super::message::ByteCount;

/// Counts of a run, at either end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunCounts {
    /// The announced total, if it was known at the beginning.
    pub total: Option<u64>,
    /// The sender's count, once it is done.
    pub sent: Option<ByteCount>,
    /// The receiver's latest reported count.
    pub received: Option<ByteCount>,
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
            sent: Option<ByteCount>,
            #[serde(skip_serializing_if = "Option::is_none")]
            received: Option<ByteCount>,
            #[serde(rename = "final")]
            is_final: bool,
            #[serde(skip_serializing_if = "Option::is_none")]
            missing: Option<u64>,
            #[serde(skip_serializing_if = "Option::is_none")]
            verified: Option<bool>,
        }
        let Self { sent, received, is_final, .. } = *self;
        let (missing, verified) = (self.missing_bytes(), self.verified());
        Fields { sent, received, is_final, missing, verified }.serialize(serializer)
    }
}

impl RunCounts {
    /// Bytes that were sent and did not arrive. `None`: not known.
    pub(crate) fn missing_bytes(&self) -> Option<u64> {
        let (sent, received) = self.sent.zip(self.received).filter(|_| self.is_final && self.is_whole)?;
        Some(sent.bytes.saturating_sub(received.bytes))
    }

    pub(crate) fn is_shorter_than_announced(&self) -> bool {
        self.total.is_some_and(|total| self.received.is_none_or(|received| received.bytes < total))
    }

    /// Whether the received data is the sent data. `None`: unknown.
    pub(crate) fn verified(&self) -> Option<bool> {
        let (sent, received) = self.sent.zip(self.received).filter(|_| self.is_final && self.is_whole)?;
        let (ours, theirs) = sent.crc32c.zip(received.crc32c)?;
        Some(sent.bytes == received.bytes && ours == theirs)
    }

    /// Whether the run was successful, by the counts of both.
    pub(crate) fn is_successful(&self) -> bool {
        let differ = self.sent.zip(self.received).is_some_and(|(sent, received)| {
            received.bytes > sent.bytes || self.is_whole && received.bytes < sent.bytes
        });
        self.is_final && !self.is_shorter_than_announced() && self.verified() != Some(false) && !differ
    }

    /// Rows of a table; with checksums if requested.
    pub(crate) fn rows(&self, has_checksums: bool) -> Vec<(String, String)> {
        let announced = match self.total {
            Some(total) if self.is_shorter_than_announced() => format!(" of {total} that were announced"),
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
        match self.missing_bytes() {
            Some(0) => {}
            Some(missing) => rows.push(("missing".into(), format!("{missing} bytes that were sent"))),
            None if self.is_whole => {
                rows.push(("missing".into(), "not known: one end did not hear the other to the end".into()));
            }
            None => {}
        }
        if has_checksums {
            rows.push(("verified".into(), self.verified_text()));
        }
        rows
    }

    fn verified_text(&self) -> String {
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

    fn byte_count(bytes: u64, crc32c: u32) -> Option<ByteCount> {
        Some(ByteCount { bytes, crc32c: Some(crc32c) })
    }

    #[test]
    fn missing_and_changed_bytes_are_reported() {
        let good = RunCounts {
            total: Some(10),
            sent: byte_count(10, 5),
            received: byte_count(10, 5),
            is_final: true,
            is_whole: true,
        };
        assert!(good.is_successful());
        assert_eq!((good.verified(), good.missing_bytes()), (Some(true), Some(0)));
        let changed = RunCounts { received: byte_count(10, 6), ..good };
        assert!(!changed.is_successful() && changed.verified() == Some(false));
        assert!(changed.rows(true)[1].1.contains("NO: CRC32C 00000005"), "{:?}", changed.rows(true));
        let short = RunCounts { received: byte_count(8, 5), ..good };
        assert_eq!(
            (short.verified(), short.missing_bytes(), short.is_successful()),
            (Some(false), Some(2), false)
        );
        assert!(short.rows(false)[0].1.contains("8 bytes of 10"));
        let more = RunCounts { total: None, received: byte_count(11, 5), ..good };
        assert!(!more.is_successful() && more.verified() == Some(false));
    }

    #[test]
    fn unknown_counts_are_not_reported() {
        let broken = RunCounts {
            total: None,
            sent: None,
            received: byte_count(8, 1),
            is_final: false,
            is_whole: true,
        };
        assert_eq!((broken.verified(), broken.missing_bytes(), broken.is_successful()), (None, None, false));
        let fields = serde_json::json!({"received": {"bytes": 8, "crc32c": "00000001"}, "final": false});
        assert_eq!(serde_json::to_value(broken).unwrap(), fields);
        let enough = RunCounts { sent: byte_count(9, 1), is_final: true, is_whole: false, ..broken };
        assert_eq!((enough.verified(), enough.missing_bytes(), enough.is_successful()), (None, None, true));
        assert!(enough.rows(true)[1].1.contains("not known"));
        assert!(!RunCounts { received: byte_count(10, 1), ..enough }.is_successful(), "more than was sent");
        assert!(!RunCounts { total: Some(9), ..enough }.is_successful(), "a file that is not whole");
    }
}
