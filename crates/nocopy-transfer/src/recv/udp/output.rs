//! The output of datagrams: at their offsets in a file, or in order into a pipe.

use std::fs::File;
use std::io::{self, BufWriter, IoSlice};
use std::path::{Path, PathBuf};

use super::reorder_buffer::ReorderBuffer;
use crate::recv::output::{self, InterruptibleWriter, sync_to_disk, write_all_at};
use nocopy_report::output_file::{CreateOptions, OutputFile};
use nocopy_report::{Failure, Interrupt};

/// The most pieces of a call (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// The limit of disk space: this many times the received bytes, plus a constant. So a sender of bytes in
/// distant blocks cannot fill the disk; pieces of 512 bytes never reach the limit, at any offset.
const DISK_RATIO: u64 = 16;
const DISK_BYTES: u64 = 64 << 20;

/// The smallest allocation of file systems.
const BLOCK_BYTES: u64 = 4096;

#[derive(Debug)]
pub(super) struct DatagramOutput {
    path: PathBuf,
    mode: WriteMode,
    written_bytes: u64,
    /// Bytes of pieces that would use too much disk space, or exceed the longest file.
    left_out_bytes: u64,
    /// An upper bound of the file's disk space.
    disk_bytes: u64,
    /// The block in which the last piece ended.
    last_block: u64,
}

#[derive(Debug)]
enum WriteMode {
    /// Pieces are written at their offsets, in any order; missing ones are holes.
    Placed(File),
    InOrder(ReorderBuffer<BufWriter<InterruptibleWriter>>),
}

impl DatagramOutput {
    /// Opens a file, or standard output for `-`.
    pub(super) fn open(path: &Path, making: CreateOptions, interrupt: &Interrupt) -> Result<Self, Failure> {
        let OutputFile { path, file, is_seekable, may_block } = output::open_output(path, making, interrupt)?;
        let in_order = |file| {
            BufWriter::with_capacity(256 << 10, InterruptibleWriter::new(file, may_block, interrupt.clone()))
        };
        let mode = match is_seekable {
            true => WriteMode::Placed(file),
            false => WriteMode::InOrder(ReorderBuffer::new(in_order(file))),
        };
        Ok(Self { path, mode, written_bytes: 0, left_out_bytes: 0, disk_bytes: 0, last_block: 0 })
    }

    pub(super) fn write(&mut self, mut pieces: Vec<(u64, &[u8])>) -> Result<(), Failure> {
        if let WriteMode::Placed(_) = self.mode {
            pieces.retain(|(offset, bytes)| self.claim_disk_space(*offset, bytes.len() as u64));
        }
        let received: u64 = pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum();
        let done = match &mut self.mode {
            WriteMode::Placed(file) => write_pieces(file, &pieces),
            WriteMode::InOrder(order) => {
                let pushed = pieces.iter().try_for_each(|(offset, bytes)| order.push(*offset, bytes));
                pushed.map(|()| 0)
            }
        };
        let left_out = done.map_err(|source| self.failure(source))?;
        self.written_bytes += received - left_out;
        self.left_out_bytes += left_out;
        Ok(())
    }

    /// Whether a piece may be written; counts its disk space, or that it is left out.
    fn claim_disk_space(&mut self, offset: u64, bytes: u64) -> bool {
        if bytes == 0 {
            return true;
        }
        // Offsets are below 2^62.
        let (first, last) = (offset / BLOCK_BYTES, (offset + bytes - 1) / BLOCK_BYTES);
        let blocks = last - first + u64::from(first != self.last_block || self.disk_bytes == 0);
        let disk_bytes = self.disk_bytes + blocks * BLOCK_BYTES;
        let received = self.written_bytes + self.left_out_bytes + bytes;
        if disk_bytes > DISK_RATIO * received + DISK_BYTES {
            self.left_out_bytes += bytes;
            return false;
        }
        (self.disk_bytes, self.last_block) = (disk_bytes, last);
        true
    }

    /// Writes held-back pieces, because the missing ones will not arrive.
    pub(super) fn flush_pending(&mut self) -> Result<(), Failure> {
        match &mut self.mode {
            WriteMode::Placed(_) => Ok(()),
            WriteMode::InOrder(order) => order.flush_pending().map_err(|source| self.failure(source)),
        }
    }

    /// Writes what is held back, and waits until all is on the disk.
    pub(super) fn finish(&mut self) -> Result<(), Failure> {
        self.flush_pending()?;
        match &self.mode {
            WriteMode::Placed(file) => sync_to_disk(&self.path, file),
            WriteMode::InOrder(order) => sync_to_disk(&self.path, order.output().get_ref().file()),
        }
    }

    /// Whether pieces are missing in the output, although all may have arrived.
    pub(super) fn has_missing_pieces(&self) -> bool {
        let skipped = match &self.mode {
            WriteMode::Placed(_) => 0,
            WriteMode::InOrder(order) => order.skipped_and_late_bytes().0,
        };
        self.left_out_bytes > 0 || skipped > 0
    }

    fn failure(&self, source: io::Error) -> Failure {
        output::output_failure(&self.path, source)
    }

