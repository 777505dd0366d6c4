//! Sends datagrams to the receiver, several at a time, each when it is due.

use std::path::PathBuf;

use super::Error;
use super::payload::{DatagramLayout, PayloadSource};
use super::session::UdpSendSession;
use super::transport::SendResult;
use super::writer::DatagramWriter;
use crate::Failure;
use crate::send::queue::{Schedule, SendStep, Tally};
use crate::send::transmitter::Transmitter;

/// The interval of checks for reports of the receiver and errors of the network.
const POLL_NS: u64 = 5_000_000;

#[derive(Debug)]
pub(super) struct DatagramTransmitter {
    pub session: UdpSendSession,
    pub schedule: Schedule,
    pub payload: PayloadSource,
    /// For error messages.
    pub path: PathBuf,
    pub shape: DatagramLayout,
    /// The most datagrams at a time.
    pub batch: usize,
    pub poll_ns: u64,
}

impl Transmitter for DatagramTransmitter {
    fn send_due_batch(&mut self, now_ns: u64) -> Result<SendStep, Failure> {
        if now_ns >= self.poll_ns {
            self.poll_ns = now_ns + POLL_NS;
            self.session.exchange_reports(self.schedule.tally.packets > 0)?;
            if self.session.is_ended_by_receiver() {
                return Ok(SendStep::Done);
            }
        }
        Ok(self.send(now_ns)?)
    }

    fn tally(&self) -> Tally {
        self.schedule.tally
    }
}

impl DatagramTransmitter {
    fn send(&mut self, now_ns: u64) -> Result<SendStep, Error> {
        let count = match self.due_count(now_ns) {
            (0, step) => return Ok(step),
            (count, _) => count,
        };
        let Self { session, schedule, payload, shape, path, .. } = self;
        let (transport, run) = session.transport_and_run();
        let mut writer = DatagramWriter { payload, path, shape: *shape, run, schedule };
        let result = transport.send(&mut writer, count)?;
        let is_over = match result {
            SendResult::Sent => return Ok(SendStep::Sent),
            SendResult::End => true,
            SendResult::NoRoom => schedule.is_over(now_ns),
            SendResult::Nothing => schedule.is_past_duration(now_ns),
        };
        Ok(match result {
            _ if is_over => SendStep::Done,
            SendResult::NoRoom => SendStep::NoRoom,
            _ => SendStep::Silence,
        })
    }

    /// How many datagrams may be sent now, at most one buffer of them; or the reason to wait.
    fn due_count(&self, now_ns: u64) -> (usize, SendStep) {
        let mut trial = self.schedule.clone();
        for count in 0..self.batch {
            if let Some(step) = trial.reason_to_stop(0, now_ns) {
                return (count, step);
            }
            trial.record_sent(self.shape.datagram_bytes, 1);
        }
        (self.batch, SendStep::Sent)
    }
}
