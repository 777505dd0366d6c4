//! Sentences of errors.

use std::fmt::Display;

use nocopy_lab::refused::matches_sentence;
pub(crate) use nocopy_lab::refused::{Refused, with_refused_calls};

/// The kernel gives no memory.
pub(crate) const NO_MEMORY: Refused = Refused::always(libc::SYS_mmap, libc::ENOMEM);

/// Whether these calls can be refused here: the address sanitizer ends a process that gets no memory.
pub(crate) fn can_refuse(refused: &[Refused]) -> bool {
    !(cfg!(nocopy_sanitizer) && refused.contains(&NO_MEMORY))
}

/// Compares errors with the sentences that were expected; reports all that differ at once.
#[derive(Debug, Default)]
pub(crate) struct ErrorTexts(Vec<String>);

impl ErrorTexts {
    /// `…` stands for words that differ between machines.
    pub(crate) fn expect_text<T>(&mut self, tried: Result<T, impl Display>, expected: &str) {
        let said = tried.map_or_else(|error| error.to_string(), |_| "no error".to_owned());
        if !matches_sentence(&said, expected) {
            self.0.push(format!("said:     {said}\nexpected: {expected}"));
        }
    }

    pub(crate) fn assert_all_matched(self) {
        assert!(self.0.is_empty(), "\n{}\n", self.0.join("\n"));
    }
}
