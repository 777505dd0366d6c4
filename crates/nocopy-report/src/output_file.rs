//! Files that a command writes: none is overwritten unasked, and none is written through a symbolic link.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{OFlags, Stat, fcntl_getfl, fstat};
use rustix::process::geteuid;

use crate::{Failure, Interrupt, input_file, print};

/// How long to wait for the reader of a pipe before checking for an interrupt.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// Permissions of a file that only its owner can read.
const OWNER_ONLY: u32 = 0o600;

/// The number of users that a user namespace does not have (`/proc/sys/kernel/overflowuid`).
const UNMAPPED: u32 = 65_534;

/// How files of packets and received bytes are made: readable only by their owner, unless the user asks for
/// other permissions.
#[derive(Debug, Clone, Copy)]
pub struct CreateOptions {
    pub force: bool,
    /// Permissions that the user asked for.
    pub permissions: Option<u32>,
}

impl CreateOptions {
    /// Opens a file to write it from its beginning; pipes and other special files are opened unchanged. Waits
    /// for the reader of a pipe, which is not waited for later: it is opened so that writing returns
    /// [`io::ErrorKind::WouldBlock`].
    ///
    /// # Errors
    /// As [`open_with_options`].
    pub fn open(self, path: &Path, options: &mut OpenOptions, interrupt: &Interrupt) -> io::Result<File> {
        let (file, existing) =
            open_with_options(path, options.mode(OWNER_ONLY), |_| self.force, Some(interrupt))?;
        let is_shared = |existing: Metadata| existing.mode() & 0o777 & !OWNER_ONLY != 0;
        let permissions = self.permissions.or(existing.is_some_and(is_shared).then_some(OWNER_ONLY));
        if file.metadata()?.is_file() {
            // Before there is anything to read. Fails for a file of another user, who could read it whatever
            // its permissions.
            permissions.map_or(Ok(()), |mode| file.set_permissions(Permissions::from_mode(mode)))?;
            file.set_len(0)?;
        }
        Ok(file)
    }
}

/// An output for packets or received bytes.
#[derive(Debug)]
pub struct OutputFile {
    /// For messages.
    pub path: PathBuf,
    pub file: File,
    /// Whether it is a file that can be written at any offset, in any order. Everything else is written in
    /// order.
    pub is_seekable: bool,
    /// Whether writing may wait for a reader: a socket or terminal, or the pipe of another program that
    /// cannot be opened again.
    pub may_block: bool,
}

impl OutputFile {
    /// Opens a file, or standard output for `-`.
    ///
    /// # Errors
    /// The file cannot be opened, or the user interrupted the wait for a pipe's reader.
    pub fn open(
        path: &Path,
        creation: CreateOptions,
        options: &mut OpenOptions,
        interrupt: &Interrupt,
    ) -> Result<Self, Failure> {
        if input_file::is_standard_stream(path) {
            let file = standard_output()?;
            let file = reopen_nonblocking(&file).unwrap_or(file);
            return Ok(Self { is_seekable: false, ..Self::from_open_file("standard output".into(), file) });
        }
        let file = creation.open(path, options, interrupt).map_err(|source| Failure::output(path, source))?;
        Ok(Self::from_open_file(path.into(), file))
    }

    fn from_open_file(path: PathBuf, file: File) -> Self {
        let is_file = file.metadata().is_ok_and(|metadata| metadata.is_file());
        let is_nonblocking = fcntl_getfl(&file).is_ok_and(|flags| flags.contains(OFlags::NONBLOCK));
        Self { path, file, is_seekable: is_file, may_block: !is_file && !is_nonblocking }
    }
}

/// Standard output for data: text goes to standard error from now on.
pub(crate) fn standard_output() -> Result<File, Failure> {
    let output = io::stdout().as_fd().try_clone_to_owned().map_err(Failure::Print)?;
    print::send_text_to_standard_error();
    Ok(output.into())
}

/// The same pipe, opened again so that writing never waits: the given descriptor is shared with other
/// processes, and remains unchanged. Other outputs are used as they are (a file has its own position, a
/// socket cannot be opened).
fn reopen_nonblocking(pipe: &File) -> io::Result<File> {
    if !pipe.metadata()?.file_type().is_fifo() {
        return Err(io::ErrorKind::Unsupported.into());
    }
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(path)
}

