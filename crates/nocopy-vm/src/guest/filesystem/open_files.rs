//! Files that are open while their names, permissions or contents change.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::io::Errno;

use super::{CheckDirectory, CheckFailure, CheckResult, FilesystemCheck, errno_of_result, random_pattern};
use crate::guest::patience::wait_until;

pub(super) const ALL: &[FilesystemCheck] = &[
    FilesystemCheck { name: "a removed file is open until it is closed", run: check_removed_file },
    FilesystemCheck { name: "a file that was replaced is open still", run: check_replaced_file },
    FilesystemCheck {
        name: "an open file needs no permission any more",
        run: check_file_without_permissions,
    },
    FilesystemCheck { name: "an open file goes where its name goes", run: check_renamed_file },
    FilesystemCheck { name: "what was closed is seen by who opens it", run: check_close_to_open_consistency },
    FilesystemCheck {
        name: "a replaced file is seen by who opens it",
        run: check_file_replaced_by_other_client,
    },
];

fn open_new(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create_new(true).open(path)
}

/// Writes at the end of a file, and reads all of it.
fn append_and_reread(file: &mut File, expected: &mut Vec<u8>) -> std::io::Result<()> {
    let piece = random_pattern(expected.len() as u64, 10_000);
    file.write_all_at(&piece, expected.len() as u64)?;
    expected.extend(piece);
    file.sync_all()?;
    file.rewind()?;
    let mut found = Vec::new();
    file.read_to_end(&mut found)?;
    assert!(found == *expected, "{} bytes, not the {} that were written", found.len(), expected.len());
    Ok(())
}

fn check_removed_file(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    for _ in 0..directory.repetitions(2) {
        let (mut file, mut expected) = (open_new(&path)?, Vec::new());
        append_and_reread(&mut file, &mut expected)?;
        fs::remove_file(&path)?;
        assert_eq!(errno_of_result(fs::metadata(&path)), Some(Errno::NOENT));
        append_and_reread(&mut file, &mut expected)?;
        // A new file of the same name is a different file.
        fs::write(&path, "another")?;
        append_and_reread(&mut file, &mut expected)?;
        assert_eq!(fs::read_to_string(&path)?, "another");
        fs::remove_file(&path)?;
        drop(file);
        // A client renames a file that is open, and removes it soon after it is closed.
        wait_until("no name is left", || Ok(fs::read_dir(&directory.here)?.count() == 0))
            .map_err(CheckFailure::from_failure)?;
    }
    Ok(())
}

fn check_replaced_file(directory: &CheckDirectory) -> CheckResult {
    let (path, new) = (directory.path("file"), directory.path("new"));
    for _ in 0..directory.repetitions(2) {
        let (mut file, mut expected) = (open_new(&path)?, Vec::new());
        append_and_reread(&mut file, &mut expected)?;
        fs::write(&new, "the new one")?;
        fs::rename(&new, &path)?;
        append_and_reread(&mut file, &mut expected)?;
        assert_eq!(fs::read_to_string(&path)?, "the new one");
        fs::remove_file(&path)?;
    }
    Ok(())
}

fn check_file_without_permissions(directory: &CheckDirectory) -> CheckResult {
    let path = directory.path("file");
    let (mut file, mut expected) = (open_new(&path)?, Vec::new());
    for mode in [0o000, 0o400, 0o200] {
        fs::set_permissions(&path, Permissions::from_mode(mode))?;
        append_and_reread(&mut file, &mut expected)?;
        assert_eq!(fs::metadata(&path)?.mode() & 0o7777, mode);
    }
    // It may be made so, as 'git' and 'cp' do.
    let read_only = OpenOptions::new().write(true).create_new(true).mode(0o444).open(directory.path("made"));
    read_only?.write_all(b"written all the same")?;
    assert_eq!(fs::read_to_string(directory.path("made"))?, "written all the same");
    Ok(())
}

fn check_renamed_file(directory: &CheckDirectory) -> CheckResult {
    fs::create_dir_all(directory.path("one/below"))?;
    fs::create_dir(directory.path("two"))?;
    let (mut file, mut expected) = (open_new(&directory.path("one/below/file"))?, Vec::new());
    append_and_reread(&mut file, &mut expected)?;
    fs::rename(directory.path("one/below/file"), directory.path("two/file"))?;
    append_and_reread(&mut file, &mut expected)?;
    fs::rename(directory.path("two"), directory.path("one/below/two"))?;
    append_and_reread(&mut file, &mut expected)?;
    assert!(fs::read(directory.path("one/below/two/file"))? == expected);
    // The directory above it is moved, too.
    fs::rename(directory.path("one"), directory.path("three"))?;
    append_and_reread(&mut file, &mut expected)?;
    assert!(fs::read(directory.path("three/below/two/file"))? == expected);
    Ok(())
}

/// A client that opens a file after another has written and closed it reads the written data, in both
/// directions.
fn check_close_to_open_consistency(directory: &CheckDirectory) -> CheckResult {
    let paths = [directory.path("file"), directory.path_at_other_client("file")];
    fs::write(&paths[0], "")?;
    for round in 0..directory.repetitions(8) {
        let expected = random_pattern(round as u64, 1 + 5000 * (round % 4));
        fs::write(&paths[round % 2], &expected)?;
        for (number, path) in paths.iter().enumerate() {
            let found = fs::read(path)?;
            assert!(
                found == expected,
                "round {round}, client {number}: {} of {} bytes",
                found.len(),
                expected.len()
            );
            assert_eq!(fs::metadata(path)?.len(), expected.len() as u64);
        }
    }
    Ok(())
}

fn check_file_replaced_by_other_client(directory: &CheckDirectory) -> CheckResult {
    let paths = [directory.path("file"), directory.path_at_other_client("file")];
    fs::write(&paths[0], "first")?;
    for round in 0..directory.repetitions(6) {
        let (writer, reader) = (round % 2, 1 - round % 2);
        let expected = format!("round {round}");
        let new = paths[writer].with_file_name(format!("new {round}"));
        fs::write(&new, &expected)?;
        fs::rename(&new, &paths[writer])?;
        assert_eq!(fs::read_to_string(&paths[writer])?, expected);
        // A client may believe in a name for as long as it believes in attributes; it asks anew when it makes
        // something there.
        File::create(paths[reader].with_file_name("asks"))?;
        assert_eq!(fs::read_to_string(&paths[reader])?, expected, "round {round}");
    }
    Ok(())
}
