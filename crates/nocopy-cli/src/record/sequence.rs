//! Gaps in a counter that every datagram carries.

use serde::Serialize;

use nocopy_report::quantity::parse_digits;
use nocopy_transfer::arrivals::{Arrival, Arrivals};

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

    fn bits(self) -> u32 {
        self.width as u32 * 8
    }

    fn read(self, payload: &[u8]) -> Option<u64> {
        let bytes = payload.get(self.offset..self.offset + self.width)?;
        let next = |value: u64, byte: &u8| value << 8 | u64::from(*byte);
        Some(if self.big_endian { bytes.iter().fold(0, next) } else { bytes.iter().rev().fold(0, next) })
    }
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Gaps {
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

impl Gaps {
    pub(super) fn rows(&self) -> impl Iterator<Item = (&'static str, String, String)> + use<> {
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
pub(super) struct Sequence {
    field: SequenceField,
    /// `None` before the first value.
    arrivals: Option<Arrivals>,
    gaps: Gaps,
}

impl Sequence {
    pub(super) fn new(field: SequenceField) -> Self {
        Self { field, arrivals: None, gaps: Gaps::default() }
    }

    pub(super) fn gaps(&self) -> Gaps {
        self.gaps
    }

    pub(super) fn observe(&mut self, payload: &[u8]) {
        let Self { field, arrivals, gaps } = self;
        let Some(value) = field.read(payload) else {
            gaps.too_short += 1;
            return;
        };
        let arrivals = arrivals.get_or_insert_with(|| Arrivals::new(field.bits(), WINDOW, value));
        match arrivals.note(value) {
            Arrival::Ahead { left_out, went_round } => {
                gaps.missing = gaps.missing.saturating_add(left_out);
                gaps.gaps += u64::from(left_out > 0);
                gaps.wraps += u64::from(went_round);
            }
            Arrival::Late => {
                gaps.reordered += 1;
                gaps.missing = gaps.missing.saturating_sub(1);
            }
            Arrival::Again => gaps.duplicate += 1,
            Arrival::Stale => {
                gaps.restarts += 1;
                arrivals.restart(value.wrapping_add(1));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(width: usize, values: impl IntoIterator<Item = u64>) -> Gaps {
        let field = SequenceField { offset: 2, width, big_endian: true };
        let mut sequence = Sequence::new(field);
        for value in values {
            let payload = [&[0xff; 2], &value.to_be_bytes()[8 - width..], &[0xff]].concat();
            sequence.observe(&payload);
        }
        sequence.gaps()
    }

    #[test]
    fn missing_values_saturate() {
        let far = u64::MAX / 2;
        let jumps = gaps(8, (0..5_u64).map(|jump| jump.wrapping_mul(far)));
        assert_eq!((jumps.missing, jumps.gaps), (u64::MAX, 4));
    }

    #[test]
    fn a_field_is_parsed_and_read() {
        let field = SequenceField::parse("1:4:le").unwrap();
        assert_eq!((field.read(&[9, 1, 2, 0, 0]), field.read(&[9, 1, 2, 0])), (Some(513), None));
        assert_eq!(SequenceField::parse("0:2:be").unwrap().read(&[1, 2, 3]), Some(258));
        for wrong in
            ["", "0:3:be", "0:8", "0:8:xe", "-1:8:be", "+1:8:be", "1:+8:be", "70000:8:be", "0:8:be:1"]
        {
            assert!(SequenceField::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn missing_reordered_and_duplicate_values_are_counted() {
        assert_eq!(gaps(8, 5..100), Gaps::default());
        assert_eq!(gaps(8, [1, 2, 5, 6, 9]), Gaps { missing: 4, gaps: 2, ..Gaps::default() });
        assert_eq!(gaps(8, [1, 3, 2, 4]), Gaps { gaps: 1, reordered: 1, ..Gaps::default() });
        assert_eq!(gaps(8, [1, 2, 2, 1, 3]), Gaps { duplicate: 2, ..Gaps::default() });
        let late_twice = Gaps { gaps: 1, reordered: 1, duplicate: 1, ..Gaps::default() };
        assert_eq!(gaps(8, [1, 3, 2, 2, 4]), late_twice);
        assert_eq!(gaps(8, [1_000_000, 1_000_001, 0, 1, 2]), Gaps { restarts: 1, ..Gaps::default() });
        let far = Gaps { missing: 999_999, gaps: 1, ..Gaps::default() };
        assert_eq!(gaps(8, [0, 1_000_000]), far);
    }

    #[test]
    fn a_wrapped_counter_is_no_gap() {
        let round = |width: usize, from: u64, count: u64| {
            let mask = u64::MAX >> (64 - 8 * width);
            gaps(width, (0..count).map(move |step| from.wrapping_add(step) & mask))
        };
        for width in [1, 2, 4, 8] {
            let mask = u64::MAX >> (64 - 8 * width);
            assert_eq!(round(width, mask - 5, 20), Gaps { wraps: 1, ..Gaps::default() }, "{width}");
        }
        assert_eq!(round(1, 0, 1000), Gaps { wraps: 3, ..Gaps::default() });
        let over = Gaps { missing: 1, gaps: 1, wraps: 1, ..Gaps::default() };
        assert_eq!(gaps(1, [254, 255, 1, 2]), over);
        assert_eq!(gaps(1, [254, 0, 1, 255]), Gaps { gaps: 1, reordered: 1, wraps: 1, ..Gaps::default() });
    }

    #[test]
    fn payloads_without_the_field_are_counted() {
        let mut sequence = Sequence::new(SequenceField { offset: 0, width: 8, big_endian: false });
        sequence.observe(&[0; 7]);
        assert_eq!(sequence.gaps().too_short, 1);
    }
}
