//! Evidence of copies, for reports.

use std::collections::BTreeMap;

use nocopy::{Cause, Evidence, Ledger};
use serde::Serialize;

#[derive(Debug, Serialize)]
pub(crate) struct LedgerSummary {
    pub datagrams: u64,
    pub zero_copy_bytes: u64,
    /// By the name of the cause.
    pub copied_bytes: BTreeMap<String, u64>,
    pub unknown_bytes: u64,
    #[serde(skip)]
    pub words: String,
}

impl LedgerSummary {
    pub(crate) fn from_ledgers(all: impl Iterator<Item = Ledger>) -> Self {
        all.sum::<Ledger>().into()
    }
}

impl From<Ledger> for LedgerSummary {
    fn from(tally: Ledger) -> Self {
        let copied = tally.into_iter().filter_map(|(evidence, bytes)| match evidence {
            Evidence::Copied(cause) => Some((cause_name(cause), bytes)),
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

/// That of its variant, in kebab-case.
fn cause_name(cause: Cause) -> String {
    let mut name = String::new();
    for character in format!("{cause:?}").chars() {
        if character.is_ascii_uppercase() && !name.is_empty() {
            name.push('-');
        }
        name.push(character.to_ascii_lowercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn causes_have_distinct_names_in_kebab_case() {
        let names: BTreeSet<String> = Cause::ALL.map(cause_name).into();
        assert_eq!(names.len(), Cause::ALL.len(), "{names:?}");
        let is_kebab = |name: &String| name.chars().all(|c| c.is_ascii_lowercase() || c == '-');
        assert!(names.iter().all(is_kebab) && names.contains("part-of-page"), "{names:?}");
    }
}
