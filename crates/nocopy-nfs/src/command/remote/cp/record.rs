//! What proves that the beginning of an unfinished copy is right: a record beside it, `NAME.nocopy-done`.
//!
//! The length of `NAME.nocopy-part` proves nothing: writes are executed in any order, some of them fail, and
//! a disk stores them in an order of its own. So the record says how many bytes were on the disk, and of
//! which version of which source they are. It is removed before a part is made, and it is written only when
//! the bytes that it counts are on the disk.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::hash::Hasher;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;

use siphasher::sip::SipHasher13;

use crate::wire::nfs3::{Attributes, Time};

/// How many more bytes must be on the disk before the record is written again. Shorter files have none, and
/// are copied anew.
pub(super) const INTERVAL_BYTES: u64 = 32 << 20;

/// Longer than any record.
pub(super) const BYTES_MAX: usize = 512;

const PART: &str = ".nocopy-part";
const RECORD: &str = ".nocopy-done";

/// The names that belong to the copy of a file.
#[derive(Debug, Clone)]
pub(super) struct CopyNames {
    pub(super) complete: OsString,
    pub(super) part: OsString,
    pub(super) record: OsString,
}

/// The longest name of common file systems. A longer one is not shortened: whoever makes the file reports it.
const NAME_BYTES_MAX: usize = 255;

impl CopyNames {
    pub(super) fn new(whole: OsString) -> Self {
        let bytes = whole.as_bytes();
        let begin = match bytes.len() + PART.len() > NAME_BYTES_MAX && bytes.len() <= NAME_BYTES_MAX {
            true => shortened_name(bytes),
            false => bytes.to_vec(),
        };
        let with = |suffix: &str| OsString::from_vec([&begin, suffix.as_bytes()].concat());
        Self { part: with(PART), record: with(RECORD), complete: whole }
    }
}

/// The beginning of a name that leaves no room for a suffix, and a hash of all of it. No character is cut in
/// two.
fn shortened_name(name: &[u8]) -> Vec<u8> {
    let mut hasher = SipHasher13::new();
    hasher.write(name);
    let hash = format!("-{:016x}", hasher.finish());
    let mut end = NAME_BYTES_MAX - PART.len() - hash.len();
    while end > 0 && name[end] & 0xc0 == 0x80 {
        end -= 1;
    }
    [&name[..end], hash.as_bytes()].concat()
}

/// Whether a name is that of an unfinished copy or its record. Such files in a directory are skipped: the
/// names of their copies would conflict with this copy's own.
pub(super) fn is_unfinished_copy_name(name: &OsStr) -> bool {
    [PART, RECORD].iter().any(|suffix| name.as_encoded_bytes().ends_with(suffix.as_bytes()))
}

/// A version of a source: if any of it changes, the bytes may have changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SourceVersion {
    file_id: u64,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl From<&Attributes> for SourceVersion {
    fn from(of: &Attributes) -> Self {
        let time = |time: Time| (time.seconds.into(), time.nanoseconds.into());
        Self { file_id: of.file_id, size: of.size, modified: time(of.modified), changed: time(of.changed) }
    }
}

impl From<&Metadata> for SourceVersion {
    fn from(of: &Metadata) -> Self {
        Self {
            file_id: of.ino(),
            size: of.len(),
            modified: (of.mtime(), of.mtime_nsec()),
            changed: (of.ctime(), of.ctime_nsec()),
        }
    }
}

impl SourceVersion {
    pub(super) fn may_have_record(&self) -> bool {
        self.size >= INTERVAL_BYTES
    }

    /// The record that the first `done` bytes of this version are on the disk, in the part with this number.
    /// Its length does not depend on the numbers, so that it can be written over an earlier one; the checksum
    /// shows that it was written whole.
    pub(super) fn format_record(&self, part: u64, done: u64) -> String {
        let Self { file_id, size, modified, changed } = self;
        let mut text = format!(
            "nocopy cp 1\nsource {file_id:016x} {size:016x} {:016x} {:08x} {:016x} {:08x}\npart {part:016x}\ndone {done:016x}\n",
            modified.0, modified.1, changed.0, changed.1
        );
        let mut hasher = SipHasher13::new();
        hasher.write(text.as_bytes());
        text += &format!("check {:016x}\n", hasher.finish());
        text
    }

