//! Tests with file systems of their own, on loop devices: what outlives another device number, and what must
//! not.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use nocopy_lab::patience::wait_until;
use nocopy_nfs::export::{Caller, Export, ExportError, StateError};
use nocopy_nfs::wire::nfs3::{CreateMode, FileHandle, NewAttributes, SetTime, Status};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// How often a loop device is tried to be had again.
const ATTEMPTS: usize = 250;

/// A directory with disks, mounts and the state.
struct Scene {
    around: tempfile::TempDir,
}

/// A disk in a loop device. Drop frees the device.
struct LoopDevice(String);

/// Drop unmounts.
struct MountGuard(PathBuf);

impl Scene {
    /// `None`, and the test is skipped, without the right to mount, loop devices, or a program that makes the
    /// file system.
    fn new() -> Option<Self> {
        let scene = Self { around: tempfile::tempdir().unwrap() };
        fs::create_dir_all(scene.path("exported/a")).unwrap();
        fs::create_dir_all(scene.path("exported/b")).unwrap();
        let is_possible = scene
            .make_disk("probe", &[])
            .and_then(|()| scene.attach_disk("probe"))
            .is_some_and(|attached| scene.try_mount(&attached, "exported").is_some());
        if !is_possible {
            nocopy_lab::skip(&nocopy_lab::Missing::Device("loop devices and mkfs.ext4"));
            return None;
        }
        Some(scene)
    }

    fn path(&self, below: &str) -> PathBuf {
        self.around.path().join(below)
    }

    fn make_disk(&self, disk: &str, options: &[&str]) -> Option<()> {
        let disk = self.path(disk);
        fs::File::create(&disk).unwrap().set_len(16 << 20).unwrap();
        let made = Command::new("mkfs.ext4").args(["-q", "-F"]).args(options).arg(&disk).status();
        made.is_ok_and(|status| status.success()).then_some(())
    }

    fn attach_disk(&self, disk: &str) -> Option<LoopDevice> {
        let done = Command::new("losetup").args(["-f", "--show"]).arg(self.path(disk)).output().ok()?;
        let device = String::from_utf8(done.stdout).ok()?;
        done.status.success().then(|| LoopDevice(device.trim().into()))
    }

    fn try_mount(&self, attached: &LoopDevice, at: &str) -> Option<MountGuard> {
        let point = self.path(at);
        mount(attached.0.as_str(), &point, "ext4", MountFlags::empty(), None).ok()?;
        Some(MountGuard(point))
    }

    /// A disk at a place below.
    fn mount_disk(&self, disk: &str, at: &str) -> (MountGuard, LoopDevice) {
        let attached = self.attach_disk(disk).unwrap();
        (self.try_mount(&attached, at).unwrap(), attached)
    }

    fn open_export(&self) -> Export {
        let mut opened = None;
        // The processes that other tests start have this one's descriptors for a moment, and with them the
        // lock of the state.
        wait_until("the state to be free", || {
            opened = match Export::open(&self.path("exported"), Some(&self.path("state"))) {
                Err(ExportError::State(StateError::InUse { .. })) => None,
                opened => Some(opened.unwrap()),
            };
            opened.is_some()
        });
        opened.expect("it is open")
    }

