//! A face of a machine: what differs between one user's machine and the next, as words `FACTOR=VALUE`.

use std::fmt;
use std::str::FromStr;

/// Something that differs between machines, with the values that are tried.
#[derive(Debug)]
pub(super) struct MachineFactor {
    pub(super) name: &'static str,
    pub(super) values: &'static [&'static str],
}

const fn machine_factor(name: &'static str, values: &'static [&'static str]) -> MachineFactor {
    MachineFactor { name, values }
}

/// The value that leaves the machine as it is, as a missing word does.
const USUAL: &str = "usual";

pub(super) const FACTORS: [MachineFactor; 19] = [
    // The characters of the processor's name.
    machine_factor("processor-name", &["0", "12", "48", "130"]),
    machine_factor("processors", &["1", "2"]),
    // The columns of the terminal that a test's standard streams are.
    machine_factor("terminal", &["none", "40", "240"]),
    machine_factor("lang", &["C", "de_DE.UTF-8"]),
    machine_factor("zone", &["east", "west"]),
    machine_factor("host-name", &[USUAL, "long"]),
    machine_factor("home", &[USUAL, "unset", "read-only"]),
    machine_factor("hosts", &[USUAL, "localhost-is-ipv6"]),
    machine_factor("ipv6", &[USUAL, "disabled", "absent"]),
    machine_factor("folder", &[USUAL, "unwritable"]),
    machine_factor("clone", &[USUAL, "blank"]),
    machine_factor("target", &[USUAL, "elsewhere"]),
    machine_factor("temporary", &[USUAL, "elsewhere"]),
    machine_factor("umask", &[USUAL, "077"]),
    machine_factor("descriptors", &[USUAL, "256"]),
    machine_factor("interrupt", &[USUAL, "ignored"]),
    machine_factor("input", &[USUAL, "closed"]),
    machine_factor("sysctls", &[USUAL, "stock"]),
    machine_factor("io-uring", &[USUAL, "refused"]),
];

/// At most one value for each factor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MachineVariant(Vec<(&'static str, &'static str)>);

impl MachineVariant {
    /// The face with these values, in the order of [`FACTORS`].
    pub(super) fn with_values(values: impl IntoIterator<Item = &'static str>) -> Self {
        Self(FACTORS.iter().map(|factor| factor.name).zip(values).collect())
    }

    /// What a factor is to be; `None`: as it is on this machine.
    pub(crate) fn value_of(&self, name: &str) -> Option<&'static str> {
        debug_assert!(FACTORS.iter().any(|factor| factor.name == name), "{name} is no factor");
        self.0
            .iter()
            .find(|(factor, _)| *factor == name)
            .map(|(_, value)| *value)
            .filter(|&value| value != USUAL)
    }

    /// As [`value_of`](Self::value_of), where the values are numbers.
    pub(crate) fn numeric_value_of(&self, name: &str) -> Option<usize> {
        self.value_of(name)?.parse().ok()
    }
}

impl fmt::Display for MachineVariant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|(factor, value)| format!("{factor}={value}")).collect();
        f.write_str(&words.join(" "))
    }
}

impl FromStr for MachineVariant {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split_whitespace().map(parse_factor_value).collect::<Result<_, _>>().map(Self)
    }
}

fn parse_factor_value(word: &str) -> Result<(&'static str, &'static str), String> {
    let (name, value) = word.split_once('=').unwrap_or((word, ""));
    let Some(factor) = FACTORS.iter().find(|factor| factor.name == name) else {
        let all: Vec<&str> = FACTORS.iter().map(|factor| factor.name).collect();
        return Err(format!("'{name}' is no factor; there are {}", all.join(", ")));
    };
    let value = factor.values.iter().find(|known| **known == value);
    let unknown = || format!("'{word}': {name} can be {}", factor.values.join(", "));
    value.map(|value| (factor.name, *value)).ok_or_else(unknown)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_face_round_trips_as_text() {
        let face = MachineVariant::with_values(FACTORS.iter().map(|factor| factor.values[0]));
        assert_eq!(face.to_string().parse(), Ok(face));
        let face: MachineVariant = "terminal=40 home=usual".parse().unwrap();
        assert_eq!(
            (face.numeric_value_of("terminal"), face.value_of("home"), face.value_of("zone")),
            (Some(40), None, None)
        );
    }

    #[test]
    fn unknown_factors_and_values_are_refused() {
        let error = |text: &str| text.parse::<MachineVariant>().unwrap_err();
        assert!(error("moon=full").starts_with("'moon' is no factor; there are processor-name, "));
        assert_eq!(error("zone=north"), "'zone=north': zone can be east, west");
        assert_eq!(error("zone"), "'zone': zone can be east, west");
    }
}
