//! A command that is profiled from its first instruction on: it is started as a process that stops itself, and becomes the command once
//! it is watched.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, getpid, kill_process, pidfd_open,
    set_parent_process_death_signal, waitid,
};

use super::Error;
use crate::{Failure, Outcome};

/// A command that is there and waits to be let go; killed if it never is.
#[derive(Debug)]
pub(super) struct Command {
    name: String,
    child: Child,
    descriptor: OwnedFd,
    is_let_go: bool,
}

impl Command {
    /// Starts the process, and waits until it has stopped itself. What it prints goes to standard error if `aside`: standard output is for
    /// the results alone then.
    pub(super) fn start(words: &[OsString], aside: bool) -> Result<Self, Error> {
        let name = words[0].to_string_lossy().into_owned();
        let failed = |source| Error::Start { program: name.clone(), source };
        let mut own = std::process::Command::new(std::env::current_exe().map_err(failed)?);
        if aside {
            own.stdout(std::io::stderr());
        }
        let mut child = own.arg("profile-start").arg("--").args(words).spawn().map_err(failed)?;
        let stopped = waitid(
            WaitId::Pid(Pid::from_child(&child)),
            WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT,
        );
        let opened = stopped.and_then(|_| pidfd_open(Pid::from_child(&child), PidfdFlags::empty()));
        match opened {
            Ok(descriptor) => Ok(Self { name, child, descriptor, is_let_go: false }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error.into()))
            }
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets it become the command.
    pub(super) fn let_go(&mut self) -> Result<(), Error> {
        self.is_let_go = true;
        kill_process(Pid::from_child(&self.child), Signal::CONT)
            .map_err(|error| Error::Start { program: self.name.clone(), source: error.into() })
    }

    /// Waits so long, or until a signal comes, and says whether it has ended.
    pub(super) fn has_ended_within(&self, time: Duration) -> bool {
        let mut ends = [PollFd::new(&self.descriptor, PollFlags::IN)];
        let time = Timespec::try_from(time).expect("short");
        poll(&mut ends, Some(&time)).is_ok_and(|count| count > 0)
    }

    /// How it ended.
    pub(super) fn end(mut self) -> Result<ExitStatus, Error> {
        self.child.wait().map_err(|source| Error::Wait { program: self.name.clone(), source })
    }
}

impl Drop for Command {
    fn drop(&mut self) {
        if !self.is_let_go {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// The process itself: stops, and becomes the command when it goes on. Returns only if it cannot.
pub(super) fn become_command(words: &[OsString]) -> Result<Outcome, Failure> {
    let failed =
        |source: io::Error| Error::Start { program: words[0].to_string_lossy().into_owned(), source };
    // Nobody would let it go if its parent were killed.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|error| failed(error.into()))?;
    kill_process(getpid(), Signal::STOP).map_err(|error| failed(error.into()))?;
    set_parent_process_death_signal(None).map_err(|error| failed(error.into()))?;
    Err(failed(std::process::Command::new(&words[0]).args(&words[1..]).exec()).into())
}