    fn device_number(&self, below: &str) -> u64 {
        fs::metadata(self.path(below)).unwrap().dev()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

impl Drop for MountGuard {
    fn drop(&mut self) {
        let _ = unmount(&self.0, UnmountFlags::DETACH);
    }
}

fn saved_handle(export: &Export, path: &str) -> FileHandle {
    let handle = export.walk(&Caller::Server, Path::new(path)).unwrap();
    export.save_index().unwrap();
    handle
}

fn read_file(export: &Export, handle: &FileHandle) -> Result<String, Status> {
    let file = export.readable_file(&Caller::Server, handle)?;
    file.attributes()?;
    let mut bytes = [0; 64];
    let count = rustix::io::pread(&*file, &mut bytes, 0).unwrap();
    Ok(String::from_utf8(bytes[..count].into()).unwrap())
}

/// As after a reboot, of the exported file system itself, and of one mounted below it.
#[test]
fn handles_stay_valid_when_the_device_number_changes() {
    let Some(scene) = Scene::new() else { return };
    for at in ["exported", "exported/a"] {
        scene.make_disk("disk", &[]).unwrap();
        let first = scene.mount_disk("disk", at);
        fs::write(scene.path(at).join("file"), "content").unwrap();
        let name = if at == "exported" { "file" } else { "a/file" };
        let export = scene.open_export();
        let (known, root, device) =
            (saved_handle(&export, name), export.root_handle(), scene.device_number(at));
        let number = export.file_by_handle(&known).unwrap().attributes().unwrap().file_system;
        drop(export);
        let other = scene.attach_disk("disk").unwrap();
        drop(first);
        let second = scene.try_mount(&other, at).unwrap();
        assert_ne!(scene.device_number(at), device);
        let export = scene.open_export();
        assert_eq!(read_file(&export, &known).as_deref(), Ok("content"), "{at}");
        assert_eq!(export.root_handle(), root);
        assert_eq!(export.file_by_handle(&known).unwrap().attributes().unwrap().file_system, number);
        drop((export, second, other));
        fs::remove_dir_all(scene.path("state")).unwrap();
    }
}

/// The same disk with the number of another one that had it before.
#[test]
fn handles_are_stale_when_another_disk_has_the_device_number() {
    let Some(scene) = Scene::new() else { return };
    for disk in ["one", "other"] {
        scene.make_disk(disk, &["-E", "hash_seed=01234567-0123-4567-89ab-0123456789ab"]).unwrap();
    }
    let at = "exported";
    let (mounted, attached) = scene.mount_disk("one", at);
    fs::write(scene.path("exported/file"), "content").unwrap();
    let export = scene.open_export();
    let known = saved_handle(&export, "file");
    drop((export, mounted));
    let device = attached.0.clone();
    drop(attached);
    // The kernel frees it a moment later; then another program may take it.
    let mut attempts = (0..ATTEMPTS).map(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        Command::new("losetup").arg(&device).arg(scene.path("other")).output().unwrap().status.success()
    });
    if !attempts.any(|is_done| is_done) {
        return nocopy_lab::skip(&nocopy_lab::Missing::Device("a loop device that nobody else takes"));
    }
    let attached = LoopDevice(device);
    let mounted = scene.try_mount(&attached, at).unwrap();
    fs::write(scene.path("exported/file"), "other").unwrap();
    assert_eq!(read_file(&scene.open_export(), &known), Err(Status::Stale));
    drop((mounted, attached));
}

/// Both have the same UUID, inode numbers and times.
#[test]
fn snapshots_are_distinguished_from_their_origin() {
    let Some(scene) = Scene::new() else { return };
    scene.make_disk("disk", &[]).unwrap();
    let first = scene.mount_disk("disk", "exported/a");
    fs::write(scene.path("exported/a/file"), "original").unwrap();
    drop(first);
    fs::copy(scene.path("disk"), scene.path("snapshot")).unwrap();
    let both = (scene.mount_disk("disk", "exported/a"), scene.mount_disk("snapshot", "exported/b"));
    fs::write(scene.path("exported/b/file"), "snapshot").unwrap();
    let export = scene.open_export();
    let known = ["a/file", "b/file"].map(|name| saved_handle(&export, name));
    assert_ne!(known[0], known[1]);
    drop((export, both));
    // In the other order, so that each has the device number of the other, and the other place is seen first.
    let both = (scene.mount_disk("snapshot", "exported/b"), scene.mount_disk("disk", "exported/a"));
    let export = scene.open_export();
    saved_handle(&export, "b/file");
    assert_eq!(known.map(|known| read_file(&export, &known).unwrap()), ["original", "snapshot"]);
    drop((export, both));
    let alone = scene.mount_disk("snapshot", "exported/b");
    let export = scene.open_export();
    saved_handle(&export, "b/file");
    assert_eq!(read_file(&export, &known[0]), Err(Status::Stale));
    drop((export, alone));
}

/// A program of this host replaces what is mounted while the server runs.
#[test]
fn handles_are_stale_while_another_disk_is_mounted() {
    let Some(scene) = Scene::new() else { return };
    scene.make_disk("disk", &[]).unwrap();
    scene.make_disk("other", &[]).unwrap();
    let export = scene.open_export();
    let first = scene.mount_disk("disk", "exported/a");
    fs::write(scene.path("exported/a/file"), "content").unwrap();
    let known = saved_handle(&export, "a/file");
    drop(first);
    export.run_maintenance();
    export.run_maintenance();
    let second = scene.mount_disk("other", "exported/a");
    fs::write(scene.path("exported/a/file"), "other").unwrap();
    assert_eq!(read_file(&export, &known), Err(Status::Stale));
    let other = saved_handle(&export, "a/file");
    assert_eq!(read_file(&export, &other).as_deref(), Ok("other"));
    drop(second);
    export.run_maintenance();
    export.run_maintenance();
    let again = scene.mount_disk("disk", "exported/a");
    assert_eq!(
        (read_file(&export, &known).as_deref(), read_file(&export, &other)),
        (Ok("content"), Err(Status::Stale))
    );
    drop((export, again));
}

#[test]
fn handles_of_tmpfs_expire_at_unmount() {
    let Some(scene) = Scene::new() else { return };
    let point = scene.path("exported");
    let mount = || {
        mount("none", &point, "tmpfs", MountFlags::empty(), None).unwrap();
        fs::write(point.join("file"), "content").unwrap();
        MountGuard(point.clone())
    };
    let mounted = mount();
    let export = scene.open_export();
    let known = saved_handle(&export, "file");
    assert!(export.handle_expiry_text().is_some());
    drop(export);
    assert_eq!(read_file(&scene.open_export(), &known).as_deref(), Ok("content"), "the next server");
    drop(mounted);
    let mounted = mount();
    assert_eq!(read_file(&scene.open_export(), &known), Err(Status::Stale));
    drop(mounted);
}

/// An overlay has a UUID since Linux 6.6, which is stored beside the upper layer; without one it is known
/// until the machine is restarted.
#[test]
fn overlay_handles_survive_a_remount_only_with_a_uuid() {
    let Some(scene) = Scene::new() else { return };
    scene.make_disk("disk", &[]).unwrap();
    for place in ["layers", "other"] {
        fs::create_dir(scene.path(place)).unwrap();
    }
    let layers = scene.mount_disk("disk", "layers");
    for place in ["lower", "upper", "work"] {
        fs::create_dir(scene.path("layers").join(place)).unwrap();
    }
    fs::write(scene.path("layers/lower/file"), "content").unwrap();
    let mount_overlay = || {
        let at = |place| scene.path("layers").join(place).display().to_string();
        let [lower, upper, work] = ["lower", "upper", "work"].map(at);
        let options = format!("lowerdir={lower},upperdir={upper},workdir={work}");
        let options = std::ffi::CString::new(options).unwrap();
        let point = scene.path("exported");
        mount("overlay", &point, "overlay", MountFlags::empty(), &*options).ok()?;
        Some(MountGuard(point))
    };
    let Some(overlay) = mount_overlay() else {
        return nocopy_lab::skip(&nocopy_lab::Missing::Kernel("overlayfs"));
    };
    let export = scene.open_export();
    let (known, device, stays) = (
        saved_handle(&export, "file"),
        scene.device_number("exported"),
        export.handle_expiry_text().is_none(),
    );
    drop((export, overlay));
    // Something else has its device number.
    let other = scene.path("other");
    mount("none", &other, "tmpfs", MountFlags::empty(), None).unwrap();
    let other = MountGuard(other);
    let overlay = mount_overlay().unwrap();
    let export = scene.open_export();
    let expected = if stays { Ok("content".to_owned()) } else { Err(Status::Stale) };
    assert!(read_file(&export, &known) == expected || !stays && scene.device_number("exported") == device);
    drop((export, overlay, other, layers));
}

/// As ext3, with times of whole seconds.
#[test]
fn exclusive_creates_are_recognised_with_whole_second_times() {
    let Some(scene) = Scene::new() else { return };
    scene.make_disk("disk", &["-I", "128"]).unwrap();
    let mounted = scene.mount_disk("disk", "exported");
    let how = CreateMode::Exclusive([0x81, 2, 3, 4, 5, 6, 7, 8]);
    let create = |export: &Export, how: &CreateMode| {
        let root = export.file_by_handle(&export.root_handle()).unwrap();
        export.create(&Caller::Server, &root, b"file", how).0.map(|found| found.handle)
    };
    let export = scene.open_export();
    let made = create(&export, &how).unwrap();
    assert_eq!(create(&export, &how), Ok(made));
    export.save_index().unwrap();
    drop(export);
    let export = scene.open_export();
    assert_eq!(create(&export, &how), Ok(made), "the next server");
    assert_eq!(create(&export, &CreateMode::Exclusive([1; 8])), Err(Status::Exists));
    let file = export.file_by_handle(&made).unwrap();
    let new = NewAttributes { accessed: SetTime::Now, modified: SetTime::Now, ..NewAttributes::NONE };
    export.set_attributes(&Caller::Server, &file, &new, None).0.unwrap();
    assert_eq!(create(&export, &how), Err(Status::Exists), "the client has its file");
    drop((file, export, mounted));
}

#[test]
fn case_insensitive_directories_are_reported() {
    let Some(scene) = Scene::new() else { return };
    let missing = || nocopy_lab::skip(&nocopy_lab::Missing::Kernel("casefold of ext4 (CONFIG_UNICODE)"));
    let Some(attached) =
        scene.make_disk("disk", &["-O", "casefold"]).and_then(|()| scene.attach_disk("disk"))
    else {
        return missing();
    };
    let Some(mounted) = scene.try_mount(&attached, "exported") else { return missing() };
    fs::create_dir(scene.path("exported/ignores")).unwrap();
    let set = Command::new("chattr").arg("+F").arg(scene.path("exported/ignores")).status();
    if !set.is_ok_and(|status| status.success()) {
        return missing();
    }
    fs::write(scene.path("exported/ignores/File"), "").unwrap();
    let export = scene.open_export();
    for (name, expected) in [("", false), ("ignores", true), ("ignores/file", true)] {
        let file = export.file_by_handle(&saved_handle(&export, name)).unwrap();
        let limits = export.limits(&file).unwrap();
        assert_eq!((limits.ignores_case, limits.preserves_case), (expected, true), "{name}");
        drop(file);
    }
    drop((export, mounted, attached));
}
