//! Packets of a capture file.
//!
//! The file is read while it is sent. Errors that can be found before the first packet are reported
//! before anything is sent; a later error ends the run there, after the packets before it.

mod capture;
mod checksums;
mod clock;
mod content;
pub(super) mod damage;
mod framing;
#[cfg(any(feature = "fuzzing", test))]
pub(super) mod oracle;
mod order;
mod packed;
mod pcap;
mod pcapng;
mod playback;
#[cfg(test)]
mod tests;
mod window;
mod zstd;

use std::path::{Path, PathBuf};
use std::time::Duration;

use checksums::Correction;
use damage::Damage;

pub(super) use clock::Skipped;
pub(super) use framing::Stations;
pub(super) use playback::Playing;

use super::error::Error;
use super::input::Input;
use super::source::{Ahead, Source};
use crate::Failure;
use crate::arguments::Rounds;
use nocopy_report::Interrupt;
use nocopy_report::input_file::name;
use playback::Playback;

/// The longest gap that is kept if no other is asked for.
pub(super) const GAP_MAX: Duration = Duration::from_secs(5);

pub(super) fn open(path: &Path, interrupt: &Interrupt) -> Result<Input, Error> {
    Input::open(path, interrupt)
        .map_err(|source| Error::Replay { path: name(path), source: Damage::Read(source) })
}

#[derive(Debug)]
pub(super) struct Replay {
    path: PathBuf,
    playback: Playback<Input>,
    /// Of the current packet, once it is written.
    correction: Correction,
    corrections: Corrections,
}

/// Packets by what became of their checksums.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Corrections {
    pub made: u64,
    /// They were not complete, and sent as they are.
    pub impossible: u64,
}

impl Replay {
    /// Reads the first packet of an open file.
    pub(super) fn new(
        path: &Path,
        input: Input,
        playing: Playing,
        interrupt: &Interrupt,
    ) -> Result<Self, Error> {
        let mut playback = Playback::new(input, playing, || interrupt.came())
            .map_err(|source| Error::Replay { path: name(path), source })?;
        playback.input().wait_no_more();
        let (correction, corrections) = (Correction::None, Corrections::default());
        Ok(Self { path: name(path), playback, correction, corrections })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn format(&self) -> &'static str {
        self.playback.capture().format()
    }

    /// How the file is compressed, if it is.
    pub(super) fn packing(&self) -> Option<&'static str> {
        self.playback.capture().packing()
    }

    /// Packets that were sent, and cut when they were recorded.
    pub(super) fn cut(&self) -> u64 {
        self.playback.cut()
    }

    pub(super) fn gap_max(&self) -> Duration {
        self.playback.playing().gap_max
    }

    pub(super) fn skipped(&self) -> Skipped {
        self.playback.clock().skipped()
    }

    /// `None` if checksums are sent as recorded.
    pub(super) fn corrections(&self) -> Option<Corrections> {
        self.playback.playing().fix_checksums.then_some(self.corrections)
    }

    /// Packets that are no Ethernet frames and cannot become such, by cause.
    pub(super) fn unsendable(&self) -> impl Iterator<Item = (String, u64)> {
        self.playback.unsendable().iter().map(|(cause, count)| (cause.name(), *count))
    }

    pub(super) fn is_forever(&self) -> bool {
        self.playback.playing().rounds == Rounds::Forever
    }

    /// How often the file was sent completely. Checks whether it ends after the last packet sent; errors there no longer matter.
    pub(super) fn rounds_done(&mut self) -> u64 {
        let _ = self.playback.ahead();
        self.playback.rounds_done()
    }
}

impl Source for Replay {
    fn ahead(&mut self) -> Result<Ahead, Failure> {
        match self.playback.ahead() {
            Ok(ahead) => Ok(ahead),
            Err(source) => Err(Error::Replay { path: self.path.clone(), source }.into()),
        }
    }

    fn write(&mut self, buffer: &mut [u8]) {
        self.playback.write(buffer);
        if self.playback.playing().fix_checksums {
            let is_cut = self.playback.is_cut();
            self.correction = if is_cut { Correction::Impossible } else { checksums::correct(buffer) };
        }
    }

    fn advance(&mut self) {
        match std::mem::replace(&mut self.correction, Correction::None) {
            Correction::None => {}
            Correction::Made => self.corrections.made += 1,
            Correction::Impossible => self.corrections.impossible += 1,
        }
        self.playback.advance();
    }

    fn skip(&mut self) {
        self.correction = Correction::None;
        self.playback.skip();
    }
}
