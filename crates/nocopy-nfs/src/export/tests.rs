use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use super::*;
use crate::wire::nfs3::FileHandle;
use crate::wire::nfs3::{CreateMode, NewAttributes, NewNode, Stability};

/// An exported directory, one for the state beside it, and a file that clients must not see.
pub(super) struct Scene {
    around: tempfile::TempDir,
}

impl Scene {
    pub(super) fn new() -> Self {
        let around = tempfile::tempdir().unwrap();
        fs::create_dir_all(around.path().join("exported/below/deeper")).unwrap();
        fs::write(around.path().join("exported/below/file"), b"content").unwrap();
        fs::write(around.path().join("secret"), b"not for clients").unwrap();
        Self { around }
    }

    pub(super) fn path(&self, below: &str) -> PathBuf {
        self.around.path().join(below)
    }

    pub(super) fn open_export(&self) -> Export {
        Export::open(&self.path("exported"), Some(&self.path("state"))).unwrap()
    }
}

fn error_status<T: std::fmt::Debug>(result: Result<T, Status>) -> Status {
    result.unwrap_err()
}

fn read_file(export: &Export, handle: &FileHandle) -> Result<Vec<u8>, Status> {
    let file = export.readable_file(&Caller::Server, handle)?;
    file.attributes()?;
    let mut bytes = vec![0; 64];
    let count = rustix::io::pread(&*file, &mut bytes, 0).unwrap();
    bytes.truncate(count);
    Ok(bytes)
}

fn list_names(export: &Export, handle: &FileHandle, cookie: u64) -> Vec<ListingEntry> {
    let directory = export.file_by_handle(handle).unwrap();
    export.list(&Caller::Server, &directory, cookie).unwrap().entries_after(cookie).to_vec()
}

#[test]
fn handles_stay_valid_for_the_next_server_with_the_same_key() {
    let scene = Scene::new();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    export.save_index().unwrap();
    assert!(matches!(
        Export::open(&scene.path("exported"), Some(&scene.path("state"))),
        Err(ExportError::State(StateError::InUse { .. }))
    ));
    drop(export);
    let next = scene.open_export();
    assert_eq!(read_file(&next, &handle).unwrap(), b"content");
    // Another key: the same file has another handle.
    let other = Export::open(&scene.path("exported"), Some(&scene.path("other"))).unwrap();
    assert_eq!(error_status(read_file(&other, &handle)), Status::BadHandle);
}

#[test]
fn a_state_directory_inside_the_export_is_refused() {
    let scene = Scene::new();
    for state in ["exported", "exported/below/state"] {
        let refused = Export::open(&scene.path("exported"), Some(&scene.path(state)));
        assert!(matches!(refused, Err(ExportError::State(StateError::Exported { .. }))));
    }
}

#[test]
fn lookup_refuses_path_names_and_follows_no_links() {
    let scene = Scene::new();
    symlink("../../secret", scene.path("exported/below/link")).unwrap();
    symlink("..", scene.path("exported/up")).unwrap();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    for name in [&b"../secret"[..], b"below/file", b"/", b"a\0b", b""] {
        assert_eq!(error_status(export.lookup(&Caller::Server, &root, name)), Status::Invalid);
    }
    for bytes in [256, 5000, 60_000] {
        let name = vec![b'a'; bytes];
        assert_eq!(
            error_status(export.lookup(&Caller::Server, &root, &name)),
            Status::NameTooLong,
            "{bytes}"
        );
    }
    assert_eq!(error_status(export.lookup(&Caller::Server, &root, b"absent")), Status::NoEntry);
    assert_eq!(export.lookup(&Caller::Server, &root, b"..").unwrap().handle, export.root_handle());
    // A link is a file like others; following it is up to the client.
    let link = export.walk(&Caller::Server, Path::new("below/link")).unwrap();
    let link = export.file_by_handle(&link).unwrap();
    assert_eq!(export.read_link(&link).unwrap(), b"../../secret");
    assert_eq!(
        error_status(
            export.readable_file(
                &Caller::Server,
                &export.walk(&Caller::Server, Path::new("below/link")).unwrap()
            )
        ),
        Status::Invalid
    );
    assert_eq!(error_status(export.walk(&Caller::Server, Path::new("up/secret"))), Status::NotDirectory);
    let below = export.file_by_handle(&export.walk(&Caller::Server, Path::new("below")).unwrap()).unwrap();
    assert_eq!(export.lookup(&Caller::Server, &below, b"..").unwrap().handle, export.root_handle());
    assert_eq!(error_status(export.read_link(&below)), Status::Invalid);
}

