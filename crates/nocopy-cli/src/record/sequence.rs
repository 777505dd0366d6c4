//! Gaps in a counter that every datagram carries.

use serde::Serialize;

use nocopy_report::quantity::parse_digits;
use nocopy_transfer::arrivals::{SequenceClass, SequenceWindow};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SequenceField {
    offset: usize,
    width: usize,
    big_endian: bool,
}

impl SequenceField {
    /// Parses `OFFSET:WIDTH:be|le`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "not OFFSET:WIDTH:be|le, such as 0:8:be; the width is 1, 2, 4 or 8 bytes".to_owned();
        let [offset, width, order] = text.split(':').collect::<Vec<_>>()[..] else { return Err(wrong()) };
        let offset = parse_digits::<u16>(offset).ok_or_else(wrong)?.into();
        let width = parse_digits(width).filter(|width| [1, 2, 4, 8].contains(width)).ok_or_else(wrong)?;
        match order {
            "be" | "le" => Ok(Self { offset, width, big_endian: order == "be" }),
            _ => Err(wrong()),
        }
    }

    fn width_bits(self) -> u32 {
        self.width as u32 * 8
    }

    fn read_value(self, payload: &[u8]) -> Option<u64> {
        let bytes = payload.get(self.offset..self.offset + self.width)?;
        let next = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.big_endian { bytes.iter().fold(0, next) } else { bytes.iter().rev().fold(0, next) })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct SequenceCounters {
    /// Values that never arrived.
    pub(super) missing: u64,
    pub(super) gaps: u64,
    /// Values that arrived more than once, as far back as is remembered.
    pub(super) duplicate: u64,
    /// Values that arrived after later ones; they do not count as missing.
    pub(super) reordered: u64,
    /// How often the counter overflowed to 0.
    pub(super) wraps: u64,
    /// Jumps backwards that are too far for a late value: the sender restarted.
    pub(super) restarts: u64,
    /// Payloads that are too short to contain the counter.
    pub(super) too_short: u64,
}

impl SequenceCounters {
    pub(super) fn summary_rows(&self) -> impl Iterator<Item = (&'static str, String, String)> + use<> {
        let all = [
            ("sequence missing", self.missing, "values that never came"),
            ("sequence gaps", self.gaps, "times that values were left out"),
            ("sequence duplicate", self.duplicate, "values that came again"),
            ("sequence reordered", self.reordered, "values that came late"),
            ("sequence wraps", self.wraps, "times that it went round to 0"),
            ("sequence restarts", self.restarts, "jumps back too far to be a late value"),
            ("sequence too short", self.too_short, "payloads that end before it"),
        ];
        let shown = all.into_iter().enumerate().filter(|(index, (_, count, _))| *index == 0 || *count > 0);
        shown.map(|(_, (name, count, meaning))| (name, count.to_string(), meaning.to_owned()))
    }
}

/// How far back values are remembered.
const WINDOW: u64 = 4096;

#[derive(Debug)]
pub(super) struct SequenceTracker {
    field: SequenceField,
    /// `None` before the first value.
    arrivals: Option<SequenceWindow>,
    gaps: SequenceCounters,
}

impl SequenceTracker {
    pub(super) fn new(field: SequenceField) -> Self {
        Self { field, arrivals: None, gaps: SequenceCounters::default() }
    }

    pub(super) fn counters(&self) -> SequenceCounters {
        self.gaps
    }

