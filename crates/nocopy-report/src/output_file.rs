//! Files that a command writes: none is overwritten unasked, and none is written through a symbolic link.

use std::fs::{File, Metadata, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{Stat, fstat};

/// Permissions of a file that only its owner can read.
const OWN: u32 = 0o600;

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
/// anything else, such as those in `/dev/fd`, are followed, because nothing can be overwritten.
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
        _ if !metadata.is_file() => {}
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

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
