//! What is said to the receiver, and by it and the network.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::Error;
use super::carrier::Carrier;
use crate::transfer::{Sending, Standing};
use nocopy_report::Interrupt;
use nocopy_report::live::LiveLine;

/// How long to wait for an answer before looking around.
const LOOK_INTERVAL: Duration = Duration::from_millis(10);

const REFUSED: &str = "port unreachable";
const NO_ANSWER: &str = "nothing comes back";

#[derive(Debug)]
pub(super) struct Line {
    pub carrier: Box<dyn Carrier>,
    /// None where datagrams have no header, and nobody answers.
    pub sending: Option<Sending>,
    to: SocketAddr,
    start: Instant,
    /// What the network said, by its words.
    pub errors: BTreeMap<String, u64>,
    refused: bool,
}

impl Line {
    pub(super) fn new(carrier: Box<dyn Carrier>, to: SocketAddr, sending: Option<Sending>) -> Self {
        Self { carrier, sending, to, start: Instant::now(), errors: BTreeMap::new(), refused: false }
    }

    /// What carries, and who writes headers.
    pub(super) fn parts(&mut self) -> (&mut dyn Carrier, Option<&mut Sending>) {
        (&mut *self.carrier, self.sending.as_mut())
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64 // ns of 584 years
    }

    /// How it stands with the receiver; without one that answers, as if it were there.
    fn standing(&self) -> Standing {
        self.sending.as_ref().map_or(Standing::Running, |sending| sending.standing(self.now_ns()))
    }

    pub(super) fn is_ended_by_receiver(&self) -> bool {
        self.standing() == Standing::EndedEarly
    }

    /// Waits until somebody answers. `false`: the user has had enough of that.
    pub(super) fn connect(&mut self, interrupt: &Interrupt) -> Result<bool, Error> {
        let mut live = LiveLine::default();
        while self.standing() == Standing::Connecting {
            if interrupt.came() {
                return Ok(false);
            }
            live.update(Instant::now(), |_| format!("waiting for 'nocopy recv' at {}", self.to));
            self.speak()?;
            self.listen(LOOK_INTERVAL)?;
        }
        match self.standing() {
            Standing::Silent if self.refused => Err(Error::NobodyThere { to: self.to, said: REFUSED }),
            Standing::Silent => Err(Error::NobodyThere { to: self.to, said: NO_ANSWER }),
            _ => {
                // What was said of questions that came too early.
                self.refused = false;
                self.errors.clear();
                Ok(true)
            }
        }
    }

    /// Says what is to be said and takes what has come, while data flow.
    pub(super) fn talk(&mut self) -> Result<(), Error> {
        self.speak()?;
        self.listen(Duration::ZERO)?;
        match self.standing() {
            Standing::Silent => Err(Error::Silent { to: self.to }),
            Standing::Agreed | Standing::EndedEarly => Ok(()),
            _ if !self.refused => Ok(()),
            _ if self.sending.is_none() => Err(Error::NobodyReceives { to: self.to }),
            _ => Err(Error::Gone { to: self.to }),
        }
    }

    /// Tells that all was sent, and waits until it is known what arrived.
    pub(super) fn finish(&mut self) -> Result<(), Error> {
        let now_ns = self.now_ns();
        if let Some(sending) = &mut self.sending {
            sending.finish(now_ns);
        }
        while self.standing() == Standing::Finishing {
            self.talk()?;
            self.listen(LOOK_INTERVAL)?;
        }
        self.talk() // with thanks
    }

    fn speak(&mut self) -> Result<(), Error> {
        let now_ns = self.now_ns();
        let Some(ask) = self.sending.as_mut().and_then(|sending| sending.ask(now_ns)) else { return Ok(()) };
        self.carrier.say(&ask)
    }

    fn listen(&mut self, patience: Duration) -> Result<(), Error> {
        let now_ns = self.now_ns();
        if let Some(sending) = &mut self.sending {
            self.carrier.hear(patience, &mut |datagram| sending.handle(datagram, now_ns))?;
        }
        for error in self.carrier.complaints() {
            self.refused |= error.kind() == io::ErrorKind::ConnectionRefused;
            *self.errors.entry(error.to_string()).or_default() += 1;
        }
        Ok(())
    }
}