/// Replaced between the lookup and the use of the handle.
#[test]
fn handles_below_a_directory_replaced_by_a_link_are_stale() {
    let scene = Scene::new();
    fs::create_dir(scene.path("outside")).unwrap();
    fs::hard_link(scene.path("exported/below/file"), scene.path("outside/file")).unwrap();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    fs::remove_dir_all(scene.path("exported/below")).unwrap();
    symlink(scene.path("outside"), scene.path("exported/below")).unwrap();
    assert_eq!(error_status(read_file(&export, &handle)), Status::Stale);
}

#[test]
fn open_files_moved_out_of_the_export_are_stale() {
    let scene = Scene::new();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    assert_eq!(read_file(&export, &handle).unwrap(), b"content");
    fs::rename(scene.path("exported/below/file"), scene.path("moved")).unwrap();
    assert_eq!(error_status(read_file(&export, &handle)), Status::Stale);
    // A name with the exported directory's name as its prefix.
    fs::create_dir(scene.path("exported-not")).unwrap();
    let handle = export.walk(&Caller::Server, Path::new("below/deeper")).unwrap();
    export.file_by_handle(&handle).unwrap();
    fs::rename(scene.path("exported/below/deeper"), scene.path("exported-not/deeper")).unwrap();
    assert_eq!(error_status(export.file_by_handle(&handle)), Status::Stale);
}

/// Its other name is outside, so it still exists, and it is open.
#[test]
fn files_without_a_name_in_the_export_are_stale() {
    let scene = Scene::new();
    fs::hard_link(scene.path("exported/below/file"), scene.path("outside")).unwrap();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    assert_eq!(read_file(&export, &handle).unwrap(), b"content");
    fs::remove_file(scene.path("exported/below/file")).unwrap();
    assert_eq!(error_status(read_file(&export, &handle)), Status::Stale);
    // A file may have a name like the kernel's mark for removed names.
    fs::write(scene.path("exported/file (deleted)"), b"content").unwrap();
    let handle = export.walk(&Caller::Server, Path::new("file (deleted)")).unwrap();
    (0..2).for_each(|_| assert_eq!(read_file(&export, &handle).unwrap(), b"content"));
}

#[test]
fn removed_and_replaced_files_are_stale() {
    let scene = Scene::new();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    assert_eq!(read_file(&export, &handle).unwrap(), b"content");
    fs::write(scene.path("new"), b"other content").unwrap();
    fs::rename(scene.path("new"), scene.path("exported/below/file")).unwrap();
    assert_eq!(error_status(read_file(&export, &handle)), Status::Stale);
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    assert_eq!(read_file(&export, &handle).unwrap(), b"other content");
    fs::remove_file(scene.path("exported/below/file")).unwrap();
    assert_eq!(error_status(read_file(&export, &handle)), Status::Stale);
}

#[test]
fn open_files_renamed_in_the_export_stay_valid() {
    let scene = Scene::new();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    assert_eq!(read_file(&export, &handle).unwrap(), b"content");
    fs::rename(scene.path("exported/below/file"), scene.path("exported/renamed")).unwrap();
    assert_eq!(read_file(&export, &handle).unwrap(), b"content");
}

