//! A cross-check: two independent values that must agree.

use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CountCheck {
    pub name: String,
    pub passed: bool,
    /// The compared values in `unit`, by the first and the second count, and the allowed difference.
    pub first: f64,
    pub second: f64,
    pub allowed: f64,
    pub unit: String,
    /// For a reader: the two figures that are compared.
    pub about: String,
}

impl CountCheck {
    pub fn of_equal_bytes(name: &str, first: u64, second: u64, about: String) -> Self {
        Self {
            name: name.into(),
            passed: first == second,
            first: first as f64,
            second: second as f64,
            allowed: 0.0,
            unit: "bytes".into(),
            about,
        }
    }

    /// A line for a reader.
    pub fn description(&self) -> String {
        let Self { first, second, allowed, unit, about, .. } = self;
        let number = |value: &f64| match unit.as_str() {
            "bytes" => format!("{value:.0}"),
            _ => format!("{value:.3}"),
        };
        let [first, second] = [number(first), number(second)];
        let within = if *allowed > 0.0 { format!(" (± {})", number(allowed)) } else { String::new() };
        let verdict = if self.passed { "agree" } else { "DO NOT AGREE" };
        format!("{about}: {first} and {second} {unit}{within}: {verdict}")
    }
}
