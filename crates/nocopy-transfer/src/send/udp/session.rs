//! The exchange with the receiver: probes, reports, and errors of the network.

use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Error;
use super::transport::Transport;
use crate::transfer::{SenderRun, SenderState};
use nocopy_proto::errno::ErrorCounts;
use nocopy_report::Interrupt;
use nocopy_report::live::LiveLine;

/// How long to wait for a report before checking other things.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Without a header, a port that is closed within that many polls, some 200 ms, was never open; later the
/// receiver may be started again.
const FIRST_POLLS: u32 = 40;

const REFUSED: &str = "port unreachable";
const NO_REPORT: &str = "nothing comes back";

#[derive(Debug)]
pub(super) struct UdpSendSession {
    pub transport: Box<dyn Transport>,
    /// `None` if datagrams have no header, so that no receiver reports.
    pub run: Option<SenderRun>,
    to: SocketAddr,
    start: Instant,
    /// Errors reported by the network.
    pub errors: ErrorCounts,
    /// Whether the receiver's port was closed when it was last heard of.
    refused: bool,
    /// Without a header: how often the network was polled since the first datagram, up to
    /// [`FIRST_POLLS`].
    polls: u32,
}

impl UdpSendSession {
    pub(super) fn new(transport: Box<dyn Transport>, to: SocketAddr, run: Option<SenderRun>) -> Self {
        Self {
            transport,
            run,
            to,
            start: Instant::now(),
            errors: ErrorCounts::default(),
            refused: false,
            polls: 0,
        }
    }

    pub(super) fn transport_and_run(&mut self) -> (&mut dyn Transport, Option<&mut SenderRun>) {
        (&mut *self.transport, self.run.as_mut())
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 // ns of 584 years
    }

    /// The receiver's state; ready if no receiver is expected to report.
    fn state(&self) -> SenderState {
        self.run.as_ref().map_or(SenderState::Running, |run| run.state(self.now_ns()))
    }

    pub(super) fn is_ended_by_receiver(&self) -> bool {
        self.state() == SenderState::EndedEarly
    }

    /// Waits until the receiver reports; also while its port is closed, if `retries`. `false`: the user
    /// interrupted it.
    pub(super) fn connect(&mut self, interrupt: &Interrupt, retries: bool) -> Result<bool, Error> {
        let mut live = LiveLine::default();
        while self.state() == SenderState::Connecting {
            if interrupt.was_interrupted() {
                return Ok(false);
            }
            live.update(Instant::now(), |_| format!("waiting for 'nocopy recv' at {}", self.to));
            self.send_probe()?;
            self.receive_reports(POLL_INTERVAL)?;
            if self.refused && !retries {
                return Err(self.no_receiver_error());
            }
        }
        match self.state() {
            SenderState::Silent => Err(self.no_receiver_error()),
            _ => {
                // Errors for probes that came too early.
                self.refused = false;
                self.errors = ErrorCounts::default();
                Ok(true)
            }
        }
    }

    fn no_receiver_error(&self) -> Error {
        let said = if self.refused { REFUSED } else { NO_REPORT }.into();
        Error::NoReceiver { to: self.to.to_string(), port: self.to.port(), said, is_refused: self.refused }
    }

    /// Sends a probe when one is due, and handles received reports, while data is sent. A receiver that is
    /// gone may be started again.
    pub(super) fn exchange_reports(&mut self, has_sent: bool) -> Result<(), Error> {
        self.send_probe()?;
        self.receive_reports(Duration::ZERO)?;
        if self.run.is_none() && has_sent && self.polls < FIRST_POLLS {
            self.polls += 1;
            if self.refused {
                return Err(Error::NoRawReceiver { to: self.to.to_string(), said: REFUSED.into() });
            }
        }
        match self.state() {
            SenderState::Silent if self.refused => Err(Error::Gone { to: self.to }),
            SenderState::Silent => Err(Error::Silent { to: self.to }),
            _ => Ok(()),
        }
    }

    /// Reports that all was sent, and waits for the receiver's final counts.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        let now_ns = self.now_ns();
        if let Some(run) = &mut self.run {
            run.finish(now_ns);
        }
        while self.state() == SenderState::Finishing {
            self.exchange_reports(true)?;
            self.receive_reports(POLL_INTERVAL)?;
        }
        self.exchange_reports(true) // with the acknowledgement
    }

    fn send_probe(&mut self) -> Result<(), Error> {
        let now_ns = self.now_ns();
        let Some(probe) = self.run.as_mut().and_then(|run| run.next_probe(now_ns)) else {
            return Ok(());
        };
        self.transport.send_control(&probe)
    }

    fn receive_reports(&mut self, patience: Duration) -> Result<(), Error> {
        let now_ns = self.now_ns();
        if let Some(run) = &mut self.run {
            let refused = &mut self.refused;
            self.transport.receive(patience, &mut |datagram| {
                *refused = false;
                run.handle_datagram(datagram, now_ns);
            })?;
        }
        for error in self.transport.network_errors() {
            self.refused |= error.kind() == io::ErrorKind::ConnectionRefused;
            self.errors.add(&error, 1);
        }
        Ok(())
    }
}