    pub(super) fn description(&self) -> String {
        let (path, bytes) = (self.path.display(), self.written_bytes);
        match &self.mode {
            WriteMode::Placed(_) => {
                let left_out = match self.left_out_bytes {
                    0 => String::new(),
                    bytes => format!(
                        "; {bytes} bytes left out: too many blocks for too few bytes, or too far for a file"
                    ),
                };
                format!("{path}: {bytes} bytes, each where it belongs; what did not come is a hole{left_out}")
            }
            WriteMode::InOrder(order) => {
                let (left_out, too_late) = order.skipped_and_late_bytes();
                format!(
                    "{path}: {} bytes in order, {left_out} left out, {too_late} came too late",
                    bytes.saturating_sub(too_late) // of a write that failed only these are counted
                )
            }
        }
    }
}

/// Writes contiguous pieces by one call. Returns how many bytes exceed the longest file of the file system.
fn write_pieces(file: &File, mut pieces: &[(u64, &[u8])]) -> io::Result<u64> {
    let mut too_far = 0;
    while let Some((start, _)) = pieces.first() {
        let mut end = *start;
        let mut slices: Vec<IoSlice> = Vec::with_capacity(pieces.len().min(PIECES_MAX));
        for (offset, bytes) in pieces.iter().take(PIECES_MAX) {
            if *offset != end {
                break;
            }
            slices.push(IoSlice::new(bytes));
            end += bytes.len() as u64;
        }
        pieces = &pieces[slices.len()..];
        match write_all_at(file, &mut slices, *start) {
            Err(error) if error.kind() == io::ErrorKind::FileTooLarge => too_far += end - start,
            done => done?,
        }
    }
    Ok(too_far)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn open_output(path: &Path) -> Result<DatagramOutput, Failure> {
        let making = CreateOptions { force: false, permissions: None };
        DatagramOutput::open(path, making, &Interrupt::catch().unwrap())
    }

    /// A pipe cannot take them any more: the stream in it is not whole.
    #[test]
    fn late_bytes_for_a_pipe_are_left_out() {
        let file = File::options().write(true).open("/dev/null").unwrap();
        let file = InterruptibleWriter::new(file, false, Interrupt::catch().unwrap());
        let mode = WriteMode::InOrder(ReorderBuffer::new(BufWriter::new(file)));
        let mut output = DatagramOutput {
            path: "-".into(),
            mode,
            written_bytes: 0,
            left_out_bytes: 0,
            disk_bytes: 0,
            last_block: 0,
        };
        output.write(vec![(0, b"ab"), (4, b"ef")]).unwrap();
        assert!(!output.has_missing_pieces());
        output.flush_pending().unwrap();
        output.write(vec![(2, b"cd")]).unwrap();
        assert!(output.has_missing_pieces(), "{}", output.description());
    }

    #[test]
    fn bytes_in_distant_blocks_do_not_fill_the_disk() {
        let path = std::env::temp_dir().join(format!("nocopy-output-apart-{}", std::process::id()));
        let mut output = open_output(&path).unwrap();
        let pieces = 100_000;
        for block in 0..pieces / 1000 {
            output
                .write((0..1000).map(|place| (4096 * (1000 * block + place), &b"x"[..])).collect())
                .unwrap();
        }
        output.write(vec![(1 << 61, b"far")]).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        assert_eq!(output.written_bytes + output.left_out_bytes, pieces + 3);
        let disk_max = DISK_BYTES + DISK_RATIO * (pieces + 3);
        assert!(512 * metadata.blocks() <= disk_max + BLOCK_BYTES, "{metadata:?}");
        assert!(
            output.has_missing_pieces() && output.description().contains("left out"),
            "{}",
            output.description()
        );
        // After each growth of the stream, whole pieces may be written again.
        let left_out = output.left_out_bytes;
        (0..1000).for_each(|place| output.write(vec![((1 << 40) + 1400 * place, &[b'x'; 1400])]).unwrap());
        std::fs::remove_file(&path).unwrap();
        assert_eq!(output.left_out_bytes, left_out);
    }

    #[test]
    fn a_gap_of_any_length_loses_no_bytes() {
        let path = std::env::temp_dir().join(format!("nocopy-output-gap-{}", std::process::id()));
        let mut output = open_output(&path).unwrap();
        for start in [0, 1 << 32, 1 << 40] {
            output.write((0..1000).map(|place| (start + 1400 * place, &[b'x'; 1400][..])).collect()).unwrap();
        }
        std::fs::remove_file(&path).unwrap();
        assert_eq!((output.written_bytes, output.left_out_bytes), (3 * 1_400_000, 0));
    }

    #[test]
    fn pieces_are_written_at_their_offsets() {
        let path = std::env::temp_dir().join(format!("nocopy-output-{}", std::process::id()));
        let mut output = open_output(&path).unwrap();
        assert!(matches!(open_output(&path), Err(Failure::Exists { .. })));
        let many: Vec<(u64, &[u8])> = (0..3000).map(|place| (20 + place, &b"x"[..])).collect();
        output.write(vec![(4, b"ef"), (6, b"gh"), (0, b"ab"), (10, b"")]).unwrap();
        output.write(many).unwrap();
        output.flush_pending().unwrap();
        let written = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written[..20], *b"ab\0\0efgh\0\0\0\0\0\0\0\0\0\0\0\0");
        assert!(written.len() == 3020 && written[20..].iter().all(|byte| *byte == b'x'));
        assert!(output.description().contains("3006 bytes"), "{}", output.description());
    }
}
