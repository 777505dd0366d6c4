//! The packets of a file, once or several times over, on one time scale.

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::time::Duration;

use super::capture::{Capture, SEARCHED_BYTES_MAX};
use super::clock::Clock;
use super::damage::Damage;
use super::framing::{Framing, Stations, Unsendable};
use crate::arguments::Rounds;
use crate::send::source::{Ahead, Upcoming};

/// What is done with the packets of a file.
#[derive(Debug, Clone, Copy)]
pub(in crate::send) struct Playing {
    pub rounds: Rounds,
    /// The longest gap between two packets that is kept.
    pub gap_max: Duration,
    pub stations: Stations,
    pub fix_checksums: bool,
}

/// A packet that is ready to be sent.
#[derive(Debug, Clone, Copy)]
struct Current {
    framing: Framing,
    is_cut: bool,
}

#[derive(Debug)]
pub(super) struct Playback<R> {
    capture: Capture<R>,
    /// Where each round begins in the input; 0 if there is only one.
    begin: u64,
    playing: Playing,
    rounds_done: u64,
    current: Option<Current>,
    ended: bool,
    clock: Clock,
    /// Packets of this round that can be sent.
    sendable: u64,
    cut: u64,
    unsendable: BTreeMap<Unsendable, u64>,
}

impl<R: Read + Seek> Playback<R> {
    /// Reads on to the first packet that can be sent; not any longer once `is_interrupted`.
    pub(super) fn new(
        mut input: R,
        playing: Playing,
        is_interrupted: impl Fn() -> bool,
    ) -> Result<Self, Damage> {
        let begin = match playing.rounds {
            Rounds::Times(1) => 0, // a pipe has no position
            _ => input.stream_position().map_err(Damage::Rewind)?,
        };
        let mut playback = Self {
            capture: Capture::open(input)?,
            begin,
            playing,
            rounds_done: 0,
            current: None,
            ended: false,
            clock: Clock::new(playing.gap_max),
            sendable: 0,
            cut: 0,
            unsendable: BTreeMap::new(),
        };
        loop {
            match playback.ahead()? {
                Ahead::Packet(_) => return Ok(playback),
                Ahead::Silence if is_interrupted() => return Err(Damage::Silence),
                Ahead::Silence => {}
                Ahead::End => return Err(playback.nothing()),
            }
        }
    }

    /// Why there is nothing to send.
    fn nothing(&self) -> Damage {
        if self.unsendable.is_empty() {
            return Damage::NoPackets;
        }
        let counts: Vec<_> =
            self.unsendable.iter().map(|(cause, count)| format!("{} {count}", cause.name())).collect();
        Damage::Unsendable { packets: self.unsendable.values().sum(), counts: counts.join(", ") }
    }

    pub(super) fn ahead(&mut self) -> Result<Ahead, Damage> {
        let mut begin = None;
        while self.current.is_none() {
            if self.ended {
                return Ok(Ahead::End);
            }
            match self.read() {
                Ok(true) => begin = None, // also of a new round
                Ok(false) => {
                    let at = self.capture.offset();
                    if at - *begin.get_or_insert(at) >= SEARCHED_BYTES_MAX {
                        return Ok(Ahead::Silence);
                    }
                }
                Err(Damage::Silence) => return Ok(Ahead::Silence),
                Err(damage) => {
                    self.ended = true;
                    return Err(damage);
                }
            }
        }
        let Some(Current { framing, .. }) = self.current else { unreachable!("read above") };
        let packet = self.capture.packet();
        let (bytes, tagged) = (framing.bytes(packet), framing.is_tagged(packet));
        Ok(Ahead::Packet(Upcoming { bytes, tagged, recorded_ns: self.clock.now_ns() }))
    }

    /// Reads the next packet, or begins the next round; `false` if the packet cannot be sent.
    fn read(&mut self) -> Result<bool, Damage> {
        let Some(recorded) = self.capture.next()? else { return self.begin_round().map(|()| true) };
        match Framing::of(recorded.link_type, self.capture.packet(), &self.playing.stations) {
            Ok(framing) => {
                self.clock.advance(recorded.time_ns);
                self.sendable += 1;
                self.current = Some(Current { framing, is_cut: recorded.cut });
                Ok(true)
            }
            Err(cause) => {
                *self.unsendable.entry(cause).or_default() += 1;
                Ok(false)
            }
        }
    }

    /// Whether the current packet was cut when it was recorded.
    pub(super) fn is_cut(&self) -> bool {
        self.current.is_some_and(|current| current.is_cut)
    }

    /// Writes the current packet into a buffer of its length.
    pub(super) fn write(&self, frame: &mut [u8]) {
        if let Some(Current { framing, .. }) = self.current {
            framing.write(self.capture.packet(), &self.playing.stations, frame);
        }
    }

    pub(super) fn advance(&mut self) {
        self.cut += u64::from(self.is_cut());
        self.skip();
    }

    /// As [`advance`](Self::advance), past a packet that is not sent.
    pub(super) fn skip(&mut self) {
        if self.current.take().is_some() {
            self.clock.is_past();
        }
    }

    /// The next round begins when the last packet of the previous one was sent.
    fn begin_round(&mut self) -> Result<(), Damage> {
        self.rounds_done += 1;
        let more = match self.playing.rounds {
            Rounds::Times(times) => self.rounds_done < times,
            Rounds::Forever => true,
        };
        // A round without a packet would be repeated for ever.
        self.ended = !more || self.sendable == 0;
        if !self.ended {
            self.capture.rewind(self.begin)?;
            self.clock.begin_round();
            self.sendable = 0;
        }
        Ok(())
    }

    pub(super) fn capture(&self) -> &Capture<R> {
        &self.capture
    }

    pub(super) fn input(&mut self) -> &mut R {
        self.capture.input()
    }

    pub(super) fn playing(&self) -> &Playing {
        &self.playing
    }

    pub(super) fn clock(&self) -> &Clock {
        &self.clock
    }

    pub(super) fn rounds_done(&self) -> u64 {
        self.rounds_done
    }

    pub(super) fn cut(&self) -> u64 {
        self.cut
    }

    pub(super) fn unsendable(&self) -> &BTreeMap<Unsendable, u64> {
        &self.unsendable
    }
}
