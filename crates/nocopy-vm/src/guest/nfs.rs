//! A directory on its own file system, `nocopy serve nfs` at the left end, and the kernel's own client at the
//! right one.

use std::ffi::{CStr, CString};
use std::fs::{self, OpenOptions};
use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, Command, Stdio};

use nix::sys::quota::{Dqblk, QuotaType, QuotaValidFlags, quotactl_set};
use nocopy_lab::{End, Lab, Namespace};
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::Value;

use super::cards::modprobe;
use super::running::RunningProcess;
use crate::failure::Failure;

/// The server's port, always the same, so that the client finds a server that is started again.
const PORT: u16 = 2049;

/// The user that has no privileges anywhere.
pub(crate) const NOBODY: u32 = 65534;

/// The size of a memory disk. Only what is written to one takes memory.
const DISK_KIB: u32 = 96 << 10;
/// How many there are: each test that is killed may leave one in use.
const DISKS: u32 = 8;
/// More inodes than the disk would have by default.
const FILES_MAX: &str = "12000";

/// A directory on its own disk, and directories beside it for the server's state and for mounts.
pub(crate) struct NfsFixture {
    directory: tempfile::TempDir,
    disk: Option<PathBuf>,
}

impl NfsFixture {
    /// Makes the disk: ext4 in memory, so that reads come from the page cache of a file system with blocks,
    /// and files can be cold.
    pub(crate) fn new() -> Result<Self, Failure> {
        Self::on_disk(&[], c"")
    }

    fn on_disk(features: &[&str], options: &CStr) -> Result<Self, Failure> {
        modprobe(&["brd", &format!("rd_nr={DISKS}"), &format!("rd_size={DISK_KIB}")])?;
        modprobe(&["ext4"])?;
        let disk = free_disk()?;
        let mut make = Command::new("mkfs.ext4");
        output_of(make.args(["-q", "-F", "-b", "4096", "-N", FILES_MAX]).args(features).arg(&disk))?;
        let mut fixture = Self::new_directories()?;
        fixture.disk = Some(disk.clone());
        mount(&disk, fixture.export_path(), "ext4", MountFlags::empty(), options)?;
        fs::remove_dir(fixture.export_path().join("lost+found"))?;
        Ok(fixture)
    }

    /// As `new`, with the directory owned by the unprivileged user, so that its server can write there.
    pub(crate) fn writable() -> Result<Self, Failure> {
        Self::new()?.owned_by_unprivileged_user()
    }

    /// As `writable`, with a quota for that user.
    pub(crate) fn with_quota(kib_max: u64) -> Result<Self, Failure> {
        modprobe(&["quota_v2"])?;
        let fixture = Self::on_disk(&["-O", "quota", "-E", "quotatype=usrquota"], c"usrquota")?;
        let mut limit = Dqblk::default();
        limit.set_blocks_hard_limit(kib_max);
        quotactl_set(
            QuotaType::USRQUOTA,
            fixture.disk(),
            NOBODY.cast_signed(),
            &limit,
            QuotaValidFlags::QIF_BLIMITS,
        )?;
        fixture.owned_by_unprivileged_user()
    }

    /// On a file system in memory, with these options.
    pub(crate) fn in_memory(options: &str) -> Result<Self, Failure> {
        let fixture = Self::new_directories()?;
        let options = CString::new(options)?;
        mount("none", fixture.export_path(), "tmpfs", MountFlags::empty(), options.as_c_str())?;
        fixture.owned_by_unprivileged_user()
    }

    fn owned_by_unprivileged_user(self) -> Result<Self, Failure> {
        std::os::unix::fs::chown(self.export_path(), Some(NOBODY), Some(NOBODY))?;
        Ok(self)
    }

