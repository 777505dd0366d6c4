//! Packets of a capture file.
//!
//! The file is read while it is sent. Errors that can be found before the first packet are reported
//! before anything is sent; a later error ends the run there, after the packets before it.

mod byte_order;
mod capture;
mod checksums;
mod clock;
mod compressed;
mod content;
pub(super) mod damage;
mod framing;
#[cfg(any(feature = "fuzzing", test))]
pub(super) mod oracle;
mod pcap;
mod pcapng;
mod playback;
#[cfg(test)]
mod tests;
mod window;
mod zstd;

use std::path::{Path, PathBuf};
use std::time::Duration;

use checksums::ChecksumCorrection;
use clock::SkippedTime;
use damage::CaptureError;
use serde::Serialize;

pub(super) use framing::MacAddresses;
pub(super) use playback::PlaybackSettings;

use super::error::Error;
use super::input::Input;
use super::source::{PacketSource, PeekResult};
use crate::Failure;
use crate::arguments::RepeatCount;
use nocopy_report::Interrupt;
use nocopy_report::input_file::display_name;
use playback::Playback;

/// The longest gap that is kept if no other is asked for.
pub(super) const GAP_MAX: Duration = Duration::from_secs(5);

pub(super) fn open_replay_input(path: &Path, interrupt: &Interrupt) -> Result<Input, Error> {
    Input::open(path, interrupt)
        .map_err(|source| Error::Replay { path: display_name(path), source: CaptureError::Read(source) })
}

#[derive(Debug)]
pub(super) struct ReplaySource {
    path: PathBuf,
    playback: Playback<Input>,
    /// Of the current packet, once it is written.
    correction: ChecksumCorrection,
    corrections: CorrectionCounters,
}

/// Packets by what became of their checksums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct CorrectionCounters {
    pub made: u64,
    /// They were not complete, and sent as they are.
    pub impossible: u64,
}

impl ReplaySource {
    /// Reads the first packet of an open file.
    pub(super) fn new(
        path: &Path,
        input: Input,
        settings: PlaybackSettings,
        interrupt: &Interrupt,
    ) -> Result<Self, Error> {
        let mut playback = Playback::new(input, settings, || interrupt.was_interrupted())
            .map_err(|source| Error::Replay { path: display_name(path), source })?;
        playback.input().stop_waiting();
        let (correction, corrections) = (ChecksumCorrection::None, CorrectionCounters::default());
        Ok(Self { path: display_name(path), playback, correction, corrections })
    }

    /// Packets that were sent, and truncated when they were recorded.
    pub(super) fn truncated_packets(&self) -> u64 {
        self.playback.truncated_packets()
    }

    /// `None` if checksums are sent as recorded.
    pub(super) fn corrections(&self) -> Option<CorrectionCounters> {
        self.playback.settings().fix_checksums.then_some(self.corrections)
    }

    /// Packets that are no Ethernet frames and cannot become such, by cause.
    pub(super) fn unsendable_by_cause(&self) -> impl Iterator<Item = (String, u64)> {
        self.playback.unsendable_by_cause().iter().map(|(cause, count)| (cause.name(), *count))
    }

    /// How often the file was sent completely. Checks whether it ends after the last packet sent; errors
    /// there no longer matter.
    fn rounds_done(&mut self) -> u64 {
        let _ = self.playback.peek();
        self.playback.rounds_done()
    }

    pub(super) fn report_row(&mut self, is_timed: bool) -> ReplayRow {
        let PlaybackSettings { rounds, gap_max, .. } = *self.playback.settings();
        let SkippedTime { gaps, ns, steps_back } = self.playback.clock().skipped();
        let times =
            SkippedTimeRow { gaps_shortened: gaps, skipped_seconds: ns as f64 / 1e9, steps_back, gap_max };
        ReplayRow {
            file: self.path.display().to_string(),
            format: self.playback.capture().format(),
            compression: self.playback.capture().compression(),
            rounds: self.rounds_done(),
            forever: rounds == RepeatCount::Forever,
            truncated: self.truncated_packets(),
            times: is_timed.then_some(times),
            checksums: self.corrections().map(|CorrectionCounters { made, impossible }| ChecksumsRow {
                checksums_fixed: made,
                checksums_not_fixed: impossible,
            }),
        }
    }
}

#[derive(Debug, Serialize)]
pub(super) struct ReplayRow {
    pub file: String,
    pub format: &'static str,
    /// How the file is compressed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<&'static str>,
    /// How often it was sent as a whole.
    pub rounds: u64,
    #[serde(skip)]
    pub forever: bool,
    /// Packets truncated by the recording's snap length, which are sent as they are in the file.
    pub truncated: u64,
    /// With the recorded times.
    #[serde(flatten)]
    pub times: Option<SkippedTimeRow>,
    /// With --fix-checksums.
    #[serde(flatten)]
    pub checksums: Option<ChecksumsRow>,
}

/// Recorded time that was not waited for.
#[derive(Debug, Serialize)]
pub(super) struct SkippedTimeRow {
    pub gaps_shortened: u64,
    pub skipped_seconds: f64,
    pub steps_back: u64,
    #[serde(skip)]
    pub gap_max: Duration,
}

#[derive(Debug, Serialize)]
pub(super) struct ChecksumsRow {
    /// Packets whose checksums were wrong.
    pub checksums_fixed: u64,
    /// Packets whose checksums were not fixed: they are truncated, or their headers are invalid.
    pub checksums_not_fixed: u64,
}

impl PacketSource for ReplaySource {
    fn peek(&mut self) -> Result<PeekResult, Failure> {
        match self.playback.peek() {
            Ok(ahead) => Ok(ahead),
            Err(source) => Err(Error::Replay { path: self.path.clone(), source }.into()),
        }
    }

    fn write(&mut self, buffer: &mut [u8]) {
        self.playback.write(buffer);
        if self.playback.settings().fix_checksums {
            let is_truncated = self.playback.is_truncated();
            self.correction = if is_truncated {
                ChecksumCorrection::Impossible
            } else {
                checksums::correct_checksums(buffer)
            };
        }
    }

    fn advance(&mut self) {
        match std::mem::replace(&mut self.correction, ChecksumCorrection::None) {
            ChecksumCorrection::None => {}
            ChecksumCorrection::Made => self.corrections.made += 1,
            ChecksumCorrection::Impossible => self.corrections.impossible += 1,
        }
        self.playback.advance();
    }

    fn skip(&mut self) {
        self.correction = ChecksumCorrection::None;
        self.playback.skip();
    }
}
