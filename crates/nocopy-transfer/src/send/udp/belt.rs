//! Datagrams from a payload to the receiver, many at a time, each when it is due.

use std::path::PathBuf;

use super::Error;
use super::cargo::Cargo;
use super::carrier::Carried;
use super::line::Line;
use super::payload::{Payload, Shape};
use crate::Failure;
use crate::send::conveyor::Belt;
use crate::send::queue::{Schedule, Step, Tally};

/// Between two looks at what the receiver and the network say.
const LOOK_NS: u64 = 5_000_000;

#[derive(Debug)]
pub(super) struct DatagramBelt {
    pub line: Line,
    pub schedule: Schedule,
    pub payload: Payload,
    /// For messages about it.
    pub path: PathBuf,
    pub shape: Shape,
    /// The most datagrams at a time.
    pub batch: usize,
    pub look_ns: u64,
}

impl Belt for DatagramBelt {
    fn step(&mut self, now_ns: u64) -> Result<Step, Failure> {
        if now_ns >= self.look_ns {
            self.look_ns = now_ns + LOOK_NS;
            self.line.talk()?;
            if self.line.is_ended_by_receiver() {
                return Ok(Step::Done);
            }
        }
        Ok(self.send(now_ns)?)
    }

    fn tally(&self) -> Tally {
        self.schedule.tally
    }
}

impl DatagramBelt {
    fn send(&mut self, now_ns: u64) -> Result<Step, Error> {
        let count = match self.due(now_ns) {
            (0, step) => return Ok(step),
            (count, _) => count,
        };
        let Self { line, schedule, payload, shape, path, .. } = self;
        let (carrier, sending) = line.parts();
        let mut cargo = Cargo { payload, path, shape: *shape, sending, schedule };
        let carried = carrier.carry(&mut cargo, count)?;
        let is_over = match carried {
            Carried::Sent => return Ok(Step::Sent),
            Carried::End => true,
            Carried::NoRoom => schedule.is_over(now_ns),
            Carried::Nothing => schedule.is_late(now_ns),
        };
        Ok(match carried {
            _ if is_over => Step::Done,
            Carried::NoRoom => Step::NoRoom,
            _ => Step::Silence,
        })
    }

    /// How many datagrams may go now, up to a buffer full, and what is to be waited for if there are none.
    fn due(&self, now_ns: u64) -> (usize, Step) {
        let mut trial = self.schedule.clone();
        for count in 0..self.batch {
            if let Some(step) = trial.reason_to_stop(0, now_ns) {
                return (count, step);
            }
            trial.sent(self.shape.datagram_bytes, 1);
        }
        (self.batch, Step::Sent)
    }
}
