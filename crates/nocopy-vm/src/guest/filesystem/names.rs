//! Names: making, finding, listing, renaming and removing them.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::thread;

use rustix::fs::statvfs;
use rustix::io::Errno;

use super::{CheckDirectory, CheckFailure, CheckResult, FilesystemCheck, errno_of_result};

pub(super) const ALL: &[FilesystemCheck] = &[
    FilesystemCheck { name: "trees are made and removed", run: check_trees },
    FilesystemCheck { name: "names are found or not", run: check_lookups },
    FilesystemCheck { name: "a directory is listed while names go", run: check_listing },
    FilesystemCheck { name: "links count and renaming replaces", run: check_links_and_renames },
    FilesystemCheck { name: "renaming what cannot be is refused", run: check_refused_renames },
    FilesystemCheck { name: "errors are those of a directory", run: check_refused_operations },
    FilesystemCheck { name: "symbolic links keep their paths", run: check_symbolic_links },
    FilesystemCheck { name: "what is repeated is done once each", run: check_repeated_operations },
    FilesystemCheck { name: "one of two makes a new file", run: check_exclusive_creation },
    FilesystemCheck { name: "free space is told", run: check_free_space },
];

/// Makes a tree, counts its entries, and removes it leaf by leaf.
fn check_trees(directory: &CheckDirectory) -> CheckResult {
    let levels = if directory.is_long { 5 } else { 3 };
    let made = make_tree(&directory.path("tree"), levels)?;
    let cut = remove_tree(&directory.path("tree"))?;
    assert_eq!(made, cut, "made and found");
    assert_eq!(fs::read_dir(&directory.here)?.count(), 0);
    Ok(())
}

fn make_tree(at: &Path, levels: usize) -> io::Result<usize> {
    fs::create_dir(at)?;
    let mut made = 1;
    for number in 0..4 {
        File::create_new(at.join(format!("file {number}")))?;
        made += 1;
    }
    for number in 0..if levels > 1 { 2 } else { 0 } {
        made += make_tree(&at.join(format!("directory {number}")), levels - 1)?;
    }
    Ok(made)
}

fn remove_tree(at: &Path) -> io::Result<usize> {
    let mut found = 1;
    for entry in fs::read_dir(at)?.collect::<io::Result<Vec<_>>>()? {
        if entry.file_type()?.is_dir() {
            found += remove_tree(&entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
            found += 1;
        }
    }
    fs::remove_dir(at)?;
    Ok(found)
}

fn check_lookups(directory: &CheckDirectory) -> CheckResult {
    fs::create_dir_all(directory.path("a/b"))?;
    File::create_new(directory.path("a/b/file"))?;
    let top = fs::metadata(&directory.here)?.ino();
    for number in 0..directory.repetitions(20) {
        assert_eq!(fs::metadata(directory.path("a/b/../.."))?.ino(), top, "the way up");
        assert!(fs::metadata(directory.path("a/b/file"))?.is_file());
        let missing = directory.path(&format!("a/b/missing {number}"));
        assert_eq!(errno_of_result(fs::metadata(&missing)), Some(Errno::NOENT));
        // What was missing a moment ago is there at once.
        File::create_new(&missing)?;
        assert!(fs::metadata(&missing)?.is_file());
        fs::remove_file(&missing)?;
    }
    assert_eq!(fs::canonicalize(directory.path("a/../a/b"))?, fs::canonicalize(directory.path("a/b"))?);
    Ok(())
}

/// Names that stay are listed once each, whatever else is removed meanwhile, and a new listing shows the
/// names that are there then.
fn check_listing(directory: &CheckDirectory) -> CheckResult {
    let count = directory.repetitions(120);
    let name = |number: usize| format!("name {number}");
    (0..count).try_for_each(|number| File::create_new(directory.path(&name(number))).map(drop))?;
    let mut listed = Vec::new();
    for (index, entry) in fs::read_dir(&directory.here)?.enumerate() {
        listed.push(entry?.file_name().into_string().expect("names are text"));
        // The odd ones are removed one after another.
        if index < count / 2 {
            fs::remove_file(directory.path(&name(2 * index + 1)))?;
        }
    }
    let once: BTreeSet<_> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "names that were listed twice");
    let stayed: BTreeSet<_> = (0..count).step_by(2).map(name).collect();
    assert!(once.is_superset(&stayed), "of {count} names {} were listed", once.len());
    let now = fs::read_dir(&directory.here)?
        .map(|entry| Ok(entry?.file_name().into_string().expect("names are text")))
        .collect::<io::Result<BTreeSet<_>>>()?;
    assert_eq!(now, stayed, "a new listing");
    Ok(())
}

