//! A process of a stream, as the bench sees it.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::process::{ChildStdin, Stdio};

use super::task::Task;
use super::words::{Report, Word};
use crate::child::{Kind, ScopedChild};
use crate::lines::Lines;
use crate::stage::Site;
use crate::window::Phase;

#[derive(Debug)]
pub(super) struct Peer {
    child: ScopedChild,
    phases: ChildStdin,
    words: Lines,
}

impl Peer {
    pub(super) fn start(site: &Site, task: Task) -> io::Result<Self> {
        let mut command = Kind::Stream.command(&task)?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = ScopedChild(site.run(|| command.spawn())?);
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

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(super) fn wait_for(&mut self, awaited: &Word) -> io::Result<()> {
        let word = self.next()?;
        if word == *awaited { Ok(()) } else { Err(unexpected(&word)) }
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
