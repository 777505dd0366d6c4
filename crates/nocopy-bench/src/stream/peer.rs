//! A process of a stream, as the bench sees it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, Stdio};

use super::messages::{PeerMessage, PeerReport};
use super::task::PeerTask;
use crate::child::{ChildKind, ScopedChild};
use crate::lines::ChildOutputLines;
use crate::stage::NetworkSite;
use crate::window::TrialPhase;

#[derive(Debug)]
pub(super) struct PeerProcess {
    child: ScopedChild,
    phases: ChildStdin,
    messages: ChildOutputLines,
}

impl PeerProcess {
    pub(super) fn start(site: &NetworkSite, task: PeerTask) -> io::Result<Self> {
        let mut command = ChildKind::Stream.command(&task)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ScopedChild(site.run(|| command.spawn())?);
        let (Some(phases), Some(messages)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes, as said above");
        };
        Ok(Self { child, phases, messages: ChildOutputLines::new(messages) })
    }

    pub(super) fn wait_for_address(&mut self) -> io::Result<SocketAddr> {
        match self.next_message()? {
            PeerMessage::Listening(address) => Ok(address),
            other => Err(unexpected_message(&other)),
        }
    }

    pub(super) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn wait_for_message(&mut self, expected: &PeerMessage) -> io::Result<()> {
        let message = self.next_message()?;
        if message == *expected { Ok(()) } else { Err(unexpected_message(&message)) }
    }

    pub(super) fn send_phase(&mut self, phase: TrialPhase) -> io::Result<()> {
        self.phases.write_all(&[phase as u8])
    }

    pub(super) fn wait_for_report(&mut self) -> io::Result<PeerReport> {
        match self.next_message()? {
            PeerMessage::Done(report) => Ok(report),
            other => Err(unexpected_message(&other)),
        }
    }

    fn next_message(&mut self) -> io::Result<PeerMessage> {
        match serde_json::from_slice(&self.messages.next_line()?)? {
            PeerMessage::Failed(why) => Err(io::Error::other(why)),
            message => Ok(message),
        }
    }
}

fn unexpected_message(message: &PeerMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its process said {message:?} out of turn"))
}