/// Opens a file with `options`. If the file existed, also returns its former metadata. A pipe without a
/// reader is waited for, until a signal arrives.
///
/// # Errors
/// The kernel's; `AlreadyExists`, if a file is there that may not be overwritten; `ELOOP`, if a symbolic link
/// leads to a file. Links to anything else, such as those in `/dev/fd`, are followed, because nothing can be
/// overwritten. `EACCES`, if a pipe or device belongs to another user than this process's and root, and was
/// not inherited: that user would read what is written.
pub fn open_with_options(
    path: &Path,
    options: &OpenOptions,
    may_overwrite: impl FnOnce(&Metadata) -> bool,
    interrupt: Option<&Interrupt>,
) -> io::Result<(File, Option<Metadata>)> {
    // A single call makes or finds the file: between a check and a later call another user could put a link
    // there.
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        created => return Ok((created?, None)),
    }
    let (file, metadata) = match fs::metadata(path) {
        Ok(pipe) if pipe.file_type().is_fifo() => open_pipe(path, &pipe, interrupt)?,
        _ => open_existing(path, options, may_overwrite)?,
    };
    if is_standard_output(&metadata) {
        print::send_text_to_standard_error();
    }
    Ok((file, Some(metadata)))
}

/// Whether text on standard output would be between the data of this file.
fn is_standard_output(file: &Metadata) -> bool {
    !file.file_type().is_char_device()
        && [fstat(io::stdout())].into_iter().flatten().any(|stat| is_same_file(stat, file))
}

fn is_same_file(stat: Stat, file: &Metadata) -> bool {
    (stat.st_dev, stat.st_ino) == (file.dev(), file.ino())
}

/// Opens a pipe once a program reads it; for writing only, because while a process could read its own pipe,
/// it would not notice that the reader is gone.
fn open_pipe(
    path: &Path,
    metadata: &Metadata,
    interrupt: Option<&Interrupt>,
) -> io::Result<(File, Metadata)> {
    let refused = || io::Error::from_raw_os_error(libc::EACCES);
    if !is_trusted(metadata, None) {
        return Err(refused());
    }
    let open = |flags| File::options().write(true).custom_flags(libc::O_NOCTTY | flags).open(path);
    let file = loop {
        let Some(interrupt) = interrupt else { break open(0)? };
        match open(libc::O_NONBLOCK) {
            Err(error) if error.raw_os_error() == Some(libc::ENXIO) => {}
            opened => break opened?,
        }
        if interrupt.sleep(CHECK_INTERVAL) {
            return Err(io::ErrorKind::Interrupted.into());
        }
    };
    let metadata = file.metadata()?;
    // It may have been replaced meanwhile.
    let is_trusted = metadata.file_type().is_fifo() && is_trusted(&metadata, Some(&file));
    if is_trusted { Ok((file, metadata)) } else { Err(refused()) }
}

fn open_existing(
    path: &Path,
    options: &OpenOptions,
    may_overwrite: impl FnOnce(&Metadata) -> bool,
) -> io::Result<(File, Metadata)> {
    let existing = |flags| options.clone().custom_flags(libc::O_NOCTTY | flags).open(path);
    let (file, link) = match existing(libc::O_NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => (existing(0)?, Some(error)),
        opened => (opened?, None),
    };
    let metadata = file.metadata()?;
    match link {
        _ if !metadata.is_file() && is_trusted(&metadata, Some(&file)) => {}
        // As the kernel does for FIFOs in sticky directories (fs.protected_fifos).
        _ if !metadata.is_file() => return Err(io::Error::from_raw_os_error(libc::EACCES)),
        _ if !may_overwrite(&metadata) => return Err(io::ErrorKind::AlreadyExists.into()),
        // Of symbolic links, only those in /dev and /proc that mean this process's own output are followed.
        Some(link) if !is_own_output(&metadata) => return Err(link),
        _ => {}
    }
    Ok((file, metadata))
}

fn is_own_output(file: &Metadata) -> bool {
    [fstat(io::stdout()), fstat(io::stderr())].into_iter().flatten().any(|stat| is_same_file(stat, file))
}

/// Whether no other user reads what is written to this pipe or device.
fn is_trusted(metadata: &Metadata, file: Option<&File>) -> bool {
    let owner = metadata.uid();
    // In a user namespace, root of the host has this number, and so has `/dev/null`; no user makes a device.
    let is_unmapped_device = owner == UNMAPPED && !metadata.file_type().is_fifo();
    owner == geteuid().as_raw() || owner == 0 || is_unmapped_device || is_inherited(metadata, file)
}

