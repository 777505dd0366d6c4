//! The library's evidence of copies, as a field of results.

use nocopy::Ledger;
use nocopy_report::result::{CopyEvidence, Evidence};

const UNKNOWN_CAUSE: &str =
    "not copied by the socket; what a virtual interface does with the bytes is not reported";

pub(crate) fn result_evidence(evidence: nocopy::Evidence) -> Evidence {
    match evidence {
        nocopy::Evidence::Copied(cause) => Evidence::copied(cause.to_string()),
        nocopy::Evidence::ZeroCopy => Evidence { copies: CopyEvidence::ZeroCopy, cause: None },
        _ => Evidence::unknown(UNKNOWN_CAUSE),
    }
}

/// The evidence for most bytes of a ledger; `zero-copy` only if it applies to all bytes.
pub(crate) fn ledger_evidence(ledger: &Ledger) -> Evidence {
    let entries: Vec<_> = ledger.into_iter().collect();
    let weight = |entry: &(nocopy::Evidence, u64)| (entry.0 != nocopy::Evidence::ZeroCopy, entry.1);
    let Some((evidence, _)) = entries.iter().copied().max_by_key(weight) else {
        return Evidence::unknown("nothing was moved");
    };
    let reported = result_evidence(evidence);
    if entries.len() == 1 {
        return reported;
    }
    let share = |(evidence, bytes): &(nocopy::Evidence, u64)| {
        format!("{evidence} {:.0} %", *bytes as f64 / ledger.bytes() as f64 * 100.0)
    };
    let cause = entries.iter().map(share).collect::<Vec<_>>().join(", ");
    Evidence { cause: Some(cause), ..reported }
}
