//! Where the stream goes: to its places in a file, or in order down a pipe.

use std::fs::File;
use std::io::{self, BufWriter, IoSlice};
use std::path::{Path, PathBuf};

use super::order::Order;
use crate::Failure;
use crate::recv::output::{Opened, write_all_at};

/// The most pieces a call takes (`IOV_MAX`).
const PIECES_MAX: usize = 1024;

#[derive(Debug)]
pub(super) struct Output {
    path: PathBuf,
    way: Way,
    written_bytes: u64,
}

#[derive(Debug)]
enum Way {
    /// Pieces are written where they belong, in whatever order they come; what does not come is a hole.
    Placed(File),
    InOrder(Order<BufWriter<File>>),
}

impl Output {
    /// Opens a file, or standard output for `-`.
    pub(super) fn open(path: &Path, force: bool) -> Result<Self, Failure> {
        let Opened { path, file, has_places } = Opened::open(path, force)?;
        let way = match has_places {
            true => Way::Placed(file),
            false => Way::InOrder(Order::new(BufWriter::with_capacity(256 << 10, file))),
        };
        Ok(Self { path, way, written_bytes: 0 })
    }

    /// Writes pieces of the stream, by their places.
    pub(super) fn write(&mut self, pieces: &[(u64, &[u8])]) -> Result<(), Failure> {
        self.written_bytes += pieces.iter().map(|(_, bytes)| bytes.len() as u64).sum::<u64>();
        let done = match &mut self.way {
            Way::Placed(file) => write_places(file, pieces),
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

    fn failure(&self, source: io::Error) -> Failure {
        crate::recv::output::failure(&self.path, source)
    }

    pub(super) fn words(&self) -> String {
        let (path, bytes) = (self.path.display(), self.written_bytes);
        match &self.way {
            Way::Placed(_) => {
                format!("{path}: {bytes} bytes, each where it belongs; what did not come is a hole")
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
    use super::*;

    #[test]
    fn pieces_are_written_where_they_belong() {
        let path = std::env::temp_dir().join(format!("nocopy-output-{}", std::process::id()));
        let mut output = Output::open(&path, false).unwrap();
        assert!(matches!(Output::open(&path, false), Err(Failure::Exists { .. })));
        let many: Vec<(u64, &[u8])> = (0..3000).map(|place| (20 + place, &b"x"[..])).collect();
        output.write(&[(4, b"ef"), (6, b"gh"), (0, b"ab"), (10, b"")]).unwrap();
        output.write(&many).unwrap();
        output.give_up().unwrap();
        let written = std::fs::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(written[..20], *b"ab\0\0efgh\0\0\0\0\0\0\0\0\0\0\0\0");
        assert!(written.len() == 3020 && written[20..].iter().all(|byte| *byte == b'x'));
        assert!(output.words().contains("3006 bytes"), "{}", output.words());
    }
}
