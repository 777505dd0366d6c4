//! Times as they are printed.

use std::fmt::Write;

use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::arguments::TimeFormat;

const NS_PER_S: u64 = 1_000_000_000;

/// Writes times; works out the clock's once a second.
pub(super) struct TimestampFormatter {
    format: TimeFormat,
    zone: TimeZone,
    /// The second whose clock time is known.
    second: Option<u64>,
    text: String,
    /// The first packet's time.
    began_ns: Option<u64>,
}

impl TimestampFormatter {
    pub(super) fn new(format: TimeFormat) -> Self {
        let zone = match format {
            TimeFormat::Local => TimeZone::system(),
            _ => TimeZone::UTC,
        };
        Self { format, zone, second: None, text: String::new(), began_ns: None }
    }

    pub(super) fn write_timestamp(&mut self, ns: u64, line: &mut String) {
        let began_ns = *self.began_ns.get_or_insert(ns);
        // Writing to a string cannot fail.
        let _ = match self.format {
            TimeFormat::Local | TimeFormat::Utc => {
                write!(line, "{}.{:09}", self.cached_clock_time(ns / NS_PER_S), ns % NS_PER_S)
            }
            TimeFormat::Epoch => write!(line, "{}.{:09}", ns / NS_PER_S, ns % NS_PER_S),
            TimeFormat::Relative => {
                // Packets of several queues, or in both directions, may be shown in another order than they
                // arrived.
                let (sign, ns) = if ns < began_ns { ("-", began_ns - ns) } else { ("", ns - began_ns) };
                write!(line, "{sign}{}.{:09}", ns / NS_PER_S, ns % NS_PER_S)
            }
        };
    }

    fn cached_clock_time(&mut self, second: u64) -> &str {
        if self.second != Some(second) {
            self.second = Some(second);
            self.text.clear();
            // A card's clock may have any value; after the year 9999 no time of day is printed.
            let time = i64::try_from(second).ok().and_then(|second| Timestamp::from_second(second).ok());
            let _ = match time {
                Some(time) => write!(self.text, "{}", time.to_zoned(self.zone.clone()).strftime("%H:%M:%S")),
                None => write!(self.text, "{second}"),
            };
        }
        &self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2001-09-09 01:46:40 UTC.
    const NS: u64 = 1_000_000_000 * NS_PER_S;

    fn formatted_timestamp(clock: &mut TimestampFormatter, ns: u64) -> String {
        let mut line = String::new();
        clock.write_timestamp(ns, &mut line);
        line
    }

    #[test]
    fn timestamps_are_printed_in_each_format() {
        let mut utc = TimestampFormatter::new(TimeFormat::Utc);
        assert_eq!(formatted_timestamp(&mut utc, NS + 5), "01:46:40.000000005");
        assert_eq!(formatted_timestamp(&mut utc, NS + 999_999_999), "01:46:40.999999999");
        assert_eq!(formatted_timestamp(&mut utc, NS + NS_PER_S), "01:46:41.000000000");
        assert_eq!(formatted_timestamp(&mut utc, u64::MAX), "23:34:33.709551615", "the year 2554");
        let mut east = TimestampFormatter::new(TimeFormat::Local);
        east.zone = TimeZone::fixed(jiff::tz::offset(2));
        assert_eq!(formatted_timestamp(&mut east, NS), "03:46:40.000000000");
        assert_eq!(
            formatted_timestamp(&mut TimestampFormatter::new(TimeFormat::Epoch), NS + 5),
            "1000000000.000000005"
        );
        let mut relative = TimestampFormatter::new(TimeFormat::Relative);
        assert_eq!(formatted_timestamp(&mut relative, NS), "0.000000000");
        assert_eq!(formatted_timestamp(&mut relative, NS + 1_500_000_000), "1.500000000");
        assert_eq!(formatted_timestamp(&mut relative, NS - 1), "-0.000000001");
    }
}
