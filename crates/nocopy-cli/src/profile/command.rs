//! A command that is profiled from its first instruction on: it is started as a process that waits, and becomes the command once it is
//! watched. It waits for a word on a socket: a process that had stopped itself could be continued by anybody.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};

use super::Error;
use crate::{Failure, Outcome};

/// In the environment of the process that waits, the abstract name of the socket.
const MEETING: &str = "NOCOPY_PROFILE_START";

/// A command that is there and waits to be let go; killed if it never is.
#[derive(Debug)]
pub(super) struct Command {
    name: String,
    child: Child,
    descriptor: OwnedFd,
    /// Until it is let go.
    line: Option<UnixStream>,
}

impl Command {
    /// Starts the process, and waits until it waits. What it prints goes to standard error if `aside`: standard output is for
    /// the results alone then.
    pub(super) fn start(words: &[OsString], aside: bool) -> Result<Self, Error> {
        let name = words[0].to_string_lossy().into_owned();
        let failed = |source| Error::Start { program: name.clone(), source };
        let mut own = std::process::Command::new(std::env::current_exe().map_err(failed)?);
        if aside {
            own.stdout(std::io::stderr());
        }
        let (door, meeting) = open_door().map_err(failed)?;
        own.arg("profile-start").arg("--").args(words).env(MEETING, meeting);
        let mut child = own.spawn().map_err(failed)?;
        match meet(&door, &child) {
            Ok((descriptor, line)) => Ok(Self { name, child, descriptor, line: Some(line) }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error))
            }
        }
    }

    pub(super) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Lets it become the command.
    pub(super) fn let_go(&mut self) -> Result<(), Error> {
        let said = self.line.take().map_or(Ok(()), |mut line| line.write_all(&[1]));
        said.map_err(|source| Error::Start { program: self.name.clone(), source })
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
        if self.line.is_some() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A socket at a name that is nobody else's.
fn open_door() -> io::Result<(UnixListener, String)> {
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty())?;
    let name = format!("nocopy-profile-{:016x}", u64::from_ne_bytes(number));
    Ok((UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?, name))
}

/// Waits until that process is there.
fn meet(door: &UnixListener, child: &Child) -> io::Result<(OwnedFd, UnixStream)> {
    let process = Pid::from_child(child);
    let descriptor = pidfd_open(process, PidfdFlags::empty())?;
    loop {
        let mut either = [PollFd::new(door, PollFlags::IN), PollFd::new(&descriptor, PollFlags::IN)];
        match poll(&mut either, None) {
            Err(Errno::INTR) => continue,
            polled => polled?,
        };
        if either[0].revents().is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into()); // it has ended
        }
        let (line, _) = door.accept()?;
        // Others may know the name.
        if socket_peercred(&line)?.pid == process {
            return Ok((descriptor, line));
        }
    }
}

/// The process itself: waits, and becomes the command when it is told to. Returns only if it cannot.
pub(super) fn become_command(words: &[OsString]) -> Result<Outcome, Failure> {
    let failed =
        |source: io::Error| Error::Start { program: words[0].to_string_lossy().into_owned(), source };
    wait_for_word().map_err(failed)?;
    let mut command = std::process::Command::new(&words[0]);
    Err(failed(command.args(&words[1..]).env_remove(MEETING).exec()).into())
}

/// Fails if whoever would say it has ended.
fn wait_for_word() -> io::Result<()> {
    let name = std::env::var_os(MEETING).ok_or(io::ErrorKind::NotFound)?;
    let address = SocketAddr::from_abstract_name(name.as_bytes())?;
    UnixStream::connect_addr(&address)?.read_exact(&mut [0])
}