    /// How many bytes of a part are proven to be those of this version.
    pub(super) fn proven_bytes(&self, record: &[u8], part: u64) -> Option<u64> {
        let text = str::from_utf8(record).ok()?;
        let done = text.lines().find_map(|line| line.strip_prefix("done "))?;
        let done = u64::from_str_radix(done, 16).ok()?;
        (done <= self.size && self.format_record(part, done).as_bytes() == record).then_some(done)
    }
}

/// A file that has the name of a part or of a record. In a directory where others may write, it can be
/// theirs, or a second name of another file; such a file is never written to.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExistingFile {
    pub(super) is_regular: bool,
    pub(super) links: u64,
    pub(super) owner: u32,
}

impl ExistingFile {
    pub(super) fn is_exclusively_owned_by(&self, user: u32) -> bool {
        self.is_regular && self.links == 1 && self.owner == user
    }
}

impl From<&Metadata> for ExistingFile {
    fn from(of: &Metadata) -> Self {
        Self { is_regular: of.is_file(), links: of.nlink(), owner: of.uid() }
    }
}

impl From<&Attributes> for ExistingFile {
    fn from(of: &Attributes) -> Self {
        let is_regular = of.file_type == crate::wire::nfs3::FileType::Regular;
        Self { is_regular, links: of.links.into(), owner: of.user }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VERSION: SourceVersion =
        SourceVersion { file_id: 7, size: 100 << 20, modified: (-1, 999_999_999), changed: (1 << 33, 0) };

    #[test]
    fn records_prove_bytes_of_one_version_and_part() {
        let record = VERSION.format_record(9, 64 << 20);
        assert!(record.len() <= BYTES_MAX);
        assert_eq!(record.len(), VERSION.format_record(u64::MAX, 0).len());
        assert_eq!(VERSION.proven_bytes(record.as_bytes(), 9), Some(64 << 20));
        assert_eq!(VERSION.proven_bytes(record.as_bytes(), 8), None);
        for other in [
            SourceVersion { file_id: 8, ..VERSION },
            SourceVersion { size: (100 << 20) + 1, ..VERSION },
            SourceVersion { modified: (-1, 0), ..VERSION },
            SourceVersion { changed: (0, 0), ..VERSION },
        ] {
            assert_eq!(other.proven_bytes(record.as_bytes(), 9), None, "{other:?}");
        }
        // More than there is.
        assert_eq!(VERSION.proven_bytes(VERSION.format_record(9, (100 << 20) + 1).as_bytes(), 9), None);
    }

    #[test]
    fn names_of_unfinished_copies_respect_the_name_limit() {
        for (name, is_kept) in
            [("a".repeat(242), true), ("a".repeat(243), false), ("\u{e9}x\u{4f60}".repeat(42), false)]
        {
            let names = [0, 1].map(|last| CopyNames::new(format!("{name}{last}").into()));
            assert_ne!(names[0].part, names[1].part);
            for CopyNames { complete: whole, part, record } in names {
                assert!(
                    part.len() <= 255
                        && record.len() <= 255
                        && is_unfinished_copy_name(&part)
                        && is_unfinished_copy_name(&record)
                );
                assert!(part.to_str().is_some());
                assert_eq!(part.as_bytes().starts_with(whole.as_bytes()), is_kept, "{part:?}");
            }
        }
        let long = CopyNames::new("a".repeat(256).into());
        assert!(long.part.len() > 255);
    }

    #[test]
    fn torn_records_prove_nothing() {
        let [old, new] = [32 << 20, 64 << 20].map(|done| VERSION.format_record(9, done).into_bytes());
        for length in 1..new.len() {
            let torn = [&new[..length], &old[length..]].concat();
            if torn != new && torn != old {
                assert_eq!(VERSION.proven_bytes(&torn, 9), None, "the first {length} bytes are new");
            }
            assert_eq!(VERSION.proven_bytes(&new[..length], 9), None, "{length} bytes");
        }
        assert_eq!(VERSION.proven_bytes(&[0xff; 200], 9), None);
    }

    #[test]
    fn only_own_regular_files_with_one_name_are_continued() {
        let own = ExistingFile { is_regular: true, links: 1, owner: 1000 };
        assert!(own.is_exclusively_owned_by(1000));
        for other in [
            ExistingFile { is_regular: false, ..own },
            ExistingFile { links: 2, ..own },
            ExistingFile { owner: 2000, ..own },
        ] {
            assert!(!other.is_exclusively_owned_by(1000), "{other:?}");
        }
    }
}
