//! What both ends say of a run, in the same words.

use super::wire::{Received, Sent};

/// Datagrams that did not arrive, or not as they were sent.
pub(crate) fn lost(sent: &Sent, received: &Received) -> u64 {
    sent.datagrams.saturating_sub(received.datagrams)
}

/// Whether what arrived is what was sent; of datagrams that have checksums.
pub(crate) fn is_same(sent: &Sent, received: &Received) -> bool {
    (sent.datagrams, sent.bytes, sent.checksum) == (received.datagrams, received.bytes, received.checksum)
}

/// Rows of a table. Without `sent` it is not known how many were to come.
pub(crate) fn rows(
    sent: Option<&Sent>,
    received: &Received,
    verified: Option<bool>,
) -> Vec<(String, String)> {
    let Received { datagrams, bytes, reordered, duplicate, corrupt, stale, kernel_dropped, .. } = received;
    let mut rows =
        vec![("received".to_owned(), format!("{datagrams} datagrams, {bytes} bytes of the stream"))];
    if let Some(sent) = sent {
        let lost = lost(sent, received);
        let percent = 100.0 * lost as f64 / sent.datagrams.max(1) as f64;
        let missing = sent.bytes.saturating_sub(*bytes);
        rows.push((
            "lost".into(),
            format!("{lost} datagrams of {} ({percent:.3} %), {missing} bytes", sent.datagrams),
        ));
    }
    for (name, count, meaning) in [
        (
            "kernel dropped",
            kernel_dropped,
            "packets, of one datagram or a run of many, at the receiver's socket: its buffer was full (recv --buffer)",
        ),
        ("corrupt", corrupt, "arrived changed, and are among the lost"),
        ("too late", stale, "arrived so late that they count as lost"),
        ("reordered", reordered, "arrived after later ones"),
        ("duplicate", duplicate, "arrived once more"),
    ] {
        if *count > 0 {
            rows.push((name.to_owned(), format!("{count} {meaning}")));
        }
    }
    if let Some(verified) = verified {
        let said = if verified {
            "every byte arrived as it was sent"
        } else {
            "NO: not all of it arrived as it was sent"
        };
        rows.push(("verified".into(), said.into()));
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_told_is_what_was_counted() {
        let sent = Sent { datagrams: 10, bytes: 100, checksum: 5 };
        let mut received = Received { datagrams: 10, bytes: 100, checksum: 5, ..Received::default() };
        assert!(is_same(&sent, &received) && lost(&sent, &received) == 0);
        received.checksum = 6;
        assert!(!is_same(&sent, &received));
        (received.datagrams, received.bytes, received.reordered) = (8, 80, 3);
        assert_eq!(lost(&sent, &received), 2);
        let said: Vec<String> = rows(Some(&sent), &received, Some(false))
            .into_iter()
            .map(|(name, said)| format!("{name}: {said}"))
            .collect();
        assert!(said[1].contains("2 datagrams of 10 (20.000 %), 20 bytes"), "{said:?}");
        assert!(said[2].starts_with("reordered: 3 arrived") && said[3].contains("NO"), "{said:?}");
        assert_eq!(rows(None, &received, None).len(), 2);
    }
}