fn check_links_and_renames(directory: &CheckDirectory) -> CheckResult {
    let [one, two, three] = ["one", "two", "three"].map(|name| directory.path(name));
    for round in 0..directory.repetitions(6) {
        fs::write(&one, format!("round {round}"))?;
        let number = fs::metadata(&one)?.ino();
        fs::hard_link(&one, &two)?;
        let links = [&one, &two].map(|path| fs::metadata(path).map(|about| (about.ino(), about.nlink())));
        for about in links {
            assert_eq!(about?, (number, 2), "a file with two names");
        }
        assert_eq!(errno_of_result(fs::hard_link(&one, &two)), Some(Errno::EXIST));
        // Renaming one of two names of a file to the other does nothing, and both stay.
        fs::rename(&one, &two)?;
        assert_eq!(fs::metadata(&one)?.nlink(), 2);
        fs::write(&three, "is replaced")?;
        fs::rename(&one, &three)?;
        assert_eq!(errno_of_result(fs::metadata(&one)), Some(Errno::NOENT));
        assert_eq!((fs::metadata(&three)?.ino(), fs::metadata(&three)?.nlink()), (number, 2));
        fs::remove_file(&two)?;
        assert_eq!(fs::metadata(&three)?.nlink(), 1);
        assert_eq!(fs::read_to_string(&three)?, format!("round {round}"));
        fs::rename(&three, &three)?;
        fs::remove_file(&three)?;
    }
    Ok(())
}

fn check_refused_renames(directory: &CheckDirectory) -> CheckResult {
    fs::create_dir_all(directory.path("full/below"))?;
    fs::create_dir(directory.path("empty"))?;
    fs::create_dir(directory.path("other"))?;
    fs::write(directory.path("file"), "file")?;
    let tries = [
        ("file", "empty", Errno::ISDIR),
        ("empty", "file", Errno::NOTDIR),
        ("empty", "full", Errno::NOTEMPTY),
        ("full", "full/below/itself", Errno::INVAL),
        ("missing", "new", Errno::NOENT),
        ("file", "missing/new", Errno::NOENT),
        ("file", "file/new", Errno::NOTDIR),
    ];
    for (from, to, wanted) in tries {
        assert_eq!(
            errno_of_result(fs::rename(directory.path(from), directory.path(to))),
            Some(wanted),
            "{from} to {to}"
        );
    }
    // A directory replaces an empty one, and keeps its own entries.
    let links = fs::metadata(&directory.here)?.nlink();
    fs::rename(directory.path("full"), directory.path("empty"))?;
    assert!(fs::metadata(directory.path("empty/below"))?.is_dir());
    assert_eq!(fs::metadata(&directory.here)?.nlink(), links - 1, "a directory fewer");
    // Renames into another directory.
    fs::rename(directory.path("empty/below"), directory.path("other/below"))?;
    assert_eq!(
        fs::metadata(directory.path("other/below/.."))?.ino(),
        fs::metadata(directory.path("other"))?.ino()
    );
    Ok(())
}

fn check_refused_operations(directory: &CheckDirectory) -> CheckResult {
    fs::create_dir_all(directory.path("directory/below"))?;
    fs::write(directory.path("file"), "file")?;
    let long = "n".repeat(256);
    let tries = [
        ("rmdir of what is not empty", fs::remove_dir(directory.path("directory")), Errno::NOTEMPTY),
        ("unlink of a directory", fs::remove_file(directory.path("directory")), Errno::ISDIR),
        ("rmdir of a file", fs::remove_dir(directory.path("file")), Errno::NOTDIR),
        ("mkdir over a file", fs::create_dir(directory.path("file")), Errno::EXIST),
        ("mkdir over a directory", fs::create_dir(directory.path("directory")), Errno::EXIST),
        ("mkdir in nothing", fs::create_dir(directory.path("missing/new")), Errno::NOENT),
        ("mkdir below a file", fs::create_dir(directory.path("file/new")), Errno::NOTDIR),
        ("unlink of nothing", fs::remove_file(directory.path("missing")), Errno::NOENT),
        ("a name that is too long", fs::write(directory.path(&long), ""), Errno::NAMETOOLONG),
        ("symlink over a file", symlink("x", directory.path("file")), Errno::EXIST),
        (
            "writing a directory",
            File::options().write(true).open(directory.path("directory")).map(drop),
            Errno::ISDIR,
        ),
    ];
    for (what, done, wanted) in tries {
        assert_eq!(errno_of_result(done), Some(wanted), "{what}");
    }
    fs::write(directory.path(&long[1..]), "the longest name")?;
    assert_eq!(fs::read_to_string(directory.path(&long[1..]))?, "the longest name");
    Ok(())
}