/// Runs in a thread that has given up its capabilities.
fn run_without_capabilities(run: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let run = || {
            nocopy_report::capability::drop_others(nocopy_report::capability::NONE).unwrap();
            run();
        };
        scope.spawn(run).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

#[test]
fn renamed_files_are_found_by_lookup_without_privileges() {
    let scene = Scene::new();
    run_without_capabilities(|| {
        let export = scene.open_export();
        let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
        assert_eq!(read_file(&export, &handle).unwrap(), b"content");
        fs::rename(scene.path("exported/below/file"), scene.path("exported/renamed")).unwrap();
        assert_eq!(read_file(&export, &handle).unwrap(), b"content", "it is open");
        export.run_maintenance();
        export.run_maintenance();
        assert_eq!(error_status(read_file(&export, &handle)), Status::Stale);
        export.walk(&Caller::Server, Path::new("renamed")).unwrap();
        assert_eq!(read_file(&export, &handle).unwrap(), b"content");
    });
}

/// While no server runs: a file, and another by a directory above it.
#[test]
fn renamed_files_are_opened_by_kernel_handles() {
    let scene = Scene::new();
    fs::create_dir(scene.path("exported/target")).unwrap();
    fs::write(scene.path("exported/below/deeper/other"), b"other").unwrap();
    let export = scene.open_export();
    if export.handle_mount.is_none() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_DAC_READ_SEARCH"));
    }
    let [file, other, directory] = ["below/file", "below/deeper/other", "below"]
        .map(|path| export.walk(&Caller::Server, Path::new(path)).unwrap());
    export.save_index().unwrap();
    drop(export);
    fs::rename(scene.path("exported/below/file"), scene.path("exported/target/renamed")).unwrap();
    fs::rename(scene.path("exported/below"), scene.path("exported/target/above")).unwrap();
    let export = scene.open_export();
    assert_eq!(read_file(&export, &file).unwrap(), b"content");
    assert_eq!(read_file(&export, &other).unwrap(), b"other");
    let directory = export.file_by_handle(&directory).unwrap();
    assert_eq!(
        export.lookup(&Caller::Server, &directory, b"..").unwrap().handle,
        export.walk(&Caller::Server, Path::new("target")).unwrap()
    );
    // What was found is in the index.
    export.save_index().unwrap();
    drop(export);
    run_without_capabilities(|| assert_eq!(read_file(&scene.open_export(), &other).unwrap(), b"other"));
}

#[test]
fn handles_of_files_moved_out_are_stale() {
    let scene = Scene::new();
    let export = scene.open_export();
    let [file, deeper] =
        ["below/file", "below/deeper"].map(|path| export.walk(&Caller::Server, Path::new(path)).unwrap());
    export.save_index().unwrap();
    drop(export);
    // Beside it, and into a directory whose name begins like its own.
    fs::create_dir(scene.path("exported-not")).unwrap();
    fs::rename(scene.path("exported/below/file"), scene.path("moved")).unwrap();
    fs::rename(scene.path("exported/below/deeper"), scene.path("exported-not/deeper")).unwrap();
    let export = scene.open_export();
    assert_eq!(error_status(read_file(&export, &file)), Status::Stale);
    assert_eq!(error_status(export.file_by_handle(&deeper)), Status::Stale);
    // And good again when they are back.
    fs::rename(scene.path("moved"), scene.path("exported/below/file")).unwrap();
    assert_eq!(read_file(&export, &file).unwrap(), b"content");
}

/// The state after a restart of the machine: the kernel opens a file, but knows no name for it.
#[test]
fn renamed_files_are_found_by_inode_number() {
    let scene = Scene::new();
    let export = scene.open_export();
    if export.handle_mount.is_none() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_DAC_READ_SEARCH"));
    }
    let below = export.key.decode_handle(&export.walk(&Caller::Server, Path::new("below")).unwrap()).unwrap();
    fs::rename(scene.path("exported/below"), scene.path("exported/above")).unwrap();
    fs::rename(scene.path("exported/above/file"), scene.path("exported/above/renamed")).unwrap();
    let inode = fs::metadata(scene.path("exported/above/renamed")).unwrap().ino();
    let found = export.path_by_inode(below, inode);
    assert_eq!(found.as_deref(), Some(Path::new("above/renamed")));
    assert_eq!(export.path_by_inode(below, u64::MAX), None);
}

