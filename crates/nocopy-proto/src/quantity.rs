//! Quantities as text, in a form that the command also reads.

/// A time with a unit that the command's options accept: `842 us`, `12.3 ms`, `1.50 s`.
pub fn time_text(seconds: f64) -> String {
    let (value, unit) = match seconds {
        _ if seconds < 0.9995e-3 => (seconds * 1e6, "us"),
        _ if seconds < 0.9995 => (seconds * 1e3, "ms"),
        _ => (seconds, "s"),
    };
    let decimals = match value {
        99.95.. => 0,
        9.995.. => 1,
        _ => 2,
    };
    format!("{value:.decimals$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_three_digits_and_a_fitting_unit() {
        let times = [0.0, 7.5e-9, 842e-6, 0.9996e-3, 12.34e-3, 0.9996, 1.5, 83.42, 1234.5];
        let words =
            ["0.00 us", "0.01 us", "842 us", "1.00 ms", "12.3 ms", "1.00 s", "1.50 s", "83.4 s", "1234 s"];
        assert_eq!(times.map(time_text), words);
    }
}
