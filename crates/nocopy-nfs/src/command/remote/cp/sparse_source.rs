//! Holes of a file that is read, which are not sent.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;

use nocopy_report::input_file::{InputKind, input_kind_from_metadata};
use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

/// A file that is read from front to back.
#[derive(Debug)]
pub(super) struct SparseSource {
    pub(super) file: File,
    holes: HoleState,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HoleState {
    /// There are none, or this file system does not report them.
    None,
    /// Data up to here.
    Data { end: u64 },
    /// Nothing but a hole up to the end, which is here.
    End { length: u64 },
}

impl SparseSource {
    pub(super) fn new(file: File, metadata: &Metadata) -> Self {
        // Without a length that is that of its content, it has no holes: what is made when it is read takes
        // no blocks.
        let is_stored = || input_kind_from_metadata(&file, metadata) != InputKind::Stream;
        let holes = match metadata.blocks().saturating_mul(512) < metadata.len() && is_stored() {
            true => HoleState::Data { end: 0 },
            false => HoleState::None,
        };
        Self { file, holes }
    }

    /// Moves to the next data from an offset on, if it is in a hole. Returns how many bytes may be data, or
    /// `None` if none follow.
    pub(super) fn skip_hole(&mut self, offset: &mut u64) -> io::Result<Option<u64>> {
        match self.holes {
            HoleState::None => return Ok(Some(u64::MAX)),
            HoleState::End { .. } => return Ok(None),
            HoleState::Data { end } if *offset < end => return Ok(Some(end - *offset)),
            HoleState::Data { .. } => {}
        }
        // Before the hole is looked for: what is appended afterwards is no hole.
        let length = self.file.metadata()?.len();
        let data = seek(&self.file, SeekFrom::Data(*offset));
        match data.and_then(|begin| Ok((begin, seek(&self.file, SeekFrom::Hole(begin))?))) {
            Ok((begin, end)) => {
                seek(&self.file, SeekFrom::Start(begin))?;
                (self.holes, *offset) = (HoleState::Data { end }, begin);
                Ok(Some(end - begin))
            }
            Err(Errno::NXIO) => {
                self.holes = HoleState::End { length };
                Ok(None)
            }
            Err(_) => {
                seek(&self.file, SeekFrom::Start(*offset))?;
                self.holes = HoleState::None;
                Ok(Some(u64::MAX))
            }
        }
    }

    /// The length of the file, if it ends in a hole behind this offset.
    pub(super) fn length_if_hole_follows(&self, offset: u64) -> Option<u64> {
        match self.holes {
            HoleState::End { length } if length > offset => Some(length),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn data_are_found_between_holes() {
        const PIECE: u64 = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(5 * PIECE).unwrap();
        file.write_all_at(b"data", PIECE).unwrap();
        file.write_all_at(b"more", 3 * PIECE).unwrap();
        let metadata = file.metadata().unwrap();
        let mut source = SparseSource::new(file, &metadata);
        let (mut offset, mut data) = (0, Vec::new());
        while let Some(bytes) = source.skip_hole(&mut offset).unwrap() {
            let bytes = bytes.min(5 * PIECE - offset); // all of it, where holes are not reported
            data.push(offset..offset + bytes);
            offset += bytes;
            if offset == 5 * PIECE {
                break;
            }
        }
        for at in [PIECE, 3 * PIECE] {
            assert!(data.iter().any(|data| data.contains(&at) && data.contains(&(at + 3))), "{data:?}");
        }
        let is_end = matches!(source.holes, HoleState::End { .. });
        assert_eq!(source.length_if_hole_follows(offset), is_end.then_some(5 * PIECE));
        assert_eq!(source.length_if_hole_follows(5 * PIECE), None);
        // A file without blocks.
        let empty = tempfile::tempfile().unwrap();
        let metadata = empty.metadata().unwrap();
        assert_eq!(SparseSource::new(empty, &metadata).holes, HoleState::None);
        // A file that is not as long as reported.
        let made = File::open("/sys/class/net/lo/address").unwrap();
        let metadata = made.metadata().unwrap();
        assert_eq!(SparseSource::new(made, &metadata).holes, HoleState::None);
    }
}
