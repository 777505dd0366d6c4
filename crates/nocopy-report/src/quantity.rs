//! Amounts as people write them on a command line, and as they read them.

use std::ops::RangeInclusive;
use std::str::FromStr;
use std::time::Duration;

pub use nocopy_proto::quantity::time_text;

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Rate {
    Packets(f64),
    Bits(f64),
}

/// A number with the prefix of a unit behind it: powers of 1000 (`k`, `M`, `G`, `T`), or of 1024 (`Ki`, `Mi`,
/// …).
fn parse_prefixed_number(text: &str) -> Option<(f64, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let value: f64 = text[..end].parse().ok()?;
    let (base, rest) = match text[end..].split_at_checked(2) {
        Some((prefix, rest)) if prefix.ends_with('i') => (prefix.chars().next()?, rest),
        _ => ('\0', &text[end..]),
    };
    let power = |letter: char| "kmgt".find(letter.to_ascii_lowercase()).map(|index| index as i32 + 1);
    if base != '\0' {
        return Some((value * 1024_f64.powi(power(base)?), rest));
    }
    match rest.chars().next().and_then(power) {
        Some(power) => Some((value * 1000_f64.powi(power), &rest[1..])),
        None => Some((value, rest)),
    }
}

/// A number that is written in digits alone, unlike those that [`str::parse`] takes: `+7`.
pub fn parse_digits<T: FromStr>(digits: &str) -> Option<T> {
    digits.bytes().all(|digit| digit.is_ascii_digit()).then(|| digits.parse().ok())?
}

/// Parses a count: `1000`, `10k`, `1.5M`.
pub fn parse_count(text: &str) -> Result<u64, String> {
    let value =
        parse_prefixed_number(text).filter(|(value, unit)| unit.is_empty() && *value >= 1.0 && *value < 1e19);
    value.map(|(value, _)| value as u64).ok_or_else(|| "not a count from 1: write 1000, 10k, 1.5M".into())
}

/// An amount of memory or of a file: `4096`, `64MiB`, `1G`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let value = parse_prefixed_number(text)
        .filter(|(value, unit)| matches!(*unit, "" | "B") && *value >= 1.0 && *value < 1e19);
    value.map(|(value, _)| value as u64).ok_or_else(|| "not a number of bytes: write 4096, 64MiB, 1G".into())
}

/// As `parse_bytes`, within inclusive limits.
pub fn bytes_parser_within<T: TryFrom<u64>>(
    limits: RangeInclusive<u64>,
) -> impl Fn(&str) -> Result<T, String> + Clone {
    move |text| {
        let value = Some(parse_bytes(text)?).filter(|bytes| limits.contains(bytes));
        let value = value.and_then(|bytes| T::try_from(bytes).ok());
        value.ok_or_else(|| {
            let [least, most] = [limits.start(), limits.end()].map(|bytes| length_text(*bytes as usize));
            format!("not from {least} to {most}")
        })
    }
}

/// Permissions of a file, as chmod(1) writes them: `640`.
pub fn parse_permissions(text: &str) -> Result<u32, String> {
    let permissions = parse_digits::<u64>(text).and_then(|_| u32::from_str_radix(text, 8).ok());
    let permissions = permissions.filter(|permissions| *permissions <= 0o777);
    permissions.ok_or_else(|| "not permissions from 0 to 777: write 640, 644".into())
}

/// A time: `10`, `1.5s`, `200ms`, `5m`, `1h`.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let unit = match &text[end..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        "d" => 86_400.0,
        _ => f64::NAN,
    };
    let seconds = text[..end].parse::<f64>().unwrap_or(f64::NAN) * unit;
    let valid = (1e-6..=1e9).contains(&seconds).then(|| Duration::from_secs_f64(seconds));
    valid.ok_or_else(|| "not a time: write 10s, 200ms, 5m, 1h".into())
}

/// A rate: `300kpps`, `1.5Mpps`, `10Gbit`, `900Mbit/s`.
pub fn parse_rate(text: &str) -> Result<Rate, String> {
    let parsed = parse_prefixed_number(text).filter(|(value, _)| *value > 0.0 && *value < 1e15);
    let rate = parsed.and_then(|(value, unit)| match unit {
        "pps" | "p/s" => Some(Rate::Packets(value)),
        "bit" | "bit/s" | "bps" | "b/s" => Some(Rate::Bits(value)),
        _ => None,
    });
    rate.ok_or_else(|| "not a rate: write 300kpps, 1.5Mpps, 10Gbit/s".into())
}

/// A number for people: `0.50`, `842`, `1.23 M`, `45.6 k`.
pub fn short_number(value: f64) -> String {
    let (value, prefix) = match value {
        _ if value < 9.995 && value.fract() != 0.0 => (value, ""),
        _ if value >= 999.5e9 => (value / 1e12, " T"),
        _ if value >= 999.5e6 => (value / 1e9, " G"),
        _ if value >= 999.5e3 => (value / 1e6, " M"),
        _ if value >= 1e4 => (value / 1e3, " k"),
        _ => return format!("{value:.0}"),
    };
    let decimals = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        2
    };
    format!("{value:.decimals$}{prefix}")
}

