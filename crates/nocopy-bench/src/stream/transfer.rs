//! The two processes that move a given amount once.

use std::io;

use super::TransferAmount;
use super::messages::PeerMessage;
use super::peer::PeerProcess;
use super::task::{PeerRole, PeerTask};
use crate::stage::SitePair;
use crate::window::{TrialPhase, WindowReading};

/// Both processes. The receiver starts before any byte is sent, and stays until it is released, so that it
/// can be profiled.
#[derive(Debug)]
pub(crate) struct AmountTransfer {
    receiver: PeerProcess,
    sender: Option<PeerProcess>,
    bytes: u64,
}

impl AmountTransfer {
    pub(crate) fn start_receiver(stage: &SitePair, amount: TransferAmount) -> io::Result<Self> {
        let site = &stage.receiver;
        let role = PeerRole::ReceiveAmount { at: site.ipv4, amount };
        let receiver = PeerProcess::start(site, PeerTask { role, processor: site.processor_of_thread(0) })?;
        Ok(Self { receiver, sender: None, bytes: amount.bytes })
    }

    pub(crate) fn receiver_process_id(&self) -> u32 {
        self.receiver.process_id()
    }

    /// Starts the sender, and waits until everything has arrived.
    pub(crate) fn run_sender(&mut self, stage: &SitePair) -> io::Result<()> {
        let to = self.receiver.wait_for_address()?;
        let role = PeerRole::SendAmount { to, bytes: self.bytes };
        let site = &stage.sender;
        self.sender =
            Some(PeerProcess::start(site, PeerTask { role, processor: site.processor_of_thread(0) })?);
        self.receiver.wait_for_message(&PeerMessage::Received)
    }

    /// Ends the receiver, and returns how long it took.
    pub(crate) fn end_receiver(mut self) -> io::Result<WindowReading> {
        self.receiver.send_phase(TrialPhase::Stop)?;
        let reading = self.receiver.wait_for_report()?.reading;
        self.sender.as_mut().map(PeerProcess::wait_for_report).transpose()?;
        match reading.packets == self.bytes {
            true => Ok(reading),
            false => {
                let text = format!("{} bytes were sent, and {} received", self.bytes, reading.packets);
                Err(io::Error::new(io::ErrorKind::InvalidData, text))
            }
        }
    }
}
