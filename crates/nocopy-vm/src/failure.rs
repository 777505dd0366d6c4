use std::error::Error;
use std::fmt;

/// Why a test failed: any error, with its message and those of its causes.
#[derive(Debug)]
pub(crate) struct Failure(pub(crate) String);

impl<E: Error> From<E> for Failure {
    fn from(error: E) -> Self {
        let (mut words, mut cause) = (error.to_string(), error.source());
        while let Some(next) = cause {
            let text = next.to_string();
            // Many errors repeat their cause in their own words.
            if !words.contains(&text) {
                words = format!("{words}: {text}");
            }
            cause = next.source();
        }
        Self(words)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The last lines of what a program printed.
pub(crate) fn last_lines(text: &str, count: usize) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(count)..].to_vec()
}
