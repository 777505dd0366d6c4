use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command};

use rustix::fs::{OFlags, StatVfsMountFlags, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde_json::json;

use crate::guest::Guest;
use crate::guest::filesystem::{errno_of_result, random_pattern, run_as_unprivileged_user};
use crate::guest::nfs::{NOBODY, NfsFixture, NfsMount, RunningServer, ServedExport, free_disk, output_of};
use crate::guest::patience::wait_until;
use crate::registry::{Failure, Kernel, Test, Topology};

pub(crate) const TEST: Test = Test {
    proves: "what a client of `nocopy serve nfs --writable` was told to be on the disk is on an image of the disk taken in that moment, and \
             what it wrote otherwise arrives also when the server is killed and started again; a full disk, a quota, a disk that became \
             read-only and a directory that was removed are told as such",
    on: &[Topology::Virtio],
    kernels: &[Kernel::Newest],
    run,
};

const BYTES: usize = 1 << 20;
const PIECE_BYTES: usize = BYTES / 16;

fn run(guest: &Guest) -> Result<(), Failure> {
    let shown = |what: &str| guest.record_measurement(&json!({ "shown": what }));
    check_committed_data_on_disk(guest)?;
    shown("what is committed is on the disk");
    check_killed_server(guest)?;
    shown("what is written survives that the server is killed");
    check_full_disk(guest, &NfsFixture::in_memory("size=1m")?, Errno::NOSPC)?;
    shown("a full disk is told");
    check_full_disk(guest, &NfsFixture::with_quota(1 << 10)?, Errno::DQUOT)?;
    shown("a quota is told");
    check_removed_directory(guest)?;
    shown("a removed directory is told");
    // The last one: it makes every disk of the machine read-only.
    check_read_only_disk(guest)?;
    shown("a disk that became read-only is told");
    Ok(())
}

fn serve_and_mount(guest: &Guest, fixture: &NfsFixture) -> Result<(RunningServer, NfsMount), Failure> {
    let server = fixture.start_server(guest.lab(), &["--writable"])?;
    let mounted = ServedExport::of_nocopy_server(guest.lab()).mount(
        guest.lab().left().namespace(),
        fixture.mount_path(),
        "",
    )?;
    Ok((server, mounted))
}

/// Runs as a user without privileges, who is mapped to nobody.
fn run_unprivileged<T: Send>(run: impl FnOnce() -> Result<T, Failure> + Send) -> Result<T, Failure> {
    run_as_unprivileged_user(run).map_err(Failure)?
}

/// Takes an image of the disk right after a commit was answered.
fn check_committed_data_on_disk(guest: &Guest) -> Result<(), Failure> {
    let fixture = NfsFixture::writable()?;
    let (server, mounted) = serve_and_mount(guest, &fixture)?;
    let (committed, stable) = (random_pattern(1, BYTES), random_pattern(2, BYTES));
    let open = run_unprivileged(|| {
        let file = File::create_new(mounted.path("committed"))?;
        file.write_all_at(&committed, 0)?;
        file.sync_all()?;
        // Each write is FILE_SYNC.
        let mut options = OpenOptions::new();
        let options = options.write(true).create_new(true).custom_flags(OFlags::SYNC.bits().cast_signed());
        let mut file_sync = options.open(mounted.path("stable"))?;
        stable.chunks(BYTES / 4).try_for_each(|piece| file_sync.write_all(piece))?;
        change_names(&mounted)?;
        Ok([file, file_sync])
    })?;
    // The image lacks data that were not synchronised, which shows that it would lack the others, too.
    let lost = fixture.export_path().join("lost");
    fs::write(&lost, &committed)?;
    let copy = fixture.new_sibling_directory("copy")?;
    let (disk, spare) = (fixture.disk().display().to_string(), free_disk()?.display().to_string());
    output_of(Command::new("dd").args([&format!("if={disk}"), &format!("of={spare}")]).args([
        "bs=1M",
        "iflag=direct",
        "oflag=direct",
        "status=none",
    ]))?;
    mount(spare.as_str(), &copy, "ext4", MountFlags::empty(), None)?;
    let found = ["committed", "stable"].map(|name| fs::read(copy.join(name)).unwrap_or_default());
    let of_lost = fs::metadata(copy.join("lost")).map_or(0, |about| about.len());
    let names = list_names(&copy);
    unmount(&copy, UnmountFlags::empty())?;
    drop(open);
    assert!(found[0] == committed, "committed: {} B of {BYTES} are on the disk", found[0].len());
    assert!(found[1] == stable, "written by O_SYNC: {} B of {BYTES} are on the disk", found[1].len());
    assert_eq!(names?, NAMES.map(str::to_owned), "names and permissions on the disk");
    assert!(of_lost < BYTES as u64, "the image has what was not synchronised: it shows nothing");
    unmount_and_stop(mounted, server)
}

/// The names after [`change_names`], with permissions, and the files written before.
const NAMES: [&str; 5] = ["committed 644", "directory 750", "link 777", "renamed 640", "stable 644"];

/// Changes to names, not to contents, after everything was synchronised.
fn change_names(mounted: &NfsMount) -> io::Result<()> {
    for name in ["removed", "name"] {
        File::create_new(mounted.path(name))?;
    }
    fs::create_dir(mounted.path("directory"))?;
    symlink("nowhere", mounted.path("link"))?;
    fs::remove_file(mounted.path("removed"))?;
    fs::rename(mounted.path("name"), mounted.path("renamed"))?;
    fs::set_permissions(mounted.path("directory"), Permissions::from_mode(0o750))?;
    fs::set_permissions(mounted.path("renamed"), Permissions::from_mode(0o640))
}

fn list_names(directory: &Path) -> Result<Vec<String>, Failure> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        names.push(format!("{} {:o}", entry.file_name().display(), entry.metadata()?.mode() & 0o7777));
    }
    names.sort();
    // It was not synchronised, so its name may be there or not.
    names.retain(|name| !name.starts_with("lost "));
    Ok(names)
}