    pub(super) fn observe_payload(&mut self, payload: &[u8]) {
        let Self { field, arrivals, gaps } = self;
        let Some(value) = field.read_value(payload) else {
            gaps.too_short += 1;
            return;
        };
        let arrivals = arrivals.get_or_insert_with(|| SequenceWindow::new(field.width_bits(), WINDOW, value));
        match arrivals.classify_and_record(value) {
            SequenceClass::Ahead { left_out, went_round } => {
                gaps.missing = gaps.missing.saturating_add(left_out);
                gaps.gaps += u64::from(left_out > 0);
                gaps.wraps += u64::from(went_round);
            }
            SequenceClass::Late => {
                gaps.reordered += 1;
                gaps.missing = gaps.missing.saturating_sub(1);
            }
            SequenceClass::Again => gaps.duplicate += 1,
            SequenceClass::Stale => {
                gaps.restarts += 1;
                arrivals.restart(value.wrapping_add(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters_of_values(width: usize, values: impl IntoIterator<Item = u64>) -> SequenceCounters {
        let field = SequenceField { offset: 2, width, big_endian: true };
        let mut sequence = SequenceTracker::new(field);
        for value in values {
            let payload = [&[0xff; 2], &value.to_be_bytes()[8 - width..], &[0xff]].concat();
            sequence.observe_payload(&payload);
        }
        sequence.counters()
    }

    #[test]
    fn the_count_of_missing_values_saturates() {
        let far = u64::MAX / 2;
        let jumps = counters_of_values(8, (0..5_u64).map(|jump| jump.wrapping_mul(far)));
        assert_eq!((jumps.missing, jumps.gaps), (u64::MAX, 4));
    }

    #[test]
    fn a_sequence_field_is_parsed_and_read() {
        let field = SequenceField::parse("1:4:le").unwrap();
        assert_eq!((field.read_value(&[9, 1, 2, 0, 0]), field.read_value(&[9, 1, 2, 0])), (Some(513), None));
        assert_eq!(SequenceField::parse("0:2:be").unwrap().read_value(&[1, 2, 3]), Some(258));
        for wrong in
            ["", "0:3:be", "0:8", "0:8:xe", "-1:8:be", "+1:8:be", "1:+8:be", "70000:8:be", "0:8:be:1"]
        {
            assert!(SequenceField::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn missing_reordered_and_duplicate_values_are_counted() {
        assert_eq!(counters_of_values(8, 5..100), SequenceCounters::default());
        assert_eq!(
            counters_of_values(8, [1, 2, 5, 6, 9]),
            SequenceCounters { missing: 4, gaps: 2, ..SequenceCounters::default() }
        );
        assert_eq!(
            counters_of_values(8, [1, 3, 2, 4]),
            SequenceCounters { gaps: 1, reordered: 1, ..SequenceCounters::default() }
        );
        assert_eq!(
            counters_of_values(8, [1, 2, 2, 1, 3]),
            SequenceCounters { duplicate: 2, ..SequenceCounters::default() }
        );
        let late_twice =
            SequenceCounters { gaps: 1, reordered: 1, duplicate: 1, ..SequenceCounters::default() };
        assert_eq!(counters_of_values(8, [1, 3, 2, 2, 4]), late_twice);
        assert_eq!(
            counters_of_values(8, [1_000_000, 1_000_001, 0, 1, 2]),
            SequenceCounters { restarts: 1, ..SequenceCounters::default() }
        );
        let far = SequenceCounters { missing: 999_999, gaps: 1, ..SequenceCounters::default() };
        assert_eq!(counters_of_values(8, [0, 1_000_000]), far);
    }

    #[test]
    fn a_wrapped_counter_is_no_gap() {
        let round = |width: usize, from: u64, count: u64| {
            let mask = u64::MAX >> (64 - 8 * width);
            counters_of_values(width, (0..count).map(move |step| from.wrapping_add(step) & mask))
        };
        for width in [1, 2, 4, 8] {
            let mask = u64::MAX >> (64 - 8 * width);
            assert_eq!(
                round(width, mask - 5, 20),
                SequenceCounters { wraps: 1, ..SequenceCounters::default() },
                "{width}"
            );
        }
        assert_eq!(round(1, 0, 1000), SequenceCounters { wraps: 3, ..SequenceCounters::default() });
        let over = SequenceCounters { missing: 1, gaps: 1, wraps: 1, ..SequenceCounters::default() };
        assert_eq!(counters_of_values(1, [254, 255, 1, 2]), over);
        assert_eq!(
            counters_of_values(1, [254, 0, 1, 255]),
            SequenceCounters { gaps: 1, reordered: 1, wraps: 1, ..SequenceCounters::default() }
        );
    }

    #[test]
    fn payloads_without_the_field_are_counted() {
        let mut sequence = SequenceTracker::new(SequenceField { offset: 0, width: 8, big_endian: false });
        sequence.observe_payload(&[0; 7]);
        assert_eq!(sequence.counters().too_short, 1);
    }
}