/// Whether this process has it open already, such as a pipe of the shell that started it, which is of another
/// user under sudo(8).
fn is_inherited(metadata: &Metadata, file: Option<&File>) -> bool {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return false };
    let own = file.map(|file| file.as_raw_fd().to_string());
    let others = open.flatten().filter(|one| own.is_none() || one.file_name().to_str() != own.as_deref());
    let mut others = others.filter_map(|one| fs::metadata(one.path()).ok());
    others.any(|other| (other.dev(), other.ino()) == (metadata.dev(), metadata.ino()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use rustix::fs::mkfifoat;

    use super::*;

    /// A directory that is removed with the test.
    struct ScratchDirectory(PathBuf);

    impl ScratchDirectory {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("nocopy-output-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for ScratchDirectory {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn open_private(path: &Path, force: bool, permissions: Option<u32>) -> io::Result<File> {
        let interrupt = Interrupt::catch().unwrap();
        CreateOptions { force, permissions }.open(path, File::options().write(true), &interrupt)
    }

    fn permission_bits(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn files_are_private_by_default() {
        let scratch = ScratchDirectory::new("owner");
        let path = scratch.join("file");
        open_private(&path, false, None).unwrap();
        assert_eq!(permission_bits(&path), 0o600);
        open_private(&path, true, Some(0o664)).unwrap();
        assert_eq!(permission_bits(&path), 0o664, "whatever the umask");
        fs::write(&path, "of before").unwrap();
        open_private(&path, true, None).unwrap();
        assert_eq!((permission_bits(&path), fs::metadata(&path).unwrap().len()), (0o600, 0));
    }

    #[test]
    fn existing_files_are_kept_without_force() {
        let scratch = ScratchDirectory::new("force");
        let path = scratch.join("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(open_private(&path, false, None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn symbolic_links_to_files_are_refused() {
        let scratch = ScratchDirectory::new("link");
        let (file, link) = (scratch.join("file"), scratch.join("link"));
        symlink(&file, &link).unwrap();
        open_private(&link, true, None).unwrap_err();
        assert!(!file.exists(), "made through a link");
        fs::write(&file, "precious").unwrap();
        assert_eq!(open_private(&link, false, None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(open_private(&link, true, None).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    /// Its reader would get what is written. Pipes of a shell are this process's own, whoever made them.
    #[test]
    fn fifos_of_other_users_are_refused() {
        let scratch = ScratchDirectory::new("fifo");
        let (fifo, link) = (scratch.join("fifo"), scratch.join("link"));
        mkfifoat(rustix::fs::CWD, &fifo, OWNER_ONLY.into()).unwrap();
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        symlink(&fifo, &link).unwrap();
        for path in [&fifo, &link] {
            open_private(path, false, None).unwrap();
        }
        if let Err(error) = std::os::unix::fs::chown(&fifo, Some(65_533), None) {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            return; // only root may give a file to another user
        }
        drop(reader);
        for path in [&fifo, &link] {
            assert_eq!(open_private(path, true, None).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        let inherited = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        open_private(&inherited, false, None).unwrap();
    }

    #[test]
    fn an_interrupt_ends_the_wait_for_a_reader() {
        let scratch = ScratchDirectory::new("reader");
        let fifo = scratch.join("fifo");
        mkfifoat(rustix::fs::CWD, &fifo, OWNER_ONLY.into()).unwrap();
        let interrupt = Interrupt::catch().unwrap();
        let creation = CreateOptions { force: false, permissions: None };
        let mut both = File::options();
        both.read(true).write(true);
        std::thread::scope(|scope| {
            let opening = scope.spawn(|| creation.open(&fifo, both.clone().truncate(false), &interrupt));
            let reader = File::open(&fifo).unwrap();
            let file = opening.join().unwrap().unwrap();
            drop(reader);
            let gone = io::Write::write(&mut &file, b"x").unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::BrokenPipe, "it is no reader itself");
        });
        interrupt.request_end();
        let interrupted = creation.open(&fifo, &mut both, &interrupt).unwrap_err();
        assert_eq!(interrupted.kind(), io::ErrorKind::Interrupted);
    }

    #[test]
    fn devices_are_opened_unchanged() {
        let scratch = ScratchDirectory::new("device");
        let link = scratch.join("link");
        symlink("/dev/null", &link).unwrap();
        let before = permission_bits(Path::new("/dev/null"));
        for path in [Path::new("/dev/null"), &link] {
            open_private(path, false, Some(0o640)).unwrap();
        }
        assert_eq!(permission_bits(Path::new("/dev/null")), before);
    }
}