fn unmount_and_stop(mounted: NfsMount, server: RunningServer) -> Result<(), Failure> {
    mounted.unmount(UnmountFlags::empty()).map_err(|(_, error)| error)?;
    let summary = server.stop()?;
    assert_eq!(
        (summary["malformed"].as_u64(), summary["index_write_errors"].as_u64()),
        (Some(0), Some(0)),
        "{summary}"
    );
    Ok(())
}

/// Kills the server again and again while a client writes, renames and makes files.
fn check_killed_server(guest: &Guest) -> Result<(), Failure> {
    let fixture = NfsFixture::writable()?;
    let source = fixture.new_sibling_directory("source")?.join("bytes");
    let (mut server, mounted) = serve_and_mount(guest, &fixture)?;
    let rounds = if guest.is_soak() { 40 } else { 4 };
    for round in 0..rounds {
        let expected = random_pattern(round, BYTES);
        fs::write(&source, &expected)?;
        let mut writer = RunningWriter::start(&mounted, &source, round)?;
        server = kill_and_restart_server(guest, &fixture, server, round)?;
        writer.wait_for_success()?;
        let there = fixture.export_path().join(format!("file {round}"));
        assert!(fs::read(&there)? == expected, "round {round}: not what was written");
        fs::remove_file(there)?;
    }
    unmount_and_stop(mounted, server)
}

/// Writes piece by piece. A call that a new server gets a second time may find it done.
const SLOWLY: &str = "
    set -C
    : > \"new $ROUND\"
    for i in 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do
        dd if=\"$SOURCE\" of=\"new $ROUND\" bs=$BYTES count=1 skip=$i seek=$i conv=notrunc,fsync status=none
        mkdir directory || test -d directory
        rmdir directory || test ! -e directory
    done
    mv \"new $ROUND\" \"file $ROUND\" || test -e \"file $ROUND\"
";

/// What writes, as a process: the one that starts the next server must not have a file of this one open, or
/// it would wait for the server when it closes that.
struct RunningWriter(Child);

impl RunningWriter {
    fn start(mounted: &NfsMount, source: &Path, round: u64) -> Result<Self, Failure> {
        let mut command = Command::new("sh");
        command.args(["-eu", "-c", SLOWLY]).current_dir(mounted.path("")).uid(NOBODY).gid(NOBODY);
        command.env("SOURCE", source).env("ROUND", round.to_string()).env("BYTES", PIECE_BYTES.to_string());
        Ok(Self(command.spawn()?))
    }

    fn wait_for_success(&mut self) -> Result<(), Failure> {
        let status = self.0.wait()?;
        if status.success() { Ok(()) } else { Err(Failure(format!("what writes: {status}"))) }
    }
}

impl Drop for RunningWriter {
    fn drop(&mut self) {
        let _ = self.0.kill();
    }
}