fn check_symbolic_links(directory: &CheckDirectory) -> CheckResult {
    for length in [1, 2, 59, 60, 61, 255, 256, 1000, 1023] {
        let (path, target) = (directory.path(&format!("link {length}")), "t/".repeat(512));
        let target = &target[..length];
        symlink(target, &path)?;
        assert_eq!(fs::read_link(&path)?.to_str(), Some(target));
        let about = fs::symlink_metadata(&path)?;
        assert!(about.is_symlink() && about.len() == length as u64, "{length}: {} B", about.len());
        fs::remove_file(&path)?;
    }
    fs::write(directory.path("file"), "through a link")?;
    symlink("file", directory.path("good"))?;
    symlink("missing", directory.path("dangling"))?;
    symlink("loop", directory.path("loop"))?;
    assert_eq!(fs::read_to_string(directory.path("good"))?, "through a link");
    assert_eq!(errno_of_result(fs::read(directory.path("dangling"))), Some(Errno::NOENT));
    assert_eq!(errno_of_result(fs::read(directory.path("loop"))), Some(Errno::LOOP));
    fs::write(directory.path("dangling"), "made through it")?;
    assert_eq!(fs::read_to_string(directory.path("missing"))?, "made through it");
    Ok(())
}

/// What fails when it is done a second time, again and again, by two threads with names of their own.
fn check_repeated_operations(directory: &CheckDirectory) -> CheckResult {
    let rounds = directory.repetitions(10);
    let work = |number: usize| {
        let path = |name: &str| directory.path(&format!("{name} {number}"));
        for _ in 0..rounds {
            fs::create_dir(path("directory"))?;
            fs::rename(path("directory"), path("renamed"))?;
            File::create_new(path("file"))?;
            fs::hard_link(path("file"), path("second"))?;
            fs::remove_file(path("file"))?;
            fs::rename(path("second"), path("file"))?;
            symlink("nowhere", path("link"))?;
            fs::remove_file(path("link"))?;
            fs::remove_file(path("file"))?;
            fs::remove_dir(path("renamed"))?;
        }
        Ok::<_, CheckFailure>(())
    };
    thread::scope(|scope| {
        let both = [0, 1].map(|number| scope.spawn(move || work(number)));
        both.into_iter().try_for_each(|thread| thread.join().expect("it asserts nothing"))
    })?;
    assert_eq!(fs::read_dir(&directory.here)?.count(), 0);
    Ok(())
}

/// If two clients make the same new file, one succeeds, and the other gets EEXIST.
fn check_exclusive_creation(directory: &CheckDirectory) -> CheckResult {
    for round in 0..directory.repetitions(10) {
        let name = format!("lock {round}");
        let paths = [directory.path(&name), directory.path_at_other_client(&name)];
        let made = thread::scope(|scope| {
            let both = [&paths[0], &paths[1]]
                .map(|path| scope.spawn(move || errno_of_result(File::create_new(path))));
            both.map(|thread| thread.join().expect("it asserts nothing"))
        });
        let one_did = matches!(made, [None, Some(Errno::EXIST)] | [Some(Errno::EXIST), None]);
        assert!(one_did, "{name}: {made:?}");
    }
    Ok(())
}

fn check_free_space(directory: &CheckDirectory) -> CheckResult {
    let about = statvfs(&directory.here)?;
    let (blocks, free, available) = (about.f_blocks, about.f_bfree, about.f_bavail);
    assert!(
        blocks > 0 && available <= free && free <= blocks,
        "{blocks} blocks, {free} free, {available} available"
    );
    let (files, free) = (about.f_files, about.f_ffree);
    assert!(files > 0 && free <= files, "{files} files, {free} free");
    assert_eq!(about.f_namemax, 255);
    Ok(())
}
