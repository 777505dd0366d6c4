use std::fs::{self, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::io::Errno;
use rustix::mount::UnmountFlags;

use crate::guest::Guest;
use crate::guest::filesystem::run_as_user;
use crate::guest::nfs::{NOBODY, NfsFixture, NfsMount, ServedExport};
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "a server that is root executes the calls of Debian's kernel as the users of the client, root as nobody, MOUNT too; mounted with \
             `noresvport`, so that calls come from ports of any program, it executes all of them as one user without rights, unless \
             `--insecure` is given",
    on: &[Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const OWNER: u32 = 1001;
/// The user of calls from ports that any program can use.
const UNTRUSTED: u32 = 65_533;

const ANY_PORT: &str = ",noresvport";

fn run(guest: &Guest) -> Result<(), Failure> {
    let fixture = NfsFixture::new()?;
    make_files(&fixture.export_path())?;
    let server = fixture.start_server_as_root(guest.lab(), &["--writable"])?;
    let mounted = try_mount_from_left(guest, &fixture, "/", "")?;
    assert_eq!(read_as(&mounted, OWNER, "private/file")?, Ok(()));
    assert_eq!(read_as(&mounted, OWNER + 1, "private/file")?, Err(Errno::ACCESS));
    assert_eq!(read_as(&mounted, 0, "private/file")?, Err(Errno::ACCESS));
    assert_eq!(read_as(&mounted, 0, "of nobody")?, Ok(()));
    assert_eq!(owner_of_file_made_by(&fixture, &mounted, OWNER)?, OWNER);
    assert_eq!(owner_of_file_made_by(&fixture, &mounted, 0)?, NOBODY);
    unmount(mounted)?;

    // Mounted by root, which is nobody there.
    let private = fixture.export_path().join("private");
    let below = private.join("below").display().to_string();
    assert_eq!(try_mount_from_left(guest, &fixture, &below, "").map(drop), Err(Errno::ACCESS));
    let mounted = try_mount_from_left(guest, &fixture, &private.display().to_string(), "")?;
    assert_eq!(read_as(&mounted, OWNER, "file")?, Ok(()));
    assert_eq!(read_as(&mounted, 0, "file")?, Err(Errno::ACCESS));
    unmount(mounted)?;

    let mounted = try_mount_from_left(guest, &fixture, "/", ANY_PORT)?;
    for (user, name) in
        [(OWNER, "private/file"), (0, "private/file"), (0, "of nobody"), (NOBODY, "of nobody")]
    {
        assert_eq!(read_as(&mounted, user, name)?, Err(Errno::ACCESS), "{name} by {user}");
    }
    for user in [OWNER, NOBODY, 0] {
        assert_eq!(owner_of_file_made_by(&fixture, &mounted, user)?, UNTRUSTED);
    }
    unmount(mounted)?;
    server.stop()?;

    let server = fixture.start_server_as_root(guest.lab(), &["--writable", "--insecure"])?;
    let mounted = try_mount_from_left(guest, &fixture, "/", ANY_PORT)?;
    assert_eq!(read_as(&mounted, OWNER, "private/file")?, Ok(()));
    assert_eq!(read_as(&mounted, 0, "private/file")?, Err(Errno::ACCESS));
    unmount(mounted)?;
    server.stop()?;
    Ok(())
}

fn make_files(directory: &Path) -> Result<(), Failure> {
    let own = |name: &str, owner, mode| {
        let path = directory.join(name);
        chown(&path, Some(owner), Some(owner))?;
        fs::set_permissions(&path, Permissions::from_mode(mode))
    };
    fs::create_dir_all(directory.join("private/below"))?;
    fs::create_dir(directory.join("open"))?;
    fs::write(directory.join("private/file"), "content")?;
    fs::write(directory.join("of nobody"), "content")?;
    own("private/file", OWNER, 0o600)?;
    own("private", OWNER, 0o700)?;
    own("of nobody", NOBODY, 0o600)?;
    own("open", 0, 0o777)?;
    Ok(())
}

fn try_mount_from_left(
    guest: &Guest,
    fixture: &NfsFixture,
    path: &str,
    more: &str,
) -> Result<NfsMount, Errno> {
    let from = guest.lab().left().namespace();
    ServedExport::of_nocopy_server(guest.lab()).try_mount(from, Path::new(path), fixture.mount_path(), more)
}

/// Unmounted, so that the next one has its own connection.
fn unmount(mounted: NfsMount) -> Result<(), Failure> {
    Ok(mounted.unmount(UnmountFlags::empty()).map_err(|(_, error)| error)?)
}

fn run_as<T: Send>(
    user: u32,
    work: impl FnOnce() -> io::Result<T> + Send,
) -> Result<Result<T, Errno>, Failure> {
    let done = run_as_user(user, work).map_err(Failure)?;
    Ok(done.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)))
}

fn read_as(mounted: &NfsMount, user: u32, name: &str) -> Result<Result<(), Errno>, Failure> {
    run_as(user, || fs::read(mounted.path(name)).map(|content| assert_eq!(content, b"content")))
}

/// The owner of a file that this user makes, in the directory itself.
fn owner_of_file_made_by(fixture: &NfsFixture, mounted: &NfsMount, user: u32) -> Result<u32, Failure> {
    let path = Path::new("open").join(format!("by {user}"));
    let name = path.display().to_string();
    run_as(user, || File::create_new(mounted.path(&name)).map(drop))??;
    let made = fixture.export_path().join(&path);
    let owner = fs::metadata(&made)?.uid();
    fs::remove_file(made)?;
    Ok(owner)
}
