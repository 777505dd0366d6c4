//! Bytes and attributes of files.

use std::fs::{self, File, FileTimes, OpenOptions, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown};
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::{CheckDirectory, CheckResult, FilesystemCheck, errno_of_result, random_pattern};
use crate::guest::nfs::NOBODY;

pub(super) const ALL: &[FilesystemCheck] = &[
    FilesystemCheck { name: "attributes are as they were set", run: check_attributes },
    FilesystemCheck { name: "times follow changes", run: check_times },
    FilesystemCheck { name: "bytes are read as they were written", run: check_bytes },
    FilesystemCheck { name: "holes are zeros", run: check_holes },
    FilesystemCheck { name: "files go on past 4 GiB", run: check_past_4_gib },
    FilesystemCheck { name: "what is appended goes to the end", run: check_appends },
    FilesystemCheck { name: "a file that is cut ends there", run: check_truncation },
];

const GIB: u64 = 1 << 30;

fn check_attributes(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    fs::write(&path, "1234567")?;
    for _ in 0..directory.repetitions(3) {
        for mode in [0o000, 0o400, 0o644, 0o777, 0o1600, 0o666] {
            fs::set_permissions(&path, Permissions::from_mode(mode))?;
            let about = fs::metadata(&path)?;
            assert_eq!((about.mode() & 0o7777, about.len()), (mode, 7), "permissions and size");
        }
        for seconds in [1, 1_000_000_000, 4_000_000_000] {
            let time = SystemTime::UNIX_EPOCH + Duration::new(seconds, 123_456_000);
            File::options()
                .write(true)
                .open(&path)?
                .set_times(FileTimes::new().set_accessed(time).set_modified(time + Duration::from_secs(1)))?;
            let about = fs::metadata(&path)?;
            assert_eq!((about.accessed()?, about.modified()?), (time, time + Duration::from_secs(1)));
        }
    }
    chown(&path, Some(NOBODY), Some(NOBODY))?;
    assert_eq!(errno_of_result(chown(&path, Some(0), None)), Some(Errno::PERM), "given to root");
    assert_eq!((fs::metadata(&path)?.uid(), fs::metadata(&path)?.gid()), (NOBODY, NOBODY));
    fs::create_dir(directory.path("directory"))?;
    fs::set_permissions(directory.path("directory"), Permissions::from_mode(0o2711))?;
    assert_eq!(fs::metadata(directory.path("directory"))?.mode() & 0o7777, 0o2711);
    // Without its permission a file is not opened, and a directory not entered.
    fs::set_permissions(&path, Permissions::from_mode(0o000))?;
    assert_eq!(errno_of_result(fs::read(&path)), Some(Errno::ACCESS));
    fs::set_permissions(directory.path("directory"), Permissions::from_mode(0o000))?;
    assert_eq!(errno_of_result(fs::write(directory.path("directory/new"), "")), Some(Errno::ACCESS));
    Ok(fs::set_permissions(directory.path("directory"), Permissions::from_mode(0o700))?)
}

/// A change updates the times that it should, and no others.
fn check_times(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    fs::write(&path, "old")?;
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
    let about = |path| fs::metadata(path).map(|about| (about.mtime(), (about.ctime(), about.ctime_nsec())));
    let set_back = || File::options().write(true).open(&path)?.set_modified(old);
    set_back()?;
    let before = about(&path)?;
    assert_eq!(before.0, 1_000_000_000);
    fs::set_permissions(&path, Permissions::from_mode(0o600))?;
    let after = about(&path)?;
    assert!(after.0 == before.0 && after.1 > before.1, "chmod: {before:?}, {after:?}");
    fs::write(&path, "new")?;
    assert!(about(&path)?.0 > before.0, "a write moves the time of the last write");
    set_back()?;
    File::options().write(true).open(&path)?.set_len(1)?;
    assert!(about(&path)?.0 > before.0, "so does a cut");
    let directory_times = about(&directory.here)?;
    fs::remove_file(&path)?;
    assert!(
        about(&directory.here)?.1 > directory_times.1,
        "a name that goes moves the times of the directory"
    );
    Ok(())
}

