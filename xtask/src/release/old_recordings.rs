//! What the unit `nocopy-record@` removes when it starts: files of its earlier runs. `ExecStart` is tried by
//! `units`.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::step::repository_root;

/// The unit's command before `ExecStart`, as sh(1) runs it: both divide it into words in the same way.
fn command_before_start() -> String {
    let path = repository_root().join("packaging/systemd/nocopy-record@.service");
    let text = fs::read_to_string(path).unwrap().replace("\\\n", " ");
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStartPre=-")).unwrap();
    line.to_owned()
}

/// A directory with recordings, the one with the highest number being the newest.
fn directory_with_recordings(count: u64) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    for number in 1..=count {
        // Names of a later run begin anew, so they do not tell the order.
        let name = format!("eth0-{:05}-20261130T1200{number:02}Z.pcapng", count - number + 1);
        let file = File::create(directory.path().join(name)).unwrap();
        file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(number)).unwrap();
    }
    directory
}

/// Runs the command; returns the seconds of the names that are left, and what it has printed.
fn run_before_start(directory: &Path, options: &str) -> (Vec<u64>, String) {
    let mut command = Command::new("sh");
    command.args(["-ec", &command_before_start()]).current_dir("/");
    let output = command.env("STATE_DIRECTORY", directory).env("OPTIONS", options).output().unwrap();
    assert!(output.status.success(), "{options}: {}", String::from_utf8_lossy(&output.stderr));
    let names =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut seconds: Vec<u64> = names.map(|name| name[24..26].parse().unwrap()).collect();
    seconds.sort_unstable();
    (seconds, String::from_utf8(output.stdout).unwrap())
}

#[test]
fn a_restart_leaves_the_newest_files_and_names_the_others() {
    let directory = directory_with_recordings(13);
    for removed in [vec!["01Z", "02Z", "03Z"], vec![]] {
        let (left, printed) = run_before_start(directory.path(), "--rotate-size 1GiB --files 10");
        assert_eq!(left, (4..=13).collect::<Vec<_>>());
        assert_eq!(printed.lines().count(), removed.len(), "{printed}");
        assert!(removed.iter().all(|end| printed.contains(end)), "{printed}");
    }
}

#[test]
fn a_unit_without_a_number_of_files_removes_none() {
    let directory = directory_with_recordings(13);
    for options in ["--rotate-time 1h", "", "--files"] {
        let (left, printed) = run_before_start(directory.path(), options);
        assert_eq!((left.len(), printed.as_str()), (13, ""), "{options}");
    }
}
