//! Files that a command reads: whether the length that the kernel reports is that of the content, and reading
//! short files whole.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::fstatfs;

use crate::Failure;

/// What a file is for a command that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputKind {
    /// A file with this length, which can be read at any offset.
    Stored { bytes: u64 },
    /// Its length is known only when it has been read to its end: a pipe, a device, or a file whose content
    /// is made when it is read (procfs, sysfs) and which the kernel reports to be empty, or longer than it
    /// is.
    Stream,
}

/// What an open file is.
///
/// # Errors
/// The kernel's; a directory.
pub fn input_kind(file: &File) -> io::Result<InputKind> {
    let metadata = file.metadata()?;
    if metadata.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    Ok(input_kind_from_metadata(file, &metadata))
}

/// As [`input_kind`], of a file that the kernel described so when it was opened.
pub fn input_kind_from_metadata(file: &File, metadata: &Metadata) -> InputKind {
    let has_length = match metadata.len() {
        _ if !metadata.is_file() => false,
        // It may have content. In a file system without room it is not even tried: what is read may be gone
        // (trace_pipe).
        0 => fstatfs(file).is_ok_and(|system| system.f_blocks > 0) && content_ends_at(file, 0),
        // What takes no room is made when it is read, or has holes only.
        bytes => metadata.blocks() > 0 || content_ends_at(file, bytes),
    };
    if has_length { InputKind::Stored { bytes: metadata.len() } } else { InputKind::Stream }
}

/// Whether the content of a file ends at an offset, whatever length is reported. If it cannot be read there,
/// it does not.
pub fn content_ends_at(file: &File, offset: u64) -> bool {
    let count_at = |offset| file.read_at(&mut [0], offset).ok();
    let has_last = offset.checked_sub(1).is_none_or(|last| count_at(last) == Some(1));
    has_last && count_at(offset) == Some(0)
}

/// The error for a file that ended before the length that it had when it was opened.
pub fn shrunk_error() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "it became shorter while it was read")
}

/// Whether a path means standard input or output.
pub fn is_standard_stream(path: &Path) -> bool {
    path == Path::new("-")
}

/// Opens a file, or standard input for `-`. A named pipe waits for a program that writes to it.
pub fn open_input(path: &Path) -> io::Result<File> {
    match is_standard_stream(path) {
        true => Ok(File::from(io::stdin().as_fd().try_clone_to_owned()?)),
        false => File::open(path),
    }
}

/// The name of an input in messages.
pub fn display_name(path: &Path) -> PathBuf {
    if is_standard_stream(path) { "standard input".into() } else { path.into() }
}

/// The content of a file, or of standard input for `-`; `None` if it is longer than that many bytes, or has
/// no end.
///
/// # Errors
/// The kernel's.
pub fn read_limited(path: &Path, bytes_max: usize) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    open_input(path)?.take(bytes_max as u64 + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() <= bytes_max).then_some(bytes))
}

/// As [`read_limited`]; a longer file is an error.
///
/// # Errors
/// It cannot be read, or is longer.
pub fn read_or_refuse_long(path: &Path, bytes_max: usize) -> Result<Vec<u8>, Failure> {
    let read =
        read_limited(path, bytes_max).map_err(|source| Failure::Input { path: display_name(path), source });
    read?.ok_or_else(|| Failure::LongInput { path: display_name(path), bytes_max })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;

    fn input_kind_of_path(path: &str) -> InputKind {
        input_kind(&File::open(path).unwrap()).unwrap()
    }

    #[test]
    fn files_with_a_wrong_length_are_streams() {
        // Reported with length 0, and with a page.
        for path in
            ["/proc/self/status", "/proc/self/maps", "/sys/class/net/lo/address", "/dev/null", "/dev/zero"]
        {
            assert_eq!(input_kind_of_path(path), InputKind::Stream, "{path}");
        }
        let (reader, _writer) = io::pipe().unwrap();
        let reader = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(input_kind(&reader).unwrap(), InputKind::Stream);
    }

    #[test]
    fn files_on_a_disk_and_holes_have_a_length() {
        let path = std::env::temp_dir().join(format!("nocopy-input-{}", std::process::id()));
        let mut file = File::create_new(&path).unwrap();
        let opened = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let has_room = fstatfs(&opened).unwrap().f_blocks > 0;
        let empty = if has_room { InputKind::Stored { bytes: 0 } } else { InputKind::Stream };
        assert_eq!(input_kind(&opened).unwrap(), empty);
        file.write_all(&[1; 5000]).unwrap();
        assert_eq!(input_kind(&opened).unwrap(), InputKind::Stored { bytes: 5000 });
        file.set_len(0).unwrap();
        file.set_len(1 << 30).unwrap();
        assert_eq!(input_kind(&opened).unwrap(), InputKind::Stored { bytes: 1 << 30 });
    }

    #[test]
    fn directories_are_refused() {
        let refused = input_kind(&File::open("/").unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn endless_files_are_read_up_to_the_limit() {
        assert_eq!(read_limited(Path::new("/dev/zero"), 1 << 20).unwrap(), None);
        assert_eq!(read_limited(Path::new("/dev/null"), 1).unwrap(), Some(Vec::new()));
    }
}
