//! NFS servers to compare with, each in its own process: Ganesha, two hand-written ones that answer reads of
//! one file, one that answers writes, and one that sends recorded replies.
//!
//! ```text
//!   bench ── task (argument), its end (stdin) ──▶ nocopy bench-child serve-nfs ── one word (stdout) ──▶ bench
//! ```
//! The process and its child processes end when its standard input ends, and so also with the bench, however
//! that ends.

mod by_hand;
mod ganesha;
mod recorded;
mod writes_by_hand;

use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub(crate) use by_hand::{FILE, TransferMethod};
pub(crate) use ganesha::{MOUNT_PORT, missing_requirement};

use crate::Failure;
use crate::child::print_message;
use nocopy_report::{Outcome, capability};

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum NfsServerTask {
    /// Reads or writes of one file, by a minimal server.
    ByHand { method: TransferMethod, at: Ipv4Addr, file: PathBuf },
    /// Sends the content of a file again and again, whatever the call.
    Recorded { at: Ipv4Addr, file: PathBuf },
    /// Ganesha, with a directory; its own files are in another one.
    Ganesha { directory: PathBuf, scratch: PathBuf, is_writable: bool },
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum ServerMessage {
    Serving { port: u16, process: u32 },
    Failed(String),
}

/// The main function of the process.
pub(crate) fn child_main(task: NfsServerTask) -> Result<Outcome, Failure> {
    match serve_task(task) {
        Ok(()) => Ok(Outcome::Positive),
        Err(error) => {
            print_message(&ServerMessage::Failed(error.to_string()))
                .map_err(nocopy_report::Failure::Print)?;
            Ok(Outcome::Negative)
        }
    }
}

fn serve_task(task: NfsServerTask) -> io::Result<()> {
    match task {
        NfsServerTask::ByHand { method: TransferMethod::RecvPwrite, at, file } => {
            let server = writes_by_hand::HandWrittenWriteServer::open(at, &file)?;
            serve_until_stdin_ends(server.port()?, || server.run())
        }
        NfsServerTask::ByHand { method, at, file } => {
            let server = by_hand::HandWrittenReadServer::open(method, at, &file)?;
            serve_until_stdin_ends(server.port()?, || server.run())
        }
        NfsServerTask::Recorded { at, file } => {
            let server = recorded::RecordedReplyServer::open(at, &file)?;
            serve_until_stdin_ends(server.port()?, || server.run())
        }
        NfsServerTask::Ganesha { directory, scratch, is_writable } => {
            let running = ganesha::RunningGanesha::start(&directory, &scratch, is_writable)?;
            print_message(&ServerMessage::Serving { port: ganesha::PORT, process: running.process_id() })?;
            wait_for_stdin_end();
            Ok(())
        }
    }
}

fn serve_until_stdin_ends(port: u16, run: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    // Serving needs no privileges, and nothing needs to be closed after it.
    capability::drop_others(capability::NONE)?;
    print_message(&ServerMessage::Serving { port, process: std::process::id() })?;
    std::thread::Builder::new().name("end".into()).spawn(|| {
        wait_for_stdin_end();
        std::process::exit(0);
    })?;
    run()
}

fn wait_for_stdin_end() {
    let mut byte = [0];
    while matches!(io::stdin().read(&mut byte), Ok(1)) {}
}