    /// The directories, with nothing mounted there.
    fn new_directories() -> Result<Self, Failure> {
        modprobe(&["nfsv3"])?;
        let fixture = Self { directory: tempfile::tempdir()?, disk: None };
        // The server runs as another user.
        fs::set_permissions(fixture.directory.path(), fs::Permissions::from_mode(0o755))?;
        for below in ["exported", "state", "mounted"] {
            fs::create_dir(fixture.directory.path().join(below))?;
        }
        std::os::unix::fs::chown(fixture.directory.path().join("state"), Some(NOBODY), Some(NOBODY))?;
        Ok(fixture)
    }

    /// A new directory beside the exported one.
    pub(crate) fn new_sibling_directory(&self, name: &str) -> Result<PathBuf, Failure> {
        let path = self.directory.path().join(name);
        fs::create_dir(&path)?;
        Ok(path)
    }

    /// The disk of the directory.
    pub(crate) fn disk(&self) -> &Path {
        self.disk.as_deref().expect("a fixture in memory has no disk")
    }

    pub(crate) fn export_path(&self) -> PathBuf {
        self.directory.path().join("exported")
    }

    pub(crate) fn mount_path(&self) -> PathBuf {
        self.directory.path().join("mounted")
    }

    /// Starts the server at the left end as a user without privileges, and returns once it answers.
    pub(crate) fn start_server(&self, lab: &Lab, extra_options: &[&str]) -> Result<RunningServer, Failure> {
        RunningServer::start(
            lab.left(),
            NOBODY,
            &self.export_path(),
            &self.directory.path().join("state"),
            extra_options,
        )
    }

    /// As `start_server`, as root.
    pub(crate) fn start_server_as_root(
        &self,
        lab: &Lab,
        extra_options: &[&str],
    ) -> Result<RunningServer, Failure> {
        RunningServer::start(
            lab.left(),
            0,
            &self.export_path(),
            &self.directory.path().join("state-of-root"),
            extra_options,
        )
    }

    /// Mounts the served directory at the right end.
    pub(crate) fn mount_export(&self, lab: &Lab) -> Result<NfsMount, Failure> {
        ServedExport::of_nocopy_server(lab).mount(lab.right().namespace(), self.mount_path(), "")
    }
}

impl Drop for NfsFixture {
    fn drop(&mut self) {
        let _ = unmount(self.export_path(), UnmountFlags::DETACH);
    }
}

/// A memory disk that nothing uses.
pub(crate) fn free_disk() -> Result<PathBuf, Failure> {
    let mut disks = (0..DISKS).map(|number| PathBuf::from(format!("/dev/ram{number}")));
    // Of a disk, O_EXCL means: only if it is neither mounted nor open in this way.
    let is_free = |disk: &PathBuf| {
        OpenOptions::new().read(true).custom_flags(OFlags::EXCL.bits().cast_signed()).open(disk).is_ok()
    };
    disks.find(is_free).ok_or_else(|| Failure(format!("all {DISKS} memory disks are in use")))
}

/// `nocopy serve nfs`, running; killed when dropped.
pub(crate) struct RunningServer {
    process: RunningProcess,
    /// No more is read from it, but it stays open: otherwise writing there would be an error for the server.
    _stderr: BufReader<ChildStderr>,
}

impl RunningServer {
    fn start(
        at: &End,
        user: u32,
        directory: &Path,
        state: &Path,
        extra_options: &[&str],
    ) -> Result<Self, Failure> {
        // The command, built beside this program.
        let program = std::env::current_exe()?.with_file_name("nocopy");
        let listen = SocketAddrV4::new(at.ipv4(), PORT).to_string();
        let mut command = Command::new(&program);
        command
            .args(["serve", "nfs", "--json", "--listen", &listen, "--state"])
            .arg(state)
            .arg(directory)
            .args(extra_options);
        command.uid(user).gid(user).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // It begins in the namespace of the thread that starts it.
        let mut process = at
            .namespace()
            .run(|| command.spawn())
            .map_err(|error| Failure(format!("{}: {error}: build the workspace", program.display())))?;
        let mut stderr = BufReader::new(process.stderr.take().expect("it is piped"));
        let mut line = String::new();
        while stderr.read_line(&mut line)? > 0 {
            if line.contains("nocopy: serving at ") {
                return Ok(Self { process: RunningProcess(process), _stderr: stderr });
            }
        }
        Err(Failure(format!("nocopy serve nfs did not serve ({}): {line}", process.wait()?)))
    }