#[test]
fn cached_files_and_names_are_recognised() {
    let scene = Scene::new();
    let export = scene.open_export();
    if !export.root.is_local() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Device("a file system of a disk or in memory"));
    }
    let (root, file) = (export.root_handle(), export.walk(&Caller::Server, Path::new("below/file")).unwrap());
    let below = export.walk(&Caller::Server, Path::new("below")).unwrap();
    export.run_maintenance();
    export.run_maintenance();
    assert_eq!(
        error_status(export.lookup(&Caller::Server, &export.file_by_handle(&below).unwrap(), b"absent")),
        Status::NoEntry
    );
    // Of tmpfs, the kernel keeps no names that do not exist (always_delete_dentry).
    let is_tmpfs = rustix::fs::statfs(scene.path("")).unwrap().f_type == 0x0102_1994;
    let absent = (!is_tmpfs).then_some((below, Some(&b"absent"[..])));
    let known = [(root, None), (file, None), (below, Some(&b"file"[..])), (root, Some(b"/etc"))];
    for (handle, name) in known.into_iter().chain(absent) {
        assert!(export.is_found_without_waiting(&handle, name), "{name:?}");
    }
    // Its place is not known, so the disk is needed.
    let unknown = FileIdentity { file_system: 1, inode: 2, generation: 3 };
    assert!(!export.is_found_without_waiting(&export.key.make_handle(unknown), None));
}

/// One that makes a file may have to wait until files of others are on the disk.
#[test]
fn creates_in_a_directory_proceed_while_files_are_synchronised() {
    let scene = Scene::new();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    let exists = |name| scene.path("exported").join(name).exists();
    let how = CreateMode::Guarded(NewAttributes::NONE);
    let create = |name: &str| export.create(&Caller::Server, &root, name.as_bytes(), &how).0.unwrap();
    std::thread::scope(|scope| {
        let held = export.closing.hold_lock();
        for name in ["first", "second"] {
            scope.spawn({
                let create = &create;
                move || create(name)
            });
            nocopy_lab::patience::wait_until("the file to be made", || exists(name));
        }
        drop(held);
    });
}

/// Some file systems ask another host or another program for attributes, which may take any time. (What is
/// below /proc stands for them.)
#[test]
fn files_of_remote_file_systems_count_as_uncached() {
    let scene = Scene::new();
    let export = Export::open(Path::new("/proc/sys"), Some(&scene.path("state"))).unwrap();
    for name in [None, Some(&b"kernel"[..])] {
        assert!(!export.is_found_without_waiting(&export.root_handle(), name), "{name:?}");
    }
    // Mounted below the exported directory.
    let [above, mounted] =
        ["/dev", "/dev/pts"].map(|path| fs::metadata(path).map(|metadata| metadata.dev()).ok());
    if above == mounted {
        return nocopy_lab::skip(&nocopy_lab::Missing::Device("a file system at /dev/pts"));
    }
    let export = Export::open(Path::new("/dev"), Some(&scene.path("other"))).unwrap();
    assert!(!export.is_found_without_waiting(&export.root_handle(), Some(b"pts")));
    let below = export.walk(&Caller::Server, Path::new("pts")).unwrap();
    assert!(!export.is_found_without_waiting(&below, None));
}

#[test]
fn handles_below_a_renamed_directory_stay_valid() {
    let scene = Scene::new();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("below/file")).unwrap();
    fs::rename(scene.path("exported/below"), scene.path("exported/above")).unwrap();
    export.walk(&Caller::Server, Path::new("above")).unwrap();
    assert_eq!(read_file(&export, &handle).unwrap(), b"content");
}

#[test]
fn fifos_have_attributes_but_are_not_opened_for_reading() {
    let scene = Scene::new();
    let path = scene.path("exported/fifo");
    rustix::fs::mknodat(CWD, &path, rustix::fs::FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("fifo")).unwrap();
    assert_eq!(export.file_by_handle(&handle).unwrap().attributes().unwrap().file_type, FileType::Fifo);
    assert_eq!(error_status(export.readable_file(&Caller::Server, &handle)), Status::Invalid);
}

