//! A face of a machine: what differs between one user's machine and the next, as words `FACTOR=VALUE`.

use std::fmt;
use std::str::FromStr;

/// Something that differs between machines, with the values that are tried.
#[derive(Debug)]
pub(super) struct Factor {
    pub(super) name: &'static str,
    pub(super) values: &'static [&'static str],
}

const fn factor(name: &'static str, values: &'static [&'static str]) -> Factor {
    Factor { name, values }
}

/// The value that leaves the machine as it is, as a missing word does.
const USUAL: &str = "usual";

pub(super) const FACTORS: [Factor; 19] = [
    // The characters of the processor's name.
    factor("processor-name", &["0", "12", "48", "130"]),
    factor("processors", &["1", "2"]),
    // The columns of the terminal that a test's standard streams are.
    factor("terminal", &["none", "40", "240"]),
    factor("lang", &["C", "de_DE.UTF-8"]),
    factor("zone", &["east", "west"]),
    factor("host-name", &[USUAL, "long"]),
    factor("home", &[USUAL, "unset", "read-only"]),
    factor("hosts", &[USUAL, "localhost-is-ipv6"]),
    factor("ipv6", &[USUAL, "disabled", "absent"]),
    factor("folder", &[USUAL, "unwritable"]),
    factor("clone", &[USUAL, "blank"]),
    factor("target", &[USUAL, "elsewhere"]),
    factor("temporary", &[USUAL, "elsewhere"]),
    factor("umask", &[USUAL, "077"]),
    factor("descriptors", &[USUAL, "256"]),
    factor("interrupt", &[USUAL, "ignored"]),
    factor("input", &[USUAL, "closed"]),
    factor("sysctls", &[USUAL, "stock"]),
    factor("io-uring", &[USUAL, "refused"]),
];

/// At most one value for each factor.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Face(Vec<(&'static str, &'static str)>);

impl Face {
    /// The face with these values, in the order of [`FACTORS`].
    pub(super) fn of(values: impl IntoIterator<Item = &'static str>) -> Self {
        Self(FACTORS.iter().map(|factor| factor.name).zip(values).collect())
    }

    /// What a factor is to be; `None`: as it is on this machine.
    pub(crate) fn get(&self, name: &str) -> Option<&'static str> {
        debug_assert!(FACTORS.iter().any(|factor| factor.name == name), "{name} is no factor");
        self.0
            .iter()
            .find(|(factor, _)| *factor == name)
            .map(|(_, value)| *value)
            .filter(|&value| value != USUAL)
    }

    /// As [`get`](Self::get), where the values are numbers.
    pub(crate) fn number(&self, name: &str) -> Option<usize> {
        self.get(name)?.parse().ok()
    }
}

impl fmt::Display for Face {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|(factor, value)| format!("{factor}={value}")).collect();
        f.write_str(&words.join(" "))
    }
}

impl FromStr for Face {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        text.split_whitespace().map(word).collect::<Result<_, _>>().map(Self)
    }
}

fn word(word: &str) -> Result<(&'static str, &'static str), String> {
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
        let face = Face::of(FACTORS.iter().map(|factor| factor.values[0]));
        assert_eq!(face.to_string().parse(), Ok(face));
        let face: Face = "terminal=40 home=usual".parse().unwrap();
        assert_eq!((face.number("terminal"), face.get("home"), face.get("zone")), (Some(40), None, None));
    }

    #[test]
    fn unknown_factors_and_values_are_refused() {
        let error = |text: &str| text.parse::<Face>().unwrap_err();
        assert!(error("moon=full").starts_with("'moon' is no factor; there are processor-name, "));
        assert_eq!(error("zone=north"), "'zone=north': zone can be east, west");
        assert_eq!(error("zone"), "'zone': zone can be east, west");
    }
}
