//! Ganesha, from Debian: the common NFS server in user space. It registers with an rpcbind, which is started
//! beside it.
//!
//! Both keep files below `/run` and `/var/lib/nfs`. They get their own, in memory, in a mount namespace of
//! this process, so that a server that runs on this machine is not disturbed, and nothing is left behind.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::started::is_listening;
use nix::sched::{CloneFlags, unshare};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_change};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::child::ScopedChild;
use crate::lines::PATIENCE;

const GANESHA: &str = "ganesha.nfsd";
const RPCBIND: &str = "rpcbind";

/// Serves files from a directory; in a separate package.
const MODULE: &str = "libfsalvfs.so";
const MODULE_DIRECTORIES: [&str; 3] =
    ["/usr/lib/ganesha", "/usr/lib64/ganesha", "/usr/lib/x86_64-linux-gnu/ganesha"];

pub(crate) const PORT: u16 = 20_490;
pub(crate) const MOUNT_PORT: u16 = 20_491;

/// More than the files of any workload.
const DESCRIPTORS: u64 = 16_384;

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// Why it cannot be compared with here, if so.
pub(crate) fn missing_requirement() -> Option<&'static str> {
    let can_start = |program: &str| {
        let output = Command::new(program).arg("-h").stdout(Stdio::null()).stderr(Stdio::null()).status();
        // Asked for help, programs end with several codes; those whose libraries are missing with 127.
        output.is_ok_and(|status| status.code().is_some_and(|code| code < 126))
    };
    let has_module = MODULE_DIRECTORIES.iter().any(|directory| Path::new(directory).join(MODULE).exists());
    if !(has_module && can_start(GANESHA) && can_start(RPCBIND)) {
        return Some(
            "not installed: 'apt install nfs-ganesha nfs-ganesha-vfs rpcbind' or what your system calls them",
        );
    }
    (!descriptor_limit_suffices()).then_some("it may not open 16,384 files: raise 'ulimit -Hn'")
}

/// It keeps files open; with too few descriptors it is slow, and answers EIO.
fn descriptor_limit_suffices() -> bool {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { maximum: Some(DESCRIPTORS), ..limit };
    limit.maximum.is_none_or(|most| most >= DESCRIPTORS) || setrlimit(Resource::Nofile, raised).is_ok()
}

/// Both programs; killed when dropped.
#[derive(Debug)]
pub(super) struct RunningGanesha {
    programs: Vec<ScopedChild>,
}

impl RunningGanesha {
    /// Starts them, and waits until files are served.
    pub(super) fn start(directory: &Path, scratch: &Path, is_writable: bool) -> io::Result<Self> {
        mount_private_state()?;
        let limit = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum })?;
        let [configuration, log] = ["ganesha.conf", "ganesha.log"].map(|name| scratch.join(name));
        fs::write(&configuration, self::ganesha_configuration(directory, is_writable))?;
        let mut running = Self { programs: Vec::new() };
        // In the foreground, without saved state.
        running.start_program(Command::new(RPCBIND).args(["-w", "-f"]))?;
        running.wait_until_ready(|| Ok(Path::new("/run/rpcbind.sock").exists()), &log)?;
        let mut ganesha = Command::new(GANESHA);
        ganesha.arg("-F").arg("-f").arg(&configuration).arg("-L").arg(&log).args(["-p", "/run/ganesha.pid"]);
        running.start_program(&mut ganesha)?;
        running.wait_until_ready(
            || Ok([PORT, MOUNT_PORT].iter().all(|port| is_listening("self", *port))),
            &log,
        )?;
        Ok(running)
    }

    pub(super) fn process_id(&self) -> u32 {
        self.programs.last().map_or(0, |program| program.id())
    }

    fn start_program(&mut self, command: &mut Command) -> io::Result<()> {
        let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.programs.push(ScopedChild(command.spawn()?));
        Ok(())
    }

    fn wait_until_ready(&mut self, is_there: impl Fn() -> io::Result<bool>, log: &Path) -> io::Result<()> {
        let give_up = Instant::now() + PATIENCE;
        while !is_there()? {
            let mut has_ended = false;
            for program in &mut self.programs {
                has_ended |= program.try_wait()?.is_some();
            }
            if has_ended || Instant::now() > give_up {
                let output = fs::read_to_string(log).unwrap_or_default();
                let last = output.lines().next_back().unwrap_or_default();
                return Err(io::Error::other(format!("{GANESHA} does not serve, and logged '{last}'")));
            }
            sleep(POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for RunningGanesha {
    fn drop(&mut self) {
        while self.programs.pop().is_some() {} // Ganesha before rpcbind
    }
}

/// Lets the programs have `/run` and `/var/lib/nfs` for themselves.
fn mount_private_state() -> io::Result<()> {
    unshare(CloneFlags::CLONE_NEWNS)?;
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    mount("tmpfs", "/run", "tmpfs", flags, None)?;
    fs::create_dir("/run/ganesha")?;
    if Path::new("/var/lib/nfs").is_dir() {
        mount("tmpfs", "/var/lib/nfs", "tmpfs", flags, None)?;
        fs::create_dir("/var/lib/nfs/ganesha")?;
    }
    Ok(())
}

fn ganesha_configuration(directory: &Path, is_writable: bool) -> String {
    let (directory, access) = (directory.display(), if is_writable { "RW" } else { "RO" });
    format!(
        "NFS_CORE_PARAM {{ Protocols = 3; NFS_Port = {PORT}; MNT_Port = {MOUNT_PORT}; Enable_NLM = false; Enable_RQUOTA = false; }}\n\
         EXPORT {{ Export_Id = 1; Path = \"{directory}\"; Pseudo = /bench; Access_Type = {access}; Squash = None; SecType = sys;\n\
         \x20 Protocols = 3; Transports = TCP; FSAL {{ Name = VFS; }} }}\n\
         LOG {{ Default_Log_Level = WARN; }}\n"
    )
}
