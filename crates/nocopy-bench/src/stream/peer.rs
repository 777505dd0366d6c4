//! A process of a stream, as the bench sees it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, Stdio};

use super::task::Task;
use super::words::{Report, Word};
use crate::child::Kind;
use crate::lines::Lines;
use crate::stage::Site;
use crate::window::Phase;

/// Dropped, the process is killed if it has not ended.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    phases: ChildStdin,
    words: Lines,
}

impl Peer {
    pub(super) fn start(site: &Site, task: Task) -> io::Result<Self> {
        let mut command = Kind::Stream.command(&task)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = site.run(|| command.spawn())?;
        let (Some(phases), Some(words)) = (child.stdin.take(), child.stdout.take()) else {
            unreachable!("both are pipes, as said above");
        };
        Ok(Self { child, phases, words: Lines::new(words) })
    }

    pub(super) fn address(&mut self) -> io::Result<SocketAddr> {
        match self.next()? {
            Word::Listening(address) => Ok(address),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn wait_until_under_way(&mut self) -> io::Result<()> {
        match self.next()? {
            Word::UnderWay => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn wait_until_received(&mut self) -> io::Result<()> {
        match self.next()? {
            Word::Received => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn wait_until_measuring(&mut self) -> io::Result<()> {
        match self.next()? {
            Word::Measuring => Ok(()),
            other => Err(unexpected(&other)),
        }
    }

    pub(super) fn tell(&mut self, phase: Phase) -> io::Result<()> {
        self.phases.write_all(&[phase as u8])
    }

    pub(super) fn report(&mut self) -> io::Result<Report> {
        match self.next()? {
            Word::Done(report) => Ok(report),
            other => Err(unexpected(&other)),
        }
    }

    fn next(&mut self) -> io::Result<Word> {
        match serde_json::from_slice(&self.words.next()?)? {
            Word::Failed(why) => Err(io::Error::other(why)),
            word => Ok(word),
        }
    }
}

fn unexpected(word: &Word) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its process said {word:?} out of turn"))
}

impl Drop for Peer {
    fn drop(&mut self) {
        // It may have ended; its number is not reused before the wait, so the signal hits no other process.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
