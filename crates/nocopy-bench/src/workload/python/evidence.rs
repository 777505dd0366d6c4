//! The ledger that a program prints at its end, as a field of results.

use nocopy_report::result::Evidence;
use serde_json::{Map, Value};

/// Where a ledger's numbers of datagrams and bytes are, beside those of each evidence.
const TOTALS: [&str; 2] = ["datagrams", "bytes"];

/// `half` is `received` or `sent`. `None`: the program printed no ledger.
pub(super) fn of_printed_ledger(output: &str, half: &str) -> Option<Evidence> {
    let ledger: Value = serde_json::from_str(output.lines().last()?).ok()?;
    let bytes = |(name, bytes): (&String, &Value)| Some((name.clone(), bytes.as_u64()?));
    let entries =
        ledger.get(half)?.as_object().map(Map::iter)?.filter(|(name, _)| !TOTALS.contains(&&***name));
    let (name, _) = entries.filter_map(bytes).max_by_key(|(_, bytes)| *bytes)?;
    let is_copied_again = ledger.get("copied into arrays").and_then(Value::as_u64).unwrap_or(0) > 0;
    let again = if is_copied_again && half == "received" { ", and into the array" } else { "" };
    let cause = name.strip_prefix("copied (").and_then(|cause| cause.strip_suffix(')'));
    Some(match cause {
        Some(cause) => Evidence::copied(format!("{cause}{again}")),
        None => Evidence::unknown(format!("the ledger says: {name}{again}")),
    })
}

#[cfg(test)]
mod tests {
    use nocopy_report::result::CopyEvidence;

    use super::*;

    #[test]
    fn the_largest_part_of_a_ledger_is_the_evidence() {
        let received = r#"{"datagrams": 3, "bytes": 300, "copied (socket call)": 200, "unknown": 100}"#;
        let output = format!("{{\"received\": {received}, \"sent\": {{}}, \"copied into arrays\": 300}}\n");
        let evidence = of_printed_ledger(&output, "received").unwrap();
        assert_eq!(evidence.copies, CopyEvidence::Copied);
        assert_eq!(evidence.cause.as_deref(), Some("socket call, and into the array"));
        assert!(of_printed_ledger(&output, "sent").is_none() && of_printed_ledger("", "sent").is_none());
    }
}
