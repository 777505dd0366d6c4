//! Evidence of copies, for reports.

use std::collections::BTreeMap;

use nocopy::{Evidence, Ledger};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct LedgerResult {
    pub datagrams: u64,
    pub zero_copy_bytes: u64,
    pub copied_bytes: BTreeMap<String, u64>,
    pub unknown_bytes: u64,
    #[serde(skip)]
    pub words: String,
}

impl LedgerResult {
    pub(crate) fn together(all: impl Iterator<Item = Ledger>) -> Self {
        all.sum::<Ledger>().into()
    }
}

impl From<Ledger> for LedgerResult {
    fn from(tally: Ledger) -> Self {
        let copied = tally.into_iter().filter_map(|(evidence, bytes)| match evidence {
            Evidence::Copied(cause) => Some((cause.to_string(), bytes)),
            _ => None,
        });
        Self {
            datagrams: tally.datagrams(),
            zero_copy_bytes: tally.bytes_of(Evidence::ZeroCopy),
            copied_bytes: copied.collect(),
            unknown_bytes: tally.bytes_of(Evidence::Unknown),
            words: tally.to_string(),
        }
    }
}
