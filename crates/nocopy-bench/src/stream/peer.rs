//! A process of a stream, as the bench sees it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, Stdio};

use super::messages::{PeerMessage, Report};
use super::task::Task;
use crate::child::{ChildKind, ScopedChild};
use crate::lines::Lines;
use crate::stage::Site;
use crate::window::Phase;

#[derive(Debug)]
pub(super) struct Peer {
    child: ScopedChild,
    phases: ChildStdin,
    messages: Lines,
}

impl Peer {
    pub(super) fn start(site: &Site, task: Task) -> io::Result<Self> {
        let mut command = ChildKind::Stream.command(&task)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ScopedChild(site.run(|| command.spawn())?);
        let (Some(phases), Some(messages)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes, as said above");
        };
        Ok(Self { child, phases, messages: Lines::new(messages) })
    }

    pub(super) fn address(&mut self) -> io::Result<SocketAddr> {
        match self.next()? {
            PeerMessage::Listening(address) => Ok(address),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn wait_for(&mut self, expected: &PeerMessage) -> io::Result<()> {
        let message = self.next()?;
        if message == *expected { Ok(()) } else { Err(unexpected(&message)) }
    }

    pub(super) fn send_phase(&mut self, phase: Phase) -> io::Result<()> {
        self.phases.write_all(&[phase as u8])
    }

    pub(super) fn report(&mut self) -> io::Result<Report> {
        match self.next()? {
            PeerMessage::Done(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn next(&mut self) -> io::Result<PeerMessage> {
        match serde_json::from_slice(&self.messages.next()?)? {
            PeerMessage::Failed(why) => Err(io::Error::other(why)),
            message => Ok(message),
        }
    }
}

fn unexpected(message: &PeerMessage) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its process said {message:?} out of turn"))
}
