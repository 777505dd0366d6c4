//! The packets of a file, once or several times over, on one time scale.

use std::collections::BTreeMap;
use std::io::{Read, Seek};
use std::time::Duration;

use super::capture::{CaptureReader, SEARCHED_BYTES_MAX};
use super::clock::ReplayClock;
use super::damage::CaptureError;
use super::framing::{Framing, MacAddresses, UnsendableCause};
use crate::arguments::RepeatCount;
use crate::send::source::{NextPacket, PeekResult};

/// What is done with the packets of a file.
#[derive(Debug, Clone, Copy)]
pub(in crate::send) struct PlaybackSettings {
    pub rounds: RepeatCount,
    /// The longest gap between two packets that is kept.
    pub gap_max: Duration,
    pub addresses: MacAddresses,
    pub fix_checksums: bool,
}

/// A packet that is ready to be sent.
#[derive(Debug, Clone, Copy)]
struct CurrentPacket {
    framing: Framing,
    is_truncated: bool,
}

#[derive(Debug)]
pub(super) struct Playback<R> {
    capture: CaptureReader<R>,
    /// Where each round begins in the input; 0 if there is only one.
    begin: u64,
    settings: PlaybackSettings,
    rounds_done: u64,
    current: Option<CurrentPacket>,
    ended: bool,
    clock: ReplayClock,
    /// Packets of this round that can be sent.
    sendable: u64,
    truncated: u64,
    unsendable: BTreeMap<UnsendableCause, u64>,
}

impl<R: Read + Seek> Playback<R> {
    /// Reads on to the first packet that can be sent; not any longer once `is_interrupted`.
    pub(super) fn new(
        mut input: R,
        settings: PlaybackSettings,
        is_interrupted: impl Fn() -> bool,
    ) -> Result<Self, CaptureError> {
        let begin = match settings.rounds {
            RepeatCount::Times(1) => 0, // a pipe has no position
            _ => input.stream_position().map_err(CaptureError::Rewind)?,
        };
        let mut playback = Self {
            capture: CaptureReader::open(input)?,
            begin,
            settings,
            rounds_done: 0,
            current: None,
            ended: false,
            clock: ReplayClock::new(settings.gap_max),
            sendable: 0,
            truncated: 0,
            unsendable: BTreeMap::new(),
        };
        loop {
            match playback.peek()? {
                PeekResult::Packet(_) => return Ok(playback),
                PeekResult::Silence if is_interrupted() => return Err(CaptureError::Silence),
                PeekResult::Silence => {}
                PeekResult::End => return Err(playback.nothing_to_send_error()),
            }
        }
    }

    /// Why there is nothing to send.
    fn nothing_to_send_error(&self) -> CaptureError {
        if self.unsendable.is_empty() {
            return CaptureError::NoPackets;
        }
        let counts: Vec<_> =
            self.unsendable.iter().map(|(cause, count)| format!("{} {count}", cause.name())).collect();
        CaptureError::Unsendable { packets: self.unsendable.values().sum(), counts: counts.join(", ") }
    }

    pub(super) fn peek(&mut self) -> Result<PeekResult, CaptureError> {
        let mut begin = None;
        while self.current.is_none() {
            if self.ended {
                return Ok(PeekResult::End);
            }
            match self.read_packet() {
                Ok(true) => begin = None, // also of a new round
                Ok(false) => {
                    let at = self.capture.offset();
                    if at - *begin.get_or_insert(at) >= SEARCHED_BYTES_MAX {
                        return Ok(PeekResult::Silence);
                    }
                }
                Err(CaptureError::Silence) => return Ok(PeekResult::Silence),
                Err(damage) => {
                    self.ended = true;
                    return Err(damage);
                }
            }
        }
        let Some(CurrentPacket { framing, .. }) = self.current else { unreachable!("read above") };
        let packet = self.capture.packet();
        let (bytes, tagged) = (framing.frame_bytes(packet), framing.is_tagged(packet));
        Ok(PeekResult::Packet(NextPacket { bytes, tagged, recorded_ns: self.clock.now_ns() }))
    }

    /// Reads the next packet, or begins the next round; `false` if the packet cannot be sent.
    fn read_packet(&mut self) -> Result<bool, CaptureError> {
        let Some(recorded) = self.capture.next_packet()? else { return self.begin_round().map(|()| true) };
        match Framing::for_packet(recorded.link_type, self.capture.packet(), &self.settings.addresses) {
            Ok(framing) => {
                self.clock.advance(recorded.time_ns);
                self.sendable += 1;
                self.current = Some(CurrentPacket { framing, is_truncated: recorded.truncated });
                Ok(true)
            }
            Err(cause) => {
                *self.unsendable.entry(cause).or_default() += 1;
                Ok(false)
            }
        }
    }

    /// Whether the current packet was truncated when it was recorded.
    pub(super) fn is_truncated(&self) -> bool {
        self.current.is_some_and(|current| current.is_truncated)
    }

    /// Writes the current packet into a buffer of its length.
    pub(super) fn write(&self, frame: &mut [u8]) {
        if let Some(CurrentPacket { framing, .. }) = self.current {
            framing.write(self.capture.packet(), &self.settings.addresses, frame);
        }
    }

    pub(super) fn advance(&mut self) {
        self.truncated += u64::from(self.is_truncated());
        self.skip();
    }

    /// As [`advance`](Self::advance), past a packet that is not sent.
    pub(super) fn skip(&mut self) {
        if self.current.take().is_some() {
            self.clock.finish_packet();
        }
    }

    /// The next round begins when the last packet of the previous one was sent.
    fn begin_round(&mut self) -> Result<(), CaptureError> {
        self.rounds_done += 1;
        let more = match self.settings.rounds {
            RepeatCount::Times(times) => self.rounds_done < times,
            RepeatCount::Forever => true,
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

    pub(super) fn capture(&self) -> &CaptureReader<R> {
        &self.capture
    }

    pub(super) fn input(&mut self) -> &mut R {
        self.capture.input()
    }

    pub(super) fn settings(&self) -> &PlaybackSettings {
        &self.settings
    }

    pub(super) fn clock(&self) -> &ReplayClock {
        &self.clock
    }

    pub(super) fn rounds_done(&self) -> u64 {
        self.rounds_done
    }

    pub(super) fn truncated_packets(&self) -> u64 {
        self.truncated
    }

    pub(super) fn unsendable_by_cause(&self) -> &BTreeMap<UnsendableCause, u64> {
        &self.unsendable
    }
}
