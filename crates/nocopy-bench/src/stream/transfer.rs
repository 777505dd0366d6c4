//! The two processes that move a given amount once.

use std::io;

use super::Amount;
use super::messages::PeerMessage;
use super::peer::Peer;
use super::task::{Role, Task};
use crate::stage::Stage;
use crate::window::{Phase, Reading};

/// Both processes. The receiver starts before any byte is sent, and stays until it is released, so that it
/// can be profiled.
#[derive(Debug)]
pub(crate) struct Transfer {
    receiver: Peer,
    sender: Option<Peer>,
    bytes: u64,
}

impl Transfer {
    pub(crate) fn prepare(stage: &Stage, amount: Amount) -> io::Result<Self> {
        let site = &stage.receiver;
        let role = Role::ReceiveAmount { at: site.ipv4, amount };
        let receiver = Peer::start(site, Task { role, processor: site.processor(0) })?;
        Ok(Self { receiver, sender: None, bytes: amount.bytes })
    }

    pub(crate) fn receiver_id(&self) -> u32 {
        self.receiver.id()
    }

    /// Starts the sender, and waits until everything has arrived.
    pub(crate) fn run(&mut self, stage: &Stage) -> io::Result<()> {
        let to = self.receiver.address()?;
        let role = Role::SendAmount { to, bytes: self.bytes };
        let site = &stage.sender;
        self.sender = Some(Peer::start(site, Task { role, processor: site.processor(0) })?);
        self.receiver.wait_for(&PeerMessage::Received)
    }

    /// Ends the receiver, and returns how long it took.
    pub(crate) fn end(mut self) -> io::Result<Reading> {
        self.receiver.send_phase(Phase::Stop)?;
        let reading = self.receiver.report()?.reading;
        self.sender.as_mut().map(Peer::report).transpose()?;
        match reading.packets == self.bytes {
            true => Ok(reading),
            false => {
                let text = format!("{} bytes were sent, and {} received", self.bytes, reading.packets);
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
        }
    }
}