#[test]
fn entries_that_stay_are_listed_once_while_a_directory_changes() {
    let scene = Scene::new();
    let directory = scene.path("exported/many");
    fs::create_dir(&directory).unwrap();
    let stays: Vec<String> = (0..200).map(|number| format!("stays-{number}")).collect();
    let goes: Vec<String> = (0..200).map(|number| format!("goes-{number}")).collect();
    stays.iter().chain(&goes).for_each(|name| fs::write(directory.join(name), []).unwrap());
    let export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("many")).unwrap();
    let (mut seen, mut cookie) = (Vec::new(), 0);
    for round in 0.. {
        let part: Vec<ListingEntry> = list_names(&export, &handle, cookie).into_iter().take(7).collect();
        let Some(last) = part.last() else { break };
        cookie = last.cookie;
        seen.extend(part.into_iter().map(|name| String::from_utf8(name.bytes.into()).unwrap()));
        fs::remove_file(directory.join(&goes[round % 200])).ok();
        fs::write(directory.join(format!("comes-{round}")), []).unwrap();
    }
    let mut kept: Vec<&String> = seen.iter().filter(|name| name.starts_with("stays-")).collect();
    kept.sort_unstable();
    let mut expected: Vec<&String> = stays.iter().collect();
    expected.sort_unstable();
    assert_eq!(kept, expected);
    assert_eq!(seen[..2], [".", ".."]);
    // The next server continues where this one ended.
    export.save_index().unwrap();
    let (before, middle) = (list_names(&export, &handle, 0), list_names(&export, &handle, 0)[50].cookie);
    drop(export);
    assert_eq!(list_names(&scene.open_export(), &handle, middle), before[51..]);
}

#[test]
fn listed_file_numbers_match_the_attributes() {
    let scene = Scene::new();
    let export = scene.open_export();
    let below = export.file_by_handle(&export.walk(&Caller::Server, Path::new("below")).unwrap()).unwrap();
    for name in export.list(&Caller::Server, &below, 0).unwrap().entries_after(0) {
        let found = export.lookup(&Caller::Server, &below, &name.bytes).unwrap();
        assert_eq!(found.attributes.file_id, name.file_id);
    }
}

/// Writes without synchronising, and closes the file as if it was not used for a while.
#[test]
fn data_lost_after_a_file_was_closed_changes_the_verifier() {
    let scene = Scene::new();
    fs::write(scene.path("exported/file"), b"content").unwrap();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    let handle = export.lookup(&Caller::Server, &root, b"file").unwrap().handle;
    let write = |stability| {
        let mut writing = export.begin_write(&Caller::Server, &handle, 0, 1).unwrap();
        export.write_piece(&mut writing, 1, |file, offset| rustix::io::pwrite(file, b"x", offset));
        export.end_write(writing, stability).0.unwrap();
        export.file_by_handle(&handle).unwrap().identity()
    };
    let identity = write(Stability::Unstable);
    export.commit(&Caller::Server, &handle).0.unwrap();
    export.open_files.close(identity);
    assert_eq!(export.closing.len(), 0, "it was committed");
    write(Stability::FileSync);
    export.open_files.close(identity);
    assert_eq!(export.closing.len(), 0, "it is on the disk");
    write(Stability::Unstable);
    export.open_files.close(identity);
    assert_eq!(export.closing.len(), 1);
    let before = export.write_verifier();
    export.run_maintenance();
    assert_eq!((export.closing.len(), export.write_verifier()), (0, before));
    // A pipe stands for a file whose data was lost: it cannot be synchronised either.
    let lose = || {
        let lost = OpenFile::new_created(rustix::pipe::pipe().unwrap().0, identity, &export.root);
        lost.record_write(&export.closing);
        export.open_files.insert(Arc::new(lost));
        export.open_files.close(identity);
    };
    lose();
    export.run_maintenance();
    let after = export.write_verifier();
    assert_ne!(after, before);
    lose();
    export.commit(&Caller::Server, &handle).0.unwrap();
    assert_ne!(export.write_verifier(), after, "the client sends its data again");
}