/// The end of a sentence: ` in 1.50 s`, or nothing for a time of zero.
pub fn in_time_suffix(seconds: f64) -> String {
    if seconds > 0.0 { format!(" in {}", time_text(seconds)) } else { String::new() }
}

/// A length in the largest fitting unit, rounded down: `64 B`, `64 KiB`, `4 MiB`.
pub fn length_text(bytes: usize) -> String {
    match bytes {
        bytes if bytes >= 1 << 40 => format!("{} TiB", bytes >> 40),
        bytes if bytes >= 1 << 30 => format!("{} GiB", bytes >> 30),
        bytes if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        bytes if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        bytes => format!("{bytes} B"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_unit_that_is_accepted() {
        let times = [842e-6, 0.9996e-3, 12.34e-3, 0.5, 0.9996, 1.5, 83.42, 1234.5];
        let words = ["842 us", "1.00 ms", "12.3 ms", "500 ms", "1.00 s", "1.50 s", "83.4 s", "1234 s"];
        for (seconds, word) in times.into_iter().zip(words) {
            assert_eq!(time_text(seconds), word);
            let read = parse_duration(&word.replace(' ', "")).unwrap().as_secs_f64();
            assert!((read - seconds).abs() <= seconds / 100.0, "{word}");
        }
    }

    #[test]
    fn a_time_of_zero_is_left_out() {
        assert_eq!((in_time_suffix(1.5), in_time_suffix(0.0)), (" in 1.50 s".into(), String::new()));
    }

    #[test]
    fn sizes_are_refused_outside_their_limits() {
        let parse = bytes_parser_within::<u32>(64..=64 << 20);
        assert_eq!(parse("64"), Ok(64));
        assert_eq!(parse("64MiB"), Ok(64 << 20));
        for outside in ["63", "65MiB", "8GiB"] {
            assert_eq!(parse(outside), Err("not from 64 B to 64 MiB".into()));
        }
        assert!(parse("many").is_err());
        assert!(bytes_parser_within::<u32>(1..=u64::MAX)("8GiB").is_err());
    }

    #[test]
    fn amounts_are_read_as_written() {
        assert_eq!(parse_count("10k"), Ok(10_000));
        assert_eq!(parse_count("1.5M"), Ok(1_500_000));
        assert_eq!(parse_bytes("64MiB"), Ok(64 << 20));
        assert_eq!(parse_bytes("1G"), Ok(1_000_000_000));
        assert_eq!(parse_bytes("2KB"), Ok(2000));
        assert_eq!(parse_duration("200ms"), Ok(Duration::from_millis(200)));
        assert_eq!(parse_duration("10"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_rate("300kpps"), Ok(Rate::Packets(300_000.0)));
        assert_eq!(parse_rate("10Gbit/s"), Ok(Rate::Bits(1e10)));
        assert_eq!(parse_rate("5pps"), Ok(Rate::Packets(5.0)));
    }

    #[test]
    fn whole_numbers_and_permissions_have_no_sign() {
        assert_eq!(
            (parse_digits("0"), parse_digits("255"), parse_digits("007")),
            (Some(0_u8), Some(255), Some(7))
        );
        for text in ["", "256", "+7", "-7", "7 ", "0x7", "1_0", "\u{663}"] {
            assert_eq!(parse_digits::<u8>(text), None, "{text}");
        }
        assert_eq!((parse_permissions("640"), parse_permissions("0777")), (Ok(0o640), Ok(0o777)));
        for text in ["", "+640", "-1", "8", "1000", "644 "] {
            assert!(parse_permissions(text).is_err(), "{text}");
        }
    }

    #[test]
    fn invalid_quantities_are_refused() {
        for text in ["", "0", "k", "-1", "1x", "1e5", "NaN", "inf", "1.2.3", "99999999999999999999"] {
            assert!(parse_count(text).is_err() && parse_rate(text).is_err(), "{text}");
            assert!(text == "99999999999999999999" || parse_bytes(text).is_err(), "{text}");
        }
        for text in ["", "0", "s", "-1s", "5x", "99999999999h", "NaN"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn lengths_are_in_binary_units() {
        assert_eq!([64, 64 << 10, 4 << 20].map(length_text), ["64 B", "64 KiB", "4 MiB"]);
    }

    #[test]
    fn numbers_are_short_for_people() {
        let printed =
            [0.0, 0.5, 9.0, 9.99, 9.999, 842.0, 12_345.0, 999_499.0, 999_999.0, 1_234_567.0, 99.4e6, 456e9]
                .map(short_number);
        assert_eq!(
            printed,
            ["0", "0.50", "9", "9.99", "10", "842", "12.3 k", "999 k", "1.00 M", "1.23 M", "99.4 M", "456 G"]
        );
    }
}
