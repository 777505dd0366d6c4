//! Files that a command writes: none is overwritten unasked, and none is written through a symbolic link.

use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Stat, fstat};
use rustix::process::geteuid;

/// Permissions of a file that only its owner can read.
const OWN: u32 = 0o600;

/// The number of users that a user namespace does not have (`/proc/sys/kernel/overflowuid`).
const UNMAPPED: u32 = 65_534;

/// How files of packets and received bytes are made: readable only by their owner, unless the user asks for other permissions.
#[derive(Debug, Clone, Copy)]
pub struct PrivateFile {
    pub force: bool,
    /// Permissions that the user asked for.
    pub permissions: Option<u32>,
}

impl PrivateFile {
    /// Opens a file to write it from its beginning; pipes and other special files are opened unchanged.
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(self, path: &Path, options: &mut OpenOptions) -> io::Result<File> {
        let (file, existing) = open(path, options.mode(OWN), |_| self.force)?;
        let is_shared = |existing: Metadata| existing.mode() & 0o777 & !OWN != 0;
        let permissions = self.permissions.or(existing.is_some_and(is_shared).then_some(OWN));
        if file.metadata()?.is_file() {
            // Before there is anything to read. Fails for a file of another user, who could read it whatever its permissions.
            permissions.map_or(Ok(()), |mode| file.set_permissions(Permissions::from_mode(mode)))?;
            file.set_len(0)?;
        }
        Ok(file)
    }
}

/// Opens a file with `options`. If the file existed, also returns its former metadata.
///
/// # Errors
/// The kernel's; `AlreadyExists`, if a file is there that may not be overwritten; `ELOOP`, if a symbolic link leads to a file. Links to
/// anything else, such as those in `/dev/fd`, are followed, because nothing can be overwritten. `EACCES`, if a pipe or device belongs to
/// another user than this process's and root, and was not inherited: that user would read what is written.
pub fn open(
    path: &Path,
    options: &OpenOptions,
    may_overwrite: impl FnOnce(&Metadata) -> bool,
) -> io::Result<(File, Option<Metadata>)> {
    // A single call makes or finds the file: between a check and a later call another user could put a link there.
    match options.clone().create_new(true).open(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => return Ok((made?, None)),
    }
    let existing = |flags| options.clone().custom_flags(libc::O_NOCTTY | flags).open(path);
    let (file, link) = match existing(libc::O_NOFOLLOW) {
        Err(error) if error.raw_os_error() == Some(libc::ELOOP) => (existing(0)?, Some(error)),
        opened => (opened?, None),
    };
    let metadata = file.metadata()?;
    match link {
        _ if !metadata.is_file() && is_trusted(&file, &metadata) => {}
        // As the kernel does for FIFOs in sticky directories (fs.protected_fifos).
        _ if !metadata.is_file() => return Err(io::Error::from_raw_os_error(libc::EACCES)),
        _ if !may_overwrite(&metadata) => return Err(io::ErrorKind::AlreadyExists.into()),
        // Of symbolic links, only those in /dev and /proc that mean this process's own output are followed.
        Some(link) if !is_own_output(&metadata) => return Err(link),
        _ => {}
    }
    Ok((file, Some(metadata)))
}

fn is_own_output(file: &Metadata) -> bool {
    let is_same = |stat: Stat| (stat.st_dev, stat.st_ino) == (file.dev(), file.ino());
    [fstat(io::stdout()), fstat(io::stderr())].into_iter().flatten().any(is_same)
}

/// Whether no other user reads what is written to this pipe or device.
fn is_trusted(file: &File, metadata: &Metadata) -> bool {
    let owner = metadata.uid();
    // In a user namespace, root of the host has this number, and so has `/dev/null`; no user makes a device.
    let is_unmapped_device = owner == UNMAPPED && !metadata.file_type().is_fifo();
    owner == geteuid().as_raw() || owner == 0 || is_unmapped_device || is_inherited(file, metadata)
}

/// Whether this process has it open already, such as a pipe of the shell that started it, which is of another user under sudo(8).
fn is_inherited(file: &File, metadata: &Metadata) -> bool {
    let Ok(open) = fs::read_dir("/proc/self/fd") else { return false };
    let others = open.flatten().filter(|one| one.file_name().to_str() != Some(&file.as_raw_fd().to_string()));
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
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("nocopy-output-{name}-{}", std::process::id()));
            fs::create_dir(&path).unwrap();
            Self(path)
        }

        fn join(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn make(path: &Path, force: bool, permissions: Option<u32>) -> io::Result<File> {
        PrivateFile { force, permissions }.open(path, File::options().write(true))
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    #[test]
    fn files_are_private_unless_asked() {
        let scratch = Scratch::new("owner");
        let path = scratch.join("file");
        make(&path, false, None).unwrap();
        assert_eq!(mode(&path), 0o600);
        make(&path, true, Some(0o664)).unwrap();
        assert_eq!(mode(&path), 0o664, "whatever the umask");
        fs::write(&path, "of before").unwrap();
        make(&path, true, None).unwrap();
        assert_eq!((mode(&path), fs::metadata(&path).unwrap().len()), (0o600, 0));
    }

    #[test]
    fn what_is_there_stays_unless_overwriting_is_asked_for() {
        let scratch = Scratch::new("force");
        let path = scratch.join("file");
        fs::write(&path, "precious").unwrap();
        assert_eq!(make(&path, false, None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path).unwrap(), b"precious");
    }

    #[test]
    fn no_file_is_written_through_a_link() {
        let scratch = Scratch::new("link");
        let (file, link) = (scratch.join("file"), scratch.join("link"));
        symlink(&file, &link).unwrap();
        make(&link, true, None).unwrap_err();
        assert!(!file.exists(), "made through a link");
        fs::write(&file, "precious").unwrap();
        assert_eq!(make(&link, false, None).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(make(&link, true, None).unwrap_err().raw_os_error(), Some(libc::ELOOP));
        assert_eq!(fs::read(&file).unwrap(), b"precious");
    }

    /// Its reader would get what is written. Pipes of a shell are this process's own, whoever made them.
    #[test]
    fn a_fifo_of_another_user_gets_nothing() {
        let scratch = Scratch::new("fifo");
        let (fifo, link) = (scratch.join("fifo"), scratch.join("link"));
        mkfifoat(rustix::fs::CWD, &fifo, OWN.into()).unwrap();
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        symlink(&fifo, &link).unwrap();
        for path in [&fifo, &link] {
            make(path, false, None).unwrap();
        }
        if let Err(error) = std::os::unix::fs::chown(&fifo, Some(65_533), None) {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied);
            return; // only root may give a file to another user
        }
        drop(reader);
        for path in [&fifo, &link] {
            let mut both = File::options();
            both.read(true).write(true); // does not wait for a reader
            let opened = PrivateFile { force: true, permissions: None }.open(path, &mut both);
            assert_eq!(opened.unwrap_err().kind(), io::ErrorKind::PermissionDenied);
        }
        let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo).unwrap();
        let inherited = PathBuf::from(format!("/dev/fd/{}", reader.as_raw_fd()));
        make(&inherited, false, None).unwrap();
    }

    #[test]
    fn what_is_no_file_is_written_to_as_it_is() {
        let scratch = Scratch::new("device");
        let link = scratch.join("link");
        symlink("/dev/null", &link).unwrap();
        let before = mode(Path::new("/dev/null"));
        for path in [Path::new("/dev/null"), &link] {
            make(path, false, Some(0o640)).unwrap();
        }
        assert_eq!(mode(Path::new("/dev/null")), before);
    }
}
