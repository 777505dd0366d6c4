//! Processes that the bench starts as itself: `nocopy bench-child KIND TASK`.

use std::io;
use std::process::Command;

use clap::ValueEnum;
use serde::Serialize;

const COMMAND: &str = "bench-child";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Kind {
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
}

impl Kind {
    /// The command that does the task.
    pub(crate) fn command(self, task: &impl Serialize) -> io::Result<Command> {
        let mut command = Command::new("/proc/self/exe");
        let kind = self.to_possible_value().expect("none is skipped");
        command.args([COMMAND, kind.get_name()]).arg(serde_json::to_string(task)?);
        Ok(command)
    }
}
