//! A second process that outlives a killed recording, and cuts its file back to the last whole piece.
//!
//! Only where writes go through the page cache: there the kernel stops a killed process between two pages. A
//! direct write is one piece of work of the disk.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Failure;
use nocopy_report::Outcome;

const COMMAND: &str = "record-guard";

/// The other process, seen from the recording.
#[derive(Debug)]
pub(super) struct FileGuardProcess {
    child: Child,
    /// `None` once it is to end.
    pipe: Option<ChildStdin>,
}

impl FileGuardProcess {
    pub(super) fn start(file: &File) -> io::Result<Self> {
        let mut child = Command::new("/proc/self/exe")
            .arg(COMMAND)
            .stdin(Stdio::piped())
            .stdout(file.try_clone()?)
            .stderr(Stdio::null())
            .process_group(0) // Ctrl-C is not for it
            .spawn()?;
        let pipe = child.stdin.take();
        Ok(Self { child, pipe })
    }

    /// Reports to it how much of the file is complete.
    pub(super) fn report_complete_bytes(&mut self, bytes: u64) -> io::Result<()> {
        self.pipe.as_mut().map_or(Ok(()), |pipe| pipe.write_all(&bytes.to_le_bytes()))
    }
}

impl Drop for FileGuardProcess {
    fn drop(&mut self) {
        drop(self.pipe.take());
        let _ = self.child.wait();
    }
}

/// Runs the other process: standard input reports how much is whole, standard output is the file.
pub(crate) fn run_guard_process() -> Result<Outcome, Failure> {
    let (mut input, mut complete) = (io::stdin().lock(), None);
    let mut bytes = [0; 8];
    while input.read_exact(&mut bytes).is_ok() {
        complete = Some(u64::from_le_bytes(bytes));
    }
    let file = File::from(io::stdout().as_fd().try_clone_to_owned().map_err(nocopy_report::Failure::Print)?);
    if let Some(complete) = complete {
        truncate_to_blocks(&file, complete).map_err(nocopy_report::Failure::Print)?;
    }
    Ok(Outcome::Positive)
}

/// Cuts a file after its last whole block; the first `complete` bytes are known to be whole blocks.
fn truncate_to_blocks(file: &File, mut complete: u64) -> io::Result<()> {
    let end = file.metadata()?.len();
    let mut head = [0; 8];
    while complete < end && file.read_exact_at(&mut head, complete).is_ok() {
        let [.., a, b, c, d] = head;
        let len = u64::from(u32::from_le_bytes([a, b, c, d]));
        if len == 0 || complete + len > end {
            break;
        }
        complete += len;
    }
    if complete < end { file.set_len(complete) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_truncated_after_its_last_complete_block() {
        let path = std::env::temp_dir().join(format!("nocopy-guard-{}", std::process::id()));
        let block = [&[6, 0, 0, 0, 16, 0, 0, 0][..], &[1, 2, 3, 4, 16, 0, 0, 0]].concat();
        let blocks = block.repeat(4);
        for end in 0..=blocks.len() {
            std::fs::write(&path, &blocks[..end]).unwrap();
            let file = File::options().read(true).write(true).open(&path).unwrap();
            truncate_to_blocks(&file, 0).unwrap();
            assert_eq!(file.metadata().unwrap().len(), end as u64 / 16 * 16, "{end}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}
