//! The exchange with the receiver: questions, answers, and errors of the network.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Error;
use super::transport::Transport;
use crate::transfer::{Sending, State};
use nocopy_proto::errno::Named;
use nocopy_report::Interrupt;
use nocopy_report::live::LiveLine;

/// How long to wait for an answer before checking other things.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// Without a header, a port that is closed within that many looks, some 200 ms, was never open; later the
/// receiver may be started again.
const LOOKS_AT_FIRST: u32 = 40;

const REFUSED: &str = "port unreachable";
const NO_ANSWER: &str = "nothing comes back";

#[derive(Debug)]
pub(super) struct Session {
    pub transport: Box<dyn Transport>,
    /// `None` if datagrams have no header, so that no receiver answers.
    pub sending: Option<Sending>,
    to: SocketAddr,
    start: Instant,
    /// Errors reported by the network, by text.
    pub errors: BTreeMap<String, u64>,
    /// Whether the receiver's port was closed when it was last heard of.
    refused: bool,
    /// Without a header: how often the network was looked at since the first datagram, up to
    /// [`LOOKS_AT_FIRST`].
    looks: u32,
}

impl Session {
    pub(super) fn new(transport: Box<dyn Transport>, to: SocketAddr, sending: Option<Sending>) -> Self {
        Self {
            transport,
            sending,
            to,
            start: Instant::now(),
            errors: BTreeMap::new(),
            refused: false,
            looks: 0,
        }
    }

    pub(super) fn parts(&mut self) -> (&mut dyn Transport, Option<&mut Sending>) {
        (&mut *self.transport, self.sending.as_mut())
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 // ns of 584 years
    }

    /// The receiver's state; ready if no receiver is expected to answer.
    fn state(&self) -> State {
        self.sending.as_ref().map_or(State::Running, |sending| sending.state(self.now_ns()))
    }

    pub(super) fn is_ended_by_receiver(&self) -> bool {
        self.state() == State::EndedEarly
    }

    /// Waits until the receiver answers; also while its port is closed, if `retries`. `false`: the user
    /// interrupted it.
    pub(super) fn connect(&mut self, interrupt: &Interrupt, retries: bool) -> Result<bool, Error> {
        let mut live = LiveLine::default();
        while self.state() == State::Connecting {
            if interrupt.came() {
                return Ok(false);
            }
            live.update(Instant::now(), |_| format!("waiting for 'nocopy recv' at {}", self.to));
            self.send_question()?;
            self.receive_answers(LOOK_INTERVAL)?;
            if self.refused && !retries {
                return Err(self.nobody_there());
            }
        }
        match self.state() {
            State::Silent => Err(self.nobody_there()),
            _ => {
                // Errors for questions that came too early.
                self.refused = false;
                self.errors.clear();
                Ok(true)
            }
        }
    }

    fn nobody_there(&self) -> Error {
        let said = if self.refused { REFUSED } else { NO_ANSWER }.into();
        Error::NobodyThere { to: self.to.to_string(), port: self.to.port(), said, is_refused: self.refused }
    }

    /// Asks when a question is due, and handles received answers, while data is sent. A receiver that is gone
    /// may be started again.
    pub(super) fn exchange(&mut self, has_sent: bool) -> Result<(), Error> {
        self.send_question()?;
        self.receive_answers(Duration::ZERO)?;
        if self.sending.is_none() && has_sent && self.looks < LOOKS_AT_FIRST {
            self.looks += 1;
            if self.refused {
                return Err(Error::NobodyReceives { to: self.to.to_string(), said: REFUSED.into() });
            }
        }
        match self.state() {
            State::Silent if self.refused => Err(Error::Gone { to: self.to }),
            State::Silent => Err(Error::Silent { to: self.to }),
            _ => Ok(()),
        }
    }

    /// Reports that all was sent, and waits for the receiver's final counts.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        let now_ns = self.now_ns();
        if let Some(sending) = &mut self.sending {
            sending.finish(now_ns);
        }
        while self.state() == State::Finishing {
            self.exchange(true)?;
            self.receive_answers(LOOK_INTERVAL)?;
        }
        self.exchange(true) // with thanks
    }

    fn send_question(&mut self) -> Result<(), Error> {
        let now_ns = self.now_ns();
        let Some(ask) = self.sending.as_mut().and_then(|sending| sending.ask(now_ns)) else { return Ok(()) };
        self.transport.send_control(&ask)
    }

    fn receive_answers(&mut self, patience: Duration) -> Result<(), Error> {
        let now_ns = self.now_ns();
        if let Some(sending) = &mut self.sending {
            let refused = &mut self.refused;
            self.transport.receive(patience, &mut |datagram| {
                *refused = false;
                sending.handle(datagram, now_ns);
            })?;
        }
        for error in self.transport.network_errors() {
            self.refused |= error.kind() == io::ErrorKind::ConnectionRefused;
            *self.errors.entry(Named(&error).to_string()).or_default() += 1;
        }
        Ok(())
    }
}