    pub(crate) fn process_id(&self) -> u32 {
        self.process.0.id()
    }

    /// Kills it with SIGKILL, and waits until it has ended.
    pub(crate) fn kill(self) -> Result<(), Failure> {
        self.process.kill("the server")
    }

    /// Ends the server, and returns its summary.
    pub(crate) fn stop(self) -> Result<Value, Failure> {
        let (status, output) = self.process.interrupt()?;
        assert!(status.success(), "the server ended with {status}: {}", String::from_utf8_lossy(&output));
        Ok(serde_json::from_slice(&output)?)
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct ServedExport {
    pub(crate) address: Ipv4Addr,
    pub(crate) port: u16,
    pub(crate) mount_port: u16,
}

impl ServedExport {
    /// The export of `nocopy serve nfs` at the left end.
    pub(crate) fn of_nocopy_server(lab: &Lab) -> Self {
        Self { address: lab.left().ipv4(), port: PORT, mount_port: PORT }
    }

    /// By mount(2) itself, which needs no program and no other daemon. The client calls from that namespace.
    /// `extra_options` begins with a comma, or is nothing.
    pub(crate) fn mount(
        self,
        from: &Namespace,
        at: PathBuf,
        extra_options: &str,
    ) -> Result<NfsMount, Failure> {
        let Self { address, port, .. } = self;
        let done = self.try_mount(from, Path::new("/"), at, extra_options);
        done.map_err(|error| Failure(format!("mounting {address}:/ of port {port}: {error}")))
    }

    /// As `mount`, for any path.
    pub(crate) fn try_mount(
        self,
        from: &Namespace,
        path: &Path,
        at: PathBuf,
        extra_options: &str,
    ) -> Result<NfsMount, Errno> {
        let Self { address, port, mount_port } = self;
        let options = format!(
            "vers=3,proto=tcp,port={port},mountport={mount_port},mountproto=tcp,nolock,addr={address}{extra_options}"
        );
        let options = CString::new(options).map_err(|_| Errno::INVAL)?;
        let flags = MountFlags::NODEV | MountFlags::NOSUID;
        let served = format!("{address}:{}", path.display());
        from.run(|| mount(&served, &at, "nfs", flags, options.as_c_str()))?;
        Ok(NfsMount { at, is_mounted: true })
    }
}

/// Mounted by the kernel's client; unmounted when dropped.
pub(crate) struct NfsMount {
    at: PathBuf,
    is_mounted: bool,
}

impl NfsMount {
    pub(crate) fn path(&self, below: &str) -> PathBuf {
        self.at.join(below)
    }

    pub(crate) fn unmount(mut self, flags: UnmountFlags) -> Result<(), (Self, rustix::io::Errno)> {
        match unmount(&self.at, flags) {
            Ok(()) => {
                self.is_mounted = false;
                Ok(())
            }
            Err(error) => Err((self, error)),
        }
    }
}

impl Drop for NfsMount {
    fn drop(&mut self) {
        if self.is_mounted {
            let _ = unmount(&self.at, UnmountFlags::DETACH | UnmountFlags::FORCE);
        }
    }
}

/// The output of a program that must succeed.
pub(crate) fn output_of(command: &mut Command) -> Result<Vec<u8>, Failure> {
    let done =
        command.stdin(Stdio::null()).output().map_err(|error| Failure(format!("{command:?}: {error}")))?;
    if done.status.success() {
        return Ok(done.stdout);
    }
    let words = String::from_utf8_lossy(&done.stderr);
    Err(Failure(format!("{command:?}: {}; {}", done.status, words.trim())))
}
