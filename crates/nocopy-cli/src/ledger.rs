//! What is known of copies, as it is told.

use std::collections::BTreeMap;

use nocopy::{Evidence, Tally};
use serde::Serialize;

/// Bytes by evidence.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Ledger {
    pub(crate) datagrams: u64,
    pub(crate) zero_copy_bytes: u64,
    /// By cause.
    pub(crate) copied_bytes: BTreeMap<String, u64>,
    pub(crate) unknown_bytes: u64,
    #[serde(skip)]
    pub(crate) words: String,
}

impl Ledger {
    /// Of several connections.
    pub(crate) fn together<'a>(all: impl Iterator<Item = &'a Self>) -> Self {
        let mut sum = Self::default();
        for Self { datagrams, zero_copy_bytes, copied_bytes, unknown_bytes, .. } in all {
            sum.datagrams += datagrams;
            sum.zero_copy_bytes += zero_copy_bytes;
            sum.unknown_bytes += unknown_bytes;
            for (cause, bytes) in copied_bytes {
                *sum.copied_bytes.entry(cause.clone()).or_default() += bytes;
            }
        }
        sum.words = sum.told();
        sum
    }

    fn told(&self) -> String {
        let zero_copy = [("zero-copy".to_owned(), self.zero_copy_bytes)].into_iter();
        let copied = self.copied_bytes.iter().map(|(cause, bytes)| (format!("copied ({cause})"), *bytes));
        let all = zero_copy.chain(copied).chain([("unknown".to_owned(), self.unknown_bytes)]);
        let some: Vec<_> =
            all.filter(|(_, bytes)| *bytes > 0).map(|(name, bytes)| format!("{name} {bytes} B")).collect();
        if some.is_empty() { "no bytes".into() } else { some.join(", ") }
    }
}

impl From<Tally> for Ledger {
    fn from(tally: Tally) -> Self {
        let copied = tally.entries().filter_map(|(evidence, bytes)| match evidence {
            Evidence::Copied(cause) => Some((cause.to_string(), bytes)),
            _ => None,
        });
        Self {
            datagrams: tally.datagrams(),
            zero_copy_bytes: tally.zero_copy_bytes(),
            copied_bytes: copied.collect(),
            unknown_bytes: tally.unknown_bytes(),
            words: tally.to_string(),
        }
    }
}