/// Kills the server when a part of the file of this round has arrived, and starts another one.
fn kill_and_restart_server(
    guest: &Guest,
    fixture: &NfsFixture,
    server: RunningServer,
    round: u64,
) -> Result<RunningServer, Failure> {
    let [new, done] = ["new", "file"].map(|name| fixture.export_path().join(format!("{name} {round}")));
    let at_least = (1 + round % 12) * PIECE_BYTES as u64;
    wait_until("a part is written", || {
        Ok(done.exists() || fs::metadata(&new).is_ok_and(|about| about.size() >= at_least))
    })?;
    server.kill()?;
    fixture.start_server(guest.lab(), &["--writable"])
}

/// Writes until the disk is full, and again when there is room.
fn check_full_disk(guest: &Guest, fixture: &NfsFixture, wanted: Errno) -> Result<(), Failure> {
    let (server, mounted) = serve_and_mount(guest, fixture)?;
    run_unprivileged(|| {
        let kept = &random_pattern(1, BYTES)[..300_000];
        let mut file = File::create_new(mounted.path("kept"))?;
        file.write_all(kept)?;
        file.sync_all()?;
        let refused = fill_disk(&mounted.path("too long"));
        assert_eq!(errno_of_result(refused), Some(wanted));
        assert_eq!(fs::read(mounted.path("kept"))?, kept, "what was written before");
        fs::remove_file(mounted.path("too long"))?;
        let more = File::create_new(mounted.path("more"))?;
        more.write_all_at(kept, 0)?;
        more.sync_all()?;
        assert_eq!(
            fs::read(fixture.export_path().join("more"))?,
            kept,
            "what was written when there was room again"
        );
        Ok(())
    })?;
    unmount_and_stop(mounted, server)
}

/// The client gets the error at the latest by fsync.
fn fill_disk(path: &Path) -> io::Result<()> {
    let file = File::create_new(path)?;
    file.write_all_at(&[7; 2 * BYTES], 0)?;
    file.sync_all()
}

/// Files in a directory that is removed at the server, while a client has it open, are stale; everything else
/// goes on.
fn check_removed_directory(guest: &Guest) -> Result<(), Failure> {
    let fixture = NfsFixture::writable()?;
    let (server, mounted) = serve_and_mount(guest, &fixture)?;
    run_unprivileged(|| {
        fs::create_dir(mounted.path("directory"))?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(mounted.path("directory/file"))?;
        file.write_all_at(b"before", 0)?;
        file.sync_all()?;
        let directory = File::open(mounted.path("directory"))?;
        fs::remove_dir_all(fixture.export_path().join("directory"))?;
        let written = file.write_all_at(b"after", 0).and_then(|()| file.sync_all());
        assert_eq!(errno_of_result(written), Some(Errno::STALE), "a write to what was removed");
        let made = rustix::fs::mkdirat(&directory, "new", 0o700.into());
        assert!(matches!(made, Err(Errno::STALE | Errno::NOENT)), "made in what was removed: {made:?}");
        fs::write(mounted.path("beside"), "goes on")?;
        assert_eq!(fs::read_to_string(fixture.export_path().join("beside"))?, "goes on");
        Ok(())
    })?;
    unmount_and_stop(mounted, server)
}

/// The disk becomes read-only under a server that has a file of it open to be written, as after an error of
/// the disk.
fn check_read_only_disk(guest: &Guest) -> Result<(), Failure> {
    let fixture = NfsFixture::writable()?;
    let (server, mounted) = serve_and_mount(guest, &fixture)?;
    let file = run_unprivileged(|| {
        let file = File::create_new(mounted.path("file"))?;
        file.write_all_at(b"before", 0)?;
        file.sync_all()?;
        Ok(file)
    })?;
    fs::write("/proc/sysrq-trigger", "u")?;
    wait_until("the disk is read-only", || {
        Ok(statvfs(fixture.export_path())?.f_flag.contains(StatVfsMountFlags::RDONLY))
    })?;
    run_unprivileged(|| {
        let tries = [
            File::create_new(mounted.path("new")).map(drop),
            fs::create_dir(mounted.path("directory")),
            fs::remove_file(mounted.path("file")),
            fs::rename(mounted.path("file"), mounted.path("other")),
        ];
        assert_eq!(tries.map(errno_of_result), [Some(Errno::ROFS); 4]);
        assert_eq!(fs::read_to_string(mounted.path("file"))?, "before");
        Ok(())
    })?;
    drop(file);
    unmount_and_stop(mounted, server)
}
