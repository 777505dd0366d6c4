//! Datagrams from a payload to the socket, many in one buffer, each when it is due.

use std::path::PathBuf;

use nocopy::socket::udp::Message;

use super::Error;
use super::line::Line;
use super::payload::{Filled, Payload, Shape};
use crate::Failure;
use crate::send::conveyor::Belt;
use crate::send::queue::{Schedule, Step, Tally};

/// Between two looks at what the receiver and the network say.
const LOOK_NS: u64 = 5_000_000;

#[derive(Debug)]
pub(super) struct DatagramBelt {
    pub(super) line: Line,
    pub(super) schedule: Schedule,
    pub(super) payload: Payload,
    /// For messages about it.
    pub(super) path: PathBuf,
    pub(super) shape: Shape,
    /// The most datagrams in a buffer.
    pub(super) batch: usize,
    pub(super) look_ns: u64,
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
        let sender = line.socket.sender();
        let Some(mut buffer) = sender.buffer() else {
            sender.reap();
            return Ok(if schedule.is_over(now_ns) { Step::Done } else { Step::NoRoom });
        };
        buffer.resize(count * shape.datagram_bytes);
        let bytes = buffer.as_mut().unwrap_or_default();
        let filled = payload.fill(bytes, *shape, schedule.tally.packets);
        match filled.map_err(|source| Error::Input { path: path.clone(), source })? {
            Filled::Bytes(bytes) => buffer.resize(bytes),
            nothing => {
                sender.recycle(buffer);
                let is_over = nothing == Filled::End || schedule.is_late(now_ns);
                return Ok(if is_over { Step::Done } else { Step::Silence });
            }
        }
        for datagram in buffer.as_mut().unwrap_or_default().chunks_mut(shape.datagram_bytes) {
            if let Some(sending) = &mut line.sending {
                sending.seal(datagram);
            }
            schedule.sent(datagram.len(), 1);
        }
        let message = Message::segments(buffer, shape.datagram_bytes);
        sender.send(message).map_err(|rejected| Error::Rejected(rejected.reason))?;
        sender.flush().or_else(Line::forgive)?;
        Ok(Step::Sent)
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
