//! Lines that a process of the bench prints, each within a time.

use std::io::{self, Read};
use std::process::ChildStdout;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long another program may take to start, to answer, and to end: a machine with other work may let it
/// wait for half a minute.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Debug)]
pub(crate) struct ChildOutputLines {
    output: ChildStdout,
    /// The read part of a line that is incomplete.
    heard: Vec<u8>,
}

impl ChildOutputLines {
    /// Each line is waited for [this long](PATIENCE).
    pub(crate) fn new(output: ChildStdout) -> Self {
        Self { output, heard: Vec::new() }
    }

    pub(crate) fn next_line(&mut self) -> io::Result<Vec<u8>> {
        let start = Instant::now();
        loop {
            if let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
                let rest = self.heard.split_off(end + 1);
                return Ok(std::mem::replace(&mut self.heard, rest));
            }
            let left = PATIENCE.saturating_sub(start.elapsed());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            if poll(&mut [PollFd::new(&self.output, PollFlags::IN)], Some(&timeout))? == 0 {
                let seconds = PATIENCE.as_secs();
                let text = format!("its process has said nothing for {seconds} s");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            let mut piece = [0; 1024];
            match self.output.read(&mut piece)? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "its process ended early")),
                count => self.heard.extend_from_slice(&piece[..count]),
            }
        }
    }
}
