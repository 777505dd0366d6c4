//! Processes that the bench starts as itself: `nocopy bench-child TASK`.

use std::io;
use std::process::Command;

use nocopy_report::Outcome;
use serde::{Deserialize, Serialize};

use crate::Failure;
use crate::baseline::{datagram_program, injector, nfs_client, nfs_server};
use crate::stream;

const COMMAND: &str = "bench-child";

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Task {
    /// One side of a stream.
    Stream(stream::Task),
    /// A program that injects frames by libpcap.
    Inject(injector::Task),
    /// A program that sends datagrams one by one.
    Sendto(datagram_program::Task),
    /// A program that reads from a server of NFS.
    ReadNfs(nfs_client::Task),
    /// A server of NFS to compare with.
    ServeNfs(nfs_server::Task),
}

impl Task {
    /// The command that does it.
    pub(crate) fn command(&self) -> io::Result<Command> {
        let mut command = Command::new("/proc/self/exe");
        command.arg(COMMAND).arg(serde_json::to_string(self)?);
        Ok(command)
    }
}

/// The main function of such a process.
pub fn run(task: &str) -> Result<Outcome, Failure> {
    match serde_json::from_str(task).map_err(Failure::Task)? {
        Task::Stream(task) => stream::run(task),
        Task::Inject(task) => injector::run(&task),
        Task::Sendto(task) => datagram_program::run(task),
        Task::ReadNfs(task) => nfs_client::run(&task),
        Task::ServeNfs(task) => nfs_server::run(task),
    }
}