#[test]
fn removed_files_are_dropped_from_the_index() {
    let scene = Scene::new();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    let (caller, new) = (Caller::Server, NewAttributes::NONE);
    let create =
        |name: &[u8]| export.create(&caller, &root, name, &CreateMode::Guarded(new)).0.unwrap().handle;
    let remove = |name: &[u8], is_directory| export.remove(&caller, &root, name, is_directory).0.unwrap();
    let rename = |name: &[u8], to: &[u8]| export.rename(&caller, (&root, name), (&root, to)).0.0.unwrap();
    let linked = create(b"linked");
    let file = export.file_by_handle(&linked).unwrap();
    export.link(&caller, &file, &root, b"other").0.unwrap();
    drop(file);
    let before = export.index.len();
    remove(b"linked", false);
    assert_eq!(export.index.len(), before, "it has another name");
    assert_eq!(export.lookup(&caller, &root, b"other").unwrap().handle, linked);
    assert!(export.file_by_handle(&linked).is_ok());
    for number in 0..3 {
        create(b"one");
        create(b"two");
        rename(b"one", b"two");
        assert_eq!(export.index.len(), before + 1, "{number}");
        remove(b"two", false);
        export.make_directory(&caller, &root, b"directory", &new).0.unwrap();
        remove(b"directory", true);
        assert_eq!(export.index.len(), before);
    }
}

/// By a program of this host.
#[test]
fn files_removed_by_other_programs_are_dropped_from_the_index() {
    let scene = Scene::new();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    let identity = |name: &str| {
        fs::write(scene.path(&format!("exported/{name}")), []).unwrap();
        let handle = export.lookup(&Caller::Server, &root, name.as_bytes()).unwrap().handle;
        export.key.decode_handle(&handle).unwrap()
    };
    let [stays, removed, open] = ["stays", "removed", "open"].map(identity);
    let kept = export.open_by_identity(open).unwrap();
    fs::remove_file(scene.path("exported/removed")).unwrap();
    fs::hard_link(scene.path("exported/open"), scene.path("exported/another")).unwrap();
    fs::remove_file(scene.path("exported/open")).unwrap();
    [stays, removed, open].into_iter().for_each(|identity| export.forget_if_removed(identity));
    let is_known = |identity| export.index.location(identity).is_some();
    assert_eq!([stays, removed, open].map(is_known), [true, false, true]);
    drop(kept);
}

#[test]
fn nonblocking_threads_defer_blocking_work() {
    let scene = Scene::new();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    fs::write(scene.path("exported/new"), []).unwrap();
    let look_up = || export.lookup(&Caller::Server, &root, b"new").map(|found| found.handle);
    // Its handle must be written to the index.
    assert_eq!(run_without_blocking(look_up), None);
    let handle = look_up().unwrap();
    assert_eq!(run_without_blocking(look_up), None, "it is not saved yet");
    export.save_index().unwrap();
    assert_eq!(run_without_blocking(look_up), Some(Ok(handle)));
    assert!(run_without_blocking(|| export.file_by_handle(&handle).is_ok()).unwrap());
    // A removed file would be searched for.
    fs::remove_file(scene.path("exported/new")).unwrap();
    assert!(run_without_blocking(|| export.file_by_handle(&handle).is_ok()).is_none());
    assert_eq!(error_status(export.file_by_handle(&handle)), Status::Stale);
    assert!(!export.is_found_without_waiting(&handle, None));
    assert!(run_without_blocking(|| export.lookup(&Caller::Server, &root, b"absent").is_err()).unwrap());
}

#[test]
fn directories_are_not_read_again_for_each_page() {
    let scene = Scene::new();
    let export = scene.open_export();
    let below = export.file_by_handle(&export.walk(&Caller::Server, Path::new("below")).unwrap()).unwrap();
    let list = |cookie| export.list(&Caller::Server, &below, cookie).unwrap();
    let first = list(0);
    let cookie = first.entries_after(0)[1].cookie;
    fs::write(scene.path("exported/below/new"), []).unwrap();
    assert!(Arc::ptr_eq(&first, &list(cookie)), "it was changed since");
    let second = list(0);
    assert_eq!(
        second.entries_after(0).len(),
        first.entries_after(0).len() + 1,
        "from the beginning on it is the present one"
    );
    assert!(Arc::ptr_eq(&second, &list(cookie)));
}

