//! Processes that the bench starts: as itself (`nocopy bench-child KIND TASK`), and other programs.

use std::io::{self, BufRead, BufReader, Write};
use std::ops::{Deref, DerefMut};
use std::process::{Child, Command};

use clap::ValueEnum;
use serde::Serialize;

const COMMAND: &str = "bench-child";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ChildKind {
    /// One side of a stream.
    Stream,
    /// A program that injects frames by libpcap.
    Inject,
    /// A program that sends datagrams one by one.
    Sendto,
    /// A program that reads from a server of NFS.
    ReadNfs,
    /// A server of NFS to compare with.
    ServeNfs,
    /// Holds the ports of `--pair`, and puts them back.
    GuardPair,
}

impl ChildKind {
    /// The command that does the task.
    pub(crate) fn command(self, task: &impl Serialize) -> io::Result<Command> {
        let mut command = Command::new("/proc/self/exe");
        let kind = self.to_possible_value().expect("none is skipped");
        command.args([COMMAND, kind.get_name()]).arg(serde_json::to_string(task)?);
        Ok(command)
    }
}

/// Tells the bench something: a line of JSON on standard output.
pub(crate) fn print_message(line: &impl Serialize) -> io::Result<()> {
    let mut output = io::stdout().lock();
    serde_json::to_writer(&mut output, line)?;
    output.write_all(b"\n")?;
    output.flush()
}

/// What a program prints when it has begun to send.
pub(crate) const UNDER_WAY: &str = "under way";

/// A process that is killed when this is dropped, if it has not ended.
#[derive(Debug)]
pub(crate) struct ScopedChild(pub Child);

impl ScopedChild {
    /// Waits for [`UNDER_WAY`] on standard output, which must be a pipe.
    pub(crate) fn wait_for_first_send(&mut self, name: &str) -> io::Result<()> {
        let Some(output) = self.stdout.take() else { unreachable!("piped, as said above") };
        let mut line = String::new();
        BufReader::new(output).read_line(&mut line)?;
        match line.trim_end() {
            UNDER_WAY => Ok(()),
            other => Err(io::Error::other(format!("{name} printed '{other}' instead of beginning"))),
        }
    }
}

impl Deref for ScopedChild {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for ScopedChild {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Drop for ScopedChild {
    fn drop(&mut self) {
        // It may have ended; its number is not reused before the wait, so the signal hits no other process.
        let _ = self.kill();
        let _ = self.wait();
    }
}
