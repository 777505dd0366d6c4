//! Settings that `nocopy run` passes in environment variables. A process that has more rights than its user
//! ignores them.
//!
//! Nothing here allocates, because it runs before the program starts, with only the C library.

use std::ffi::CStr;
use std::sync::OnceLock;

use nocopy_proto::run::sockets::FILE_BYTES;

use crate::run::{BurstTuning, ENTRY};
use crate::sys;

/// The file for the counts, as `NUMBER:INODE` of a descriptor that the program inherits.
const REPORT: &CStr = c"NOCOPY_BATCH_REPORT";

/// How to treat sockets, for tests: words `entry=N`, `always`, `deadline=MICROSECONDS`, `by-hand`,
/// `by-hand-first`, with commas between.
const TUNING: &CStr = c"NOCOPY_BATCH_TUNING";

/// How long a burst waits for further datagrams; the kernel's timer may be late by its slack.
const DEADLINE_US: u64 = 90;

fn secure_getenv(name: &CStr) -> Option<&'static str> {
    // SAFETY: takes a number.
    let is_elevated = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_elevated {
        return None;
    }
    // SAFETY: the name ends with a zero; the value does, and stays: the program has not begun yet.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        if value.is_null() { None } else { CStr::from_ptr(value).to_str().ok() }
    }
}

/// The descriptor of the shared file, if it still refers to that file. No process can make the file shorter:
/// a count that is written behind its end would end this one.
pub(crate) fn report_file_descriptor() -> Option<i32> {
    let (number, inode) = secure_getenv(REPORT)?.split_once(':')?;
    let (number, inode): (i32, u64) = (number.parse().ok()?, inode.parse().ok()?);
    let is_same = sys::inode_and_length(number)? == (inode, FILE_BYTES as u64);
    (is_same && sys::has_fixed_length(number)).then_some(number)
}

/// How the library works in this program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    pub(crate) tuning: BurstTuning,
    /// How long a burst waits for further datagrams; 0: not at all.
    pub(crate) deadline_us: u64,
    pub(crate) by_hand: Option<MinimalBurstMode>,
}

/// Bursts of all equal sends, without any of the rules, which the bench measures as the upper limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MinimalBurstMode {
    /// No datagram is sent alone.
    All,
    /// The first datagram of each burst is sent alone.
    FirstSingly,
}

static SETTINGS: OnceLock<Settings> = OnceLock::new();

/// Reads the environment, before the program starts.
pub(crate) fn read_environment() {
    let _ = SETTINGS.set(secure_getenv(TUNING).map_or(Settings::DEFAULT, Settings::parse));
}

#[inline]
pub(crate) fn settings() -> Settings {
    SETTINGS.get().copied().unwrap_or(Settings::DEFAULT)
}

impl Settings {
    const DEFAULT: Self = Self { tuning: BurstTuning::DEFAULT, deadline_us: DEADLINE_US, by_hand: None };

    fn parse(words: &str) -> Self {
        let mut settings = Self::DEFAULT;
        for word in words.split(',') {
            match word.split_once('=') {
                Some(("entry", count)) => settings.tuning.entry = count.parse().unwrap_or(ENTRY).max(1),
                Some(("deadline", time)) => settings.deadline_us = time.parse().unwrap_or(DEADLINE_US),
                None if word == "always" => settings.tuning.always = true,
                None if word == "by-hand" => settings.by_hand = Some(MinimalBurstMode::All),
                None if word == "by-hand-first" => settings.by_hand = Some(MinimalBurstMode::FirstSingly),
                _ => {}
            }
        }
        settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_words_of_the_tuning_are_ignored() {
        let settings = Settings::parse("entry=1,always,deadline=0,more=2,,entry");
        assert_eq!((settings.tuning.entry, settings.tuning.always, settings.deadline_us), (1, true, 0));
        let settings = Settings::parse("entry=0,deadline=x,by-hand");
        assert_eq!(
            (settings.tuning.entry, settings.tuning.always, settings.deadline_us),
            (1, false, DEADLINE_US)
        );
        assert_eq!(settings.by_hand, Some(MinimalBurstMode::All));
        assert_eq!(Settings::parse("by-hand-first").by_hand, Some(MinimalBurstMode::FirstSingly));
    }
}
