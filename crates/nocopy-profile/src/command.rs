//! A command that is profiled from its first instruction on: it is started as a process that waits, and
//! becomes the command once it is watched. It waits for a byte from a socket, because any other process could
//! continue one that had stopped itself.

use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use nocopy::integration::{Wakeup, poll};
use rustix::event::{PollFd, PollFlags};
use rustix::fd::OwnedFd;
use rustix::net::sockopt::socket_peercred;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use rustix::rand::{GetRandomFlags, getrandom};

use super::Error;
use crate::Failure;
use nocopy_report::Outcome;

/// The environment variable with the abstract name of the socket to which the waiting process connects.
const START_SOCKET: &str = "NOCOPY_PROFILE_START";

/// Sent to the waiting process once it is watched.
const START_BYTE: u8 = 1;

/// A command whose process waits until it is released, and is killed if it never is.
#[derive(Debug)]
pub(crate) struct ProfiledCommand {
    name: String,
    child: Child,
    descriptor: OwnedFd,
    /// The connection to the waiting process; `None` once that was released.
    connection: Option<UnixStream>,
}

impl ProfiledCommand {
    /// Starts the process, and returns when it has connected and waits for the start byte. If `aside`, its
    /// output goes to standard error, so that standard output has only the results.
    pub(crate) fn start(words: &[OsString], aside: bool) -> Result<Self, Error> {
        let name = words[0].to_string_lossy().into_owned();
        let failed = |source| Error::Start { program: name.clone(), source };
        let mut own = std::process::Command::new(std::env::current_exe().map_err(failed)?);
        if aside {
            own.stdout(std::io::stderr());
        }
        let (listener, socket_name) = listen_on_random_name().map_err(failed)?;
        own.arg("profile-start").arg("--").args(words).env(START_SOCKET, socket_name);
        let mut child = own.spawn().map_err(failed)?;
        match accept_from_child(&listener, &child) {
            Ok(Some((descriptor, connection))) => {
                Ok(Self { name, child, descriptor, connection: Some(connection) })
            }
            Ok(None) => {
                let status = child.wait().map_err(failed)?;
                Err(Error::EndedEarly { program: name, status })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(failed(error))
            }
        }
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn release_to_run(&mut self) -> Result<(), Error> {
        let sent =
            self.connection.take().map_or(Ok(()), |mut connection| connection.write_all(&[START_BYTE]));
        sent.map_err(|source| Error::Start { program: self.name.clone(), source })
    }

    /// Waits for this time, or until a signal arrives, and returns whether the process has ended.
    pub(crate) fn has_exited_within(&self, time: Duration) -> bool {
        let mut ends = [PollFd::new(&self.descriptor, PollFlags::IN)];
        poll(&mut ends, Some(time)).is_ok_and(|wakeup| wakeup == Wakeup::Ready)
    }

    pub(crate) fn wait_for_exit(mut self) -> Result<ExitStatus, Error> {
        self.child.wait().map_err(|source| Error::Wait { program: self.name.clone(), source })
    }
}

impl Drop for ProfiledCommand {
    fn drop(&mut self) {
        if self.connection.is_some() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A listening socket with a random abstract name, and that name.
fn listen_on_random_name() -> io::Result<(UnixListener, String)> {
    let mut number = [0; 8];
    getrandom(&mut number, GetRandomFlags::empty())?;
    let name = format!("nocopy-profile-{:016x}", u64::from_ne_bytes(number));
    Ok((UnixListener::bind_addr(&SocketAddr::from_abstract_name(&name)?)?, name))
}

/// Waits until that process connects; `None` if it ends before.
fn accept_from_child(listener: &UnixListener, child: &Child) -> io::Result<Option<(OwnedFd, UnixStream)>> {
    let process = Pid::from_child(child);
    let descriptor = pidfd_open(process, PidfdFlags::empty())?;
    loop {
        let mut either = [PollFd::new(listener, PollFlags::IN), PollFd::new(&descriptor, PollFlags::IN)];
        if poll(&mut either, None)? == Wakeup::Interrupted {
            continue;
        }
        if either[0].revents().is_empty() {
            return Ok(None);
        }
        let (connection, _) = listener.accept()?;
        // Other processes can see the name, and connect.
        if socket_peercred(&connection)?.pid == process {
            return Ok(Some((descriptor, connection)));
        }
    }
}

/// Run by the waiting process: becomes the command once it is watched. Returns only if that fails.
pub(crate) fn become_command(words: &[OsString]) -> Result<Outcome, Failure> {
    let name = || words[0].to_string_lossy().into_owned();
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::UnexpectedEof => Error::ProfilerEnded { program: name() },
        _ => Error::Start { program: name(), source },
    };
    wait_for_start().map_err(failed)?;
    let mut command = std::process::Command::new(&words[0]);
    Err(failed(command.args(&words[1..]).env_remove(START_SOCKET).exec()))
}

/// Waits for the start byte; fails with `UnexpectedEof` if the profiler has ended.
fn wait_for_start() -> io::Result<()> {
    let name = std::env::var_os(START_SOCKET).ok_or(io::ErrorKind::NotFound)?;
    let address = SocketAddr::from_abstract_name(name.as_bytes())?;
    UnixStream::connect_addr(&address)?.read_exact(&mut [0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_ends_early_is_reported() {
        // Starts this test program itself, with a filter that matches no test.
        let error = ProfiledCommand::start(&["no-test".into()], true).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no-test: not started; the process that was to run it ended early (exit status: 0); look at what it printed, or which signal ended it, and try again"
        );
    }
}
