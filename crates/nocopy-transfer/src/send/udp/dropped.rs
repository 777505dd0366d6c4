//! Packets that interfaces drop although the kernel has taken them: on a link without carrier, or while a
//! queue is put in place.

use std::collections::BTreeMap;
use std::fs;

/// By interface; those of all programs, since it exists (`tx_dropped`).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct InterfaceDrops(BTreeMap<String, u64>);

impl InterfaceDrops {
    /// Nothing if the kernel does not tell.
    pub(super) fn read() -> Self {
        Self::parse(&fs::read_to_string("/proc/net/dev").unwrap_or_default())
    }

    /// A line for each interface that has dropped packets since `before`.
    pub(super) fn increases_since(self, before: &Self) -> Vec<String> {
        let more = self.0.into_iter().filter_map(|(name, count)| {
            let more = count.saturating_sub(*before.0.get(&name)?);
            (more > 0).then_some((name, more))
        });
        let line = |(name, count)| {
            format!(
                "{name} dropped {count} packets of all programs meanwhile (tx_dropped): more may be lost than was refused"
            )
        };
        more.map(line).collect()
    }

    /// Lines: name, a colon, eight counters of what was received, eight of what was sent, the fourth of each
    /// of what was dropped.
    fn parse(text: &str) -> Self {
        let of = |line: &str| {
            let (name, counters) = line.split_once(':')?;
            Some((name.trim().to_owned(), counters.split_whitespace().nth(8 + 3)?.parse().ok()?))
        };
        Self(text.lines().filter_map(of).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:       1       2    3    4    5     6          7         8        9      10   11   12    13    14      15         16
   nc0:     906      11    0    0    0     0          0         0      836      10    0    7    0     0       0          0
";

    #[test]
    fn packets_dropped_by_interfaces_are_reported() {
        let before = InterfaceDrops::parse(BEFORE);
        assert_eq!(before, InterfaceDrops([("lo".into(), 12), ("nc0".into(), 7)].into()));
        let after =
            InterfaceDrops::parse(&BEFORE.replace("7    0     0       0          0\n", "41 0 0 0 0\n"));
        let said = after.increases_since(&before);
        assert!(said.len() == 1 && said[0].starts_with("nc0 dropped 34 packets"), "{said:?}");
        assert_eq!(InterfaceDrops::parse(BEFORE).increases_since(&before), [] as [String; 0]);
        assert!(!InterfaceDrops::read().0.is_empty());
    }
}
