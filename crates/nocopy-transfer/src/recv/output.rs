//! The output: a file, which is written by offset, or a pipe, which is written in order.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::io::pwritev;

use nocopy_report::Failure;
use nocopy_report::output_file::PrivateFile;

#[derive(Debug)]
pub(super) struct Opened {
    /// For error messages.
    pub path: PathBuf,
    pub file: File,
    /// Whether it can be written at any offset, in any order.
    pub has_places: bool,
}

impl Opened {
    /// Opens a file, or standard output for `-`.
    pub(super) fn open(path: &Path, making: PrivateFile) -> Result<Self, Failure> {
        if path == Path::new("-") {
            let output = io::stdout().as_fd().try_clone_to_owned().map_err(Failure::Print)?;
            return Ok(Self { path: "standard output".into(), file: File::from(output), has_places: false });
        }
        let opened = making.open(path, File::options().write(true));
        let file = opened.map_err(|source| Failure::output(path, source))?;
        let has_places = file.metadata().is_ok_and(|metadata| metadata.is_file());
        Ok(Self { path: path.into(), file, has_places })
    }
}

/// Waits until a file is on the disk: until then, the disk or the server of the file system may still refuse the bytes. Pipes have no disk.
pub(super) fn sync(path: &Path, file: &File) -> Result<(), Failure> {
    let synced = match file.metadata() {
        Ok(about) if about.is_file() => file.sync_data(),
        _ => Ok(()),
    };
    synced.map_err(|source| failure(path, source))
}

pub(super) fn failure(path: &Path, source: io::Error) -> Failure {
    match source.kind() {
        // `| head`: the reader has closed the pipe.
        io::ErrorKind::BrokenPipe => Failure::Print(source),
        _ => Failure::Output { path: path.into(), source },
    }
}

pub(super) fn write_all_at(file: &File, mut slices: &mut [IoSlice], mut offset: u64) -> io::Result<()> {
    IoSlice::advance_slices(&mut slices, 0);
    while !slices.is_empty() {
        match pwritev(file, slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                offset += written as u64;
                IoSlice::advance_slices(&mut slices, written);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    Ok(())
}
