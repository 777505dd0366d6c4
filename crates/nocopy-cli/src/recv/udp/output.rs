//! Where the stream goes: to its places in a file, or in order down a pipe.

use std::fs::File;
use std::io::{self, BufWriter, IoSlice};
use std::path::{Path, PathBuf};

use super::order::Order;
use crate::Failure;
use crate::output_file::PrivateFile;
use crate::recv::output::{Opened, write_all_at};

/// The most pieces a call takes (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

/// How long a file may become: so many times as long as what was written to it, and so much longer. A sender that leaves out more, to fill
/// the disk by bytes that are blocks apart, does not get further. One that is honest would have lost more than 9 of 10 datagrams.
const REACH: u64 = 16;
const REACH_BYTES: u64 = 64 << 20;

#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    way: Way,
    written_bytes: u64,
    /// Of pieces too far ahead of all that was written.
    left_out_bytes: u64,
}

#[derive(Debug)]
enum Way {
    /// Pieces are written where they belong, in whatever order they come; what does not come is a hole.
    Placed(File),
    InOrder(Order<BufWriter<File>>),
}

impl Output {
    /// Opens a file, or standard output for `-`.
    pub(super) fn open(path: &Path, making: PrivateFile) -> Result<Self, Failure> {
        let Opened { path, file, has_places } = Opened::open(path, making)?;
        let way = match has_places {
            true => Way::Placed(file),
            false => Way::InOrder(Order::new(BufWriter::with_capacity(256 << 10, file))),
        };
        Ok(Self { path, way, written_bytes: 0, left_out_bytes: 0 })
    }

    /// Writes pieces of the stream, by their places.
    pub(super) fn write(&mut self, mut pieces: Vec<(u64, &[u8])>) -> Result<(), Failure> {
        let has_places = matches!(self.way, Way::Placed(_));
        pieces.retain(|(offset, bytes)| {
            let (end, bytes) = (offset + bytes.len() as u64, bytes.len() as u64); // offsets are below 2^62
            let is_near = !has_places || end <= REACH * self.written_bytes + REACH_BYTES;
            *(if is_near { &mut self.written_bytes } else { &mut self.left_out_bytes }) += bytes;
            is_near
        });
        let done = match &mut self.way {
            Way::Placed(file) => write_places(file, &pieces),
            Way::InOrder(order) => pieces.iter().try_for_each(|(offset, bytes)| order.take(*offset, bytes)),
        };
        done.map_err(|source| self.failure(source))
    }

    /// Writes what waited for something before it: that will not come.
    pub(super) fn give_up(&mut self) -> Result<(), Failure> {
        match &mut self.way {
            Way::Placed(_) => Ok(()),
            Way::InOrder(order) => order.give_up().map_err(|source| self.failure(source)),
        }
    }

    /// Whether pieces came that were not written because they belong too far ahead of all others.
    pub(super) fn has_left_out(&self) -> bool {
        self.left_out_bytes > 0
    }

    fn failure(&self, source: io::Error) -> Failure {
        crate::recv::output::failure(&self.path, source)
    }

    pub(super) fn words(&self) -> String {
        let (path, bytes) = (self.path.display(), self.written_bytes);
        match &self.way {
            Way::Placed(_) => {
                let left_out = match self.left_out_bytes {
                    0 => String::new(),
                    bytes => format!("; {bytes} too far ahead of all others left out"),
                };
                format!("{path}: {bytes} bytes, each where it belongs; what did not come is a hole{left_out}")
            }
            Way::InOrder(order) => {
                let (left_out, too_late) = order.gaps();
                format!(
                    "{path}: {} bytes in order, {left_out} left out, {too_late} came too late",
                    bytes - too_late
                )
            }
        }
    }
}

/// One call for pieces that follow each other.
fn write_places(file: &File, mut pieces: &[(u64, &[u8])]) -> io::Result<()> {
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
        write_all_at(file, &mut slices, *start)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    fn open(path: &Path) -> Result<Output, Failure> {
        Output::open(path, PrivateFile { force: false, permissions: None })
    }

    #[test]
    fn bytes_that_are_blocks_apart_do_not_fill_the_disk() {
        let path = std::env::temp_dir().join(format!("nocopy-output-apart-{}", std::process::id()));
        let mut output = open(&path).unwrap();
        let pieces = 100_000;
        for block in 0..pieces / 1000 {
            output
                .write((0..1000).map(|place| (4096 * (1000 * block + place), &b"x"[..])).collect())
                .unwrap();
        }
        output.write(vec![(1 << 61, b"far")]).unwrap();
        let metadata = std::fs::metadata(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(output.written_bytes + output.left_out_bytes, pieces + 3);
        let reach = REACH_BYTES + REACH * output.written_bytes;
        assert!(metadata.len() <= reach && 512 * metadata.blocks() <= reach + 4096, "{metadata:?}");
        assert!(output.has_left_out() && output.words().contains("left out"), "{}", output.words());
    }

    #[test]
    fn pieces_are_written_where_they_belong() {
        let path = std::env::temp_dir().join(format!("nocopy-output-{}", std::process::id()));
        let mut output = open(&path).unwrap();
        assert!(matches!(open(&path), Err(Failure::Exists { .. })));
        let many: Vec<(u64, &[u8])> = (0..3000).map(|place| (20 + place, &b"x"[..])).collect();
        output.write(vec![(4, b"ef"), (6, b"gh"), (0, b"ab"), (10, b"")]).unwrap();
        output.write(many).unwrap();
        output.give_up().unwrap();
        let written = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written[..20], *b"ab\0\0efgh\0\0\0\0\0\0\0\0\0\0\0\0");
        assert!(written.len() == 3020 && written[20..].iter().all(|byte| *byte == b'x'));
        assert!(output.words().contains("3006 bytes"), "{}", output.words());
    }
}