#[test]
fn large_directories_are_listed_in_bounded_memory() {
    const BYTES_MAX: usize = 4096;
    let scene = Scene::new();
    let directory = scene.path("exported/many");
    fs::create_dir(&directory).unwrap();
    (0..500).for_each(|number| fs::write(directory.join(format!("file-{number}")), []).unwrap());
    let mut export = scene.open_export();
    let handle = export.walk(&Caller::Server, Path::new("many")).unwrap();
    let whole = list_names(&export, &handle, 0);
    export.listings = ListingCache::with_bytes_max(export.listings.key, BYTES_MAX);
    let many = export.file_by_handle(&handle).unwrap();
    let (mut seen, mut cookie, mut parts) = (Vec::new(), 0, 0);
    loop {
        let part = export.list(&Caller::Server, &many, cookie).unwrap();
        let names = part.entries_after(cookie);
        assert!(names.iter().map(ListingEntry::memory_bytes).sum::<usize>() <= BYTES_MAX);
        seen.extend_from_slice(names);
        parts += 1;
        if !part.is_truncated() {
            break;
        }
        // The next page of the same part.
        let inside = names[names.len() / 2].cookie;
        assert!(Arc::ptr_eq(&part, &export.list(&Caller::Server, &many, inside).unwrap()));
        cookie = names.last().unwrap().cookie;
    }
    assert!(seen == whole && seen.len() == 502 && parts > 5, "{} names in {parts} parts", seen.len());
}

#[test]
fn fifos_and_sockets_are_created_and_devices_refused() {
    let scene = Scene::new();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    let make = |name: &str, file_type, (major, minor)| {
        let attributes = NewAttributes { mode: Some(0o640), ..NewAttributes::NONE };
        let node = NewNode { file_type, attributes, major, minor };
        export.make_node(&Caller::Server, &root, name.as_bytes(), &node).0.map(|found| found.attributes)
    };
    for (name, file_type) in [("fifo", FileType::Fifo), ("socket", FileType::Socket)] {
        let made = make(name, file_type, (0, 0)).unwrap();
        assert_eq!((made.file_type, made.mode & !0o027), (file_type, 0o640));
        assert_eq!(make(name, file_type, (0, 0)), Err(Status::Exists));
    }
    for file_type in [FileType::Regular, FileType::Directory, FileType::SymbolicLink] {
        assert_eq!(make("other", file_type, (0, 0)), Err(Status::BadType), "{file_type:?}");
    }
    for file_type in [FileType::CharacterDevice, FileType::BlockDevice] {
        assert_eq!(make("device", file_type, (1, 3)), Err(Status::NotPermitted), "{file_type:?}");
    }
}

/// The kernel decides: a container, or a user without the right, may not.
#[test]
fn devices_are_created_only_for_trusted_root() {
    if Caller::check_impersonation().is_err() {
        return nocopy_lab::skip(&nocopy_lab::Missing::Capability("CAP_SETUID"));
    }
    let scene = Scene::new();
    let path = scene.path("exported/by hand");
    let kind = rustix::fs::FileType::CharacterDevice;
    let is_permitted = rustix::fs::mknodat(CWD, &path, kind, Mode::RUSR, rustix::fs::makedev(1, 3)).is_ok();
    fs::set_permissions(scene.path("exported"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::set_permissions(scene.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let export = scene.open_export();
    let root = export.file_by_handle(&export.root_handle()).unwrap();
    let make = |user: u32, numbers: (u32, u32)| {
        let (file_type, attributes) = (FileType::CharacterDevice, NewAttributes::NONE);
        let node = NewNode { file_type, attributes, major: numbers.0, minor: numbers.1 };
        let caller = Caller::User(User::new(user, user, &[], true));
        let made = export.make_node(&caller, &root, format!("of {user}").as_bytes(), &node);
        made.0.map(|found| (found.attributes.device_major, found.attributes.device_minor))
    };
    std::thread::scope(|scope| {
        let on_thread_that_ends = || {
            assert_eq!(make(1001, (1, 3)), Err(Status::NotPermitted));
            assert_eq!(make(0, (1 << 12, 3)), Err(Status::Invalid));
            assert_eq!(make(0, (1, 3)), if is_permitted { Ok((1, 3)) } else { Err(Status::NotPermitted) });
        };
        scope.spawn(on_thread_that_ends).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}
