//! What was chosen, in words.

use std::fmt;

/// What was chosen on this machine, what it was compared with, and why: text for people, a line for each choice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation(String);

impl Explanation {
    pub(crate) fn of(choice: &impl fmt::Display) -> Self {
        Self(choice.to_string())
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
