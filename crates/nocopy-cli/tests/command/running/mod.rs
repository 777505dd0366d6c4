//! A run of `nocopy` that a test watches.

pub(crate) use nocopy_lab::patience::PATIENCE;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::thread;

use rustix::fs::Mode;
use rustix::process::{Pid, Signal, kill_process, umask};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use serde_json::Value;

pub(crate) fn nocopy_command(arguments: &[&str]) -> Command {
    piped_command(env!("CARGO_BIN_EXE_nocopy"), arguments)
}

/// As [`nocopy_command`], from another path.
pub(crate) fn piped_command(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

pub(crate) fn lossy_text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory for a server that reads as another user: what this process makes from now on can be read by
/// all, whatever the umask was.
pub(crate) fn readable_directory() -> tempfile::TempDir {
    umask(Mode::WGRP | Mode::WOTH);
    tempfile::tempdir().unwrap()
}

/// A terminal: the end that reads what is drawn, until the other is closed, and the end for a command.
pub(crate) fn open_terminal(rows: u16, columns: u16) -> (File, File) {
    let terminal = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
    tcsetwinsize(&terminal, size).unwrap();
    let name = ptsname(&terminal, Vec::new()).unwrap().into_string().unwrap();
    (terminal.into(), File::options().read(true).write(true).open(name).unwrap())
}

/// A command that ends by itself, or the test fails; killed if the test fails before.
pub(crate) struct RunningNocopy(pub(crate) Option<Child>);

impl RunningNocopy {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self(Some(nocopy_command(arguments).spawn().unwrap()))
    }

    pub(crate) fn id(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(self.0.as_ref().unwrap())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn take_input(&mut self) -> impl Write + use<> {
        self.0.as_mut().unwrap().stdin.take().unwrap()
    }

    pub(crate) fn take_output(&mut self) -> impl Read + use<> {
        self.0.as_mut().unwrap().stdout.take().unwrap()
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.0.as_mut().unwrap().try_wait().unwrap().is_some()
    }

    /// Reads its output until it ends: it may be more than a pipe holds.
    pub(crate) fn wait_for_end(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        drop(child.stdin.take());
        let pid = Pid::from_child(&child);
        let (done, is_done) = std::sync::mpsc::channel::<()>();
        let watch = thread::spawn(move || {
            let is_late = is_done.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout);
            if is_late {
                kill_process(pid, Signal::KILL).unwrap(); // not waited for yet, so it is still this process
            }
            is_late
        });
        let output = child.wait_with_output();
        drop(done);
        assert!(!watch.join().unwrap(), "it does not end");
        output.unwrap()
    }

    pub(crate) fn wait_for_summary(self) -> (Value, i32) {
        let output = self.wait_for_end();
        let parsed = serde_json::from_slice(&output.stdout);
        (
            parsed.unwrap_or_else(|_| panic!("{}{}", lossy_text(&output.stdout), lossy_text(&output.stderr))),
            output.status.code().unwrap(),
        )
    }
}

impl Drop for RunningNocopy {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