/// In pieces of several lengths, in order and not, and overwritten in the middle.
fn check_bytes(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    let total = if directory.is_long { (8 << 20) + 13 } else { (1 << 20) + 13 };
    let expected = random_pattern(1, total);
    for piece in [8192, 65_537, 1 << 20] {
        let mut file = File::create(&path)?;
        assert_eq!(fs::metadata(&path)?.len(), 0, "a file that was opened to be written anew");
        expected.chunks(piece).try_for_each(|piece| file.write_all(piece))?;
        assert_eq!(fs::metadata(&path)?.len(), total as u64);
        drop(file);
        assert!(fs::read(&path)? == expected, "in pieces of {piece} bytes");
    }
    let mut expected = expected;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    for at in [0, 4095, 8193, total / 2, total - 100] {
        let piece = random_pattern(at as u64, 100);
        file.write_all_at(&piece, at as u64)?;
        expected[at..at + 100].copy_from_slice(&piece);
    }
    file.sync_all()?;
    let mut found = vec![0; 100];
    for at in [4000, total - 100] {
        file.read_exact_at(&mut found, at as u64)?;
        assert_eq!(found, expected[at..at + 100], "at {at}");
    }
    assert!(fs::read(&path)? == expected, "overwritten in places");
    assert_eq!(file.read_at(&mut found, total as u64)?, 0, "behind the end");
    Ok(())
}

fn check_holes(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    let mut expected = Vec::new();
    for (number, at) in [5, 4096, 70_000, 300_001].into_iter().enumerate() {
        let piece = random_pattern(number as u64, 1000);
        file.write_all_at(&piece, at as u64)?;
        expected.resize(expected.len().max(at), 0);
        expected.truncate(at);
        expected.extend(piece);
    }
    file.set_len(400_000)?;
    expected.resize(400_000, 0);
    assert!(fs::read(&path)? == expected, "while it is open");
    drop(file);
    assert!(fs::read(&path)? == expected, "when it was closed");
    Ok(())
}

fn check_past_4_gib(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    let places = [2 * GIB - 3, 4 * GIB - 5, 9 * GIB + 1];
    for at in places {
        file.seek(SeekFrom::Start(at))?;
        file.write_all(&random_pattern(at, 11))?;
    }
    file.sync_all()?;
    assert_eq!(fs::metadata(&path)?.len(), places[2] + 11);
    drop(file);
    let mut file = File::open(&path)?;
    for at in places {
        let mut found = [0; 12];
        file.seek(SeekFrom::Start(at - 1))?;
        file.read_exact(&mut found)?;
        assert!(found[0] == 0 && found[1..] == random_pattern(at, 11), "at {at}: {found:?}");
    }
    Ok(())
}

/// Appends through two descriptors in turn.
fn check_appends(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("log");
    let open = || OpenOptions::new().append(true).create(true).open(&path);
    let (mut both, mut expected) = ([open()?, open()?], Vec::new());
    for number in 0..directory.repetitions(20) {
        let line = format!("line {number} of {}\n", number % 3);
        both[number % 2].write_all(line.as_bytes())?;
        expected.extend(line.into_bytes());
    }
    assert!(fs::read(&path)? == expected, "all lines, in order");
    Ok(())
}

fn check_truncation(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    let mut expected = random_pattern(3, 200_000);
    fs::write(&path, &expected)?;
    let file = OpenOptions::new().read(true).write(true).open(&path)?;
    for bytes in [150_001, 4096, 100_000, 4095, 0, 3, 12_289] {
        file.set_len(bytes)?;
        expected.resize(bytes as usize, 0);
        assert_eq!(fs::metadata(&path)?.len(), bytes);
        assert!(fs::read(&path)? == expected, "cut or lengthened to {bytes} bytes");
        file.write_all_at(b"mark", bytes / 2)?;
        let at = bytes as usize / 2;
        expected.resize(expected.len().max(at + 4), 0);
        expected[at..at + 4].copy_from_slice(b"mark");
    }
    drop(file);
    File::create(&path)?;
    assert_eq!(fs::metadata(&path)?.len(), 0);
    Ok(())
}
