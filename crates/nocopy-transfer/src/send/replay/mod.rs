//! Packets of a capture file.
//!
//! The file is read while it is sent. Errors that can be found before the first packet are reported
//! before anything is sent; a later error ends the run there, after the packets before it.

mod capture;
pub(super) mod damage;
#[cfg(test)]
mod tests;
mod window;

use std::io::{Read, Seek};
use std::path::{Path, PathBuf};

use capture::{Capture, Recorded};
use damage::Damage;
use nocopy_proto::wire::ethernet::Frame;

use super::error::Error;
use super::input::Input;
use super::source::{Ahead, Source, Upcoming};
use crate::Failure;
use crate::arguments::Rounds;
use nocopy_report::Interrupt;
use nocopy_report::input_file::name;

pub(super) fn open(path: &Path, interrupt: &Interrupt) -> Result<Input, Error> {
    Input::open(path, interrupt)
        .map_err(|source| Error::Replay { path: name(path), source: Damage::Read(source) })
}

#[derive(Debug)]
pub(super) struct Replay {
    path: PathBuf,
    playback: Playback<Input>,
}

impl Replay {
    /// Reads the first packet of an open file.
    pub(super) fn new(path: &Path, input: Input, rounds: Rounds) -> Result<Self, Error> {
        let mut playback =
            Playback::new(input, rounds).map_err(|source| Error::Replay { path: name(path), source })?;
        playback.capture.input().wait_no_more();
        Ok(Self { path: name(path), playback })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn format(&self) -> &'static str {
        self.playback.capture.format()
    }

    /// Packets so far that were cut when they were recorded.
    pub(super) fn cut(&self) -> u64 {
        self.playback.cut
    }

    pub(super) fn is_forever(&self) -> bool {
        self.playback.rounds == Rounds::Forever
    }

    /// How often the file was sent completely. Checks whether it ends after the last packet sent; errors there no longer matter.
    pub(super) fn rounds_done(&mut self) -> u64 {
        let _ = self.playback.ahead();
        self.playback.rounds_done
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
        buffer.copy_from_slice(self.playback.capture.packet());
    }

    fn advance(&mut self) {
        self.playback.advance();
    }
}

/// The packets of a file, once or several times over, on one time scale.
#[derive(Debug)]
struct Playback<R> {
    capture: Capture<R>,
    rounds: Rounds,
    rounds_done: u64,
    cut: u64,
    current: Option<Recorded>,
    ended: bool,
    /// The recorded time of the file's first packet, once one has a time.
    first_ns: Option<i128>,
    /// The start of the round on the time scale, and the current packet's time.
    round_ns: u64,
    current_ns: u64,
}

impl<R: Read + Seek> Playback<R> {
    fn new(mut input: R, rounds: Rounds) -> Result<Self, Damage> {
        if rounds != Rounds::Times(1) {
            input.rewind().map_err(Damage::Rewind)?;
        }
        let mut playback = Self {
            capture: Capture::open(input)?,
            rounds,
            rounds_done: 0,
            cut: 0,
            current: None,
            ended: false,
            first_ns: None,
            round_ns: 0,
            current_ns: 0,
        };
        match playback.ahead()? {
            Ahead::Packet(_) => Ok(playback),
            Ahead::Silence => Err(Damage::Silence),
            Ahead::End => Err(Damage::NoPackets),
        }
    }

    fn ahead(&mut self) -> Result<Ahead, Damage> {
        while self.current.is_none() {
            if self.ended {
                return Ok(Ahead::End);
            }
            match self.capture.next() {
                Ok(Some(recorded)) => self.place_in_time(recorded),
                Ok(None) => self.begin_round()?,
                Err(Damage::Silence) => return Ok(Ahead::Silence),
                Err(damage) => return Err(damage),
            }
        }
        let packet = self.capture.packet();
        let tagged = Frame::parse(packet).is_ok_and(|frame| frame.ether_type().is_vlan());
        Ok(Ahead::Packet(Upcoming { bytes: packet.len(), tagged, recorded_ns: self.current_ns }))
    }

    fn advance(&mut self) {
        if let Some(recorded) = self.current.take() {
            self.cut += u64::from(recorded.cut);
        }
    }

    /// A packet recorded earlier than the one before it, or without a time, is sent together with that one.
    fn place_in_time(&mut self, recorded: Recorded) {
        if let Some(time_ns) = recorded.time_ns {
            let first_ns = *self.first_ns.get_or_insert(time_ns);
            let since_ns = u64::try_from((time_ns - first_ns).max(0)).unwrap_or(u64::MAX);
            self.current_ns = self.current_ns.max(self.round_ns.saturating_add(since_ns));
        }
        self.current = Some(recorded);
    }

    /// The next round begins when the last packet of the previous one was sent.
    fn begin_round(&mut self) -> Result<(), Damage> {
        self.rounds_done += 1;
        let more = match self.rounds {
            Rounds::Times(times) => self.rounds_done < times,
            Rounds::Forever => true,
        };
        // A round without a packet would be repeated for ever.
        self.ended = !more || self.capture.packets() == 0;
        if !self.ended {
            self.capture.rewind()?;
            (self.round_ns, self.first_ns) = (self.current_ns, None);
        }
        Ok(())
    }
}
