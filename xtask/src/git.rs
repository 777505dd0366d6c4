//! Questions to git, asked so that the user's settings do not change the answers.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::step::{CommandStep, Failed};
use crate::{senders, support};

/// The file with the verdicts of nightly suites, as rows of a table.
pub(crate) const VERDICTS: &str = "docs/nightly.md";

/// Variables by which git looks at something else than the directory: hooks of git run with some of them.
const ELSEWHERE: [&str; 6] = [
    "GIT_COMMON_DIR",
    "GIT_DIR",
    "GIT_INDEX_FILE",
    "GIT_LITERAL_PATHSPECS",
    "GIT_OBJECT_DIRECTORY",
    "GIT_WORK_TREE",
];

/// The current commit, marked if files differ from it; files that suites write do not count.
pub(crate) fn current_commit() -> String {
    let git =
        |arguments: &[&str]| CommandStep::new("git", "git", arguments).captured_output().unwrap_or_default();
    let others =
        [VERDICTS, senders::RESULTS, senders::DOCUMENT, support::DOCUMENT].map(|path| format!(":!{path}"));
    let what = ["status", "--porcelain", "--untracked-files=no", "--", "."];
    let changed = git(&[&what[..], &others.each_ref().map(String::as_str)].concat());
    let commit = git(&["rev-parse", "--short", "HEAD"]).trim().to_owned();
    if changed.trim().is_empty() { commit } else { format!("{commit} and changes") }
}

/// The repository around a directory.
#[derive(Debug)]
pub(crate) struct Git {
    directory: PathBuf,
}

impl Git {
    pub(crate) fn at(directory: &Path) -> Self {
        Self { directory: directory.to_owned() }
    }

    /// What a command prints, without white space at the end. Errors: it failed; the error has its messages.
    pub(crate) fn command_output(&self, arguments: &[&str]) -> Result<String, Failed> {
        let name = || format!("'git {}'", arguments.join(" "));
        let output =
            self.git_command(arguments).output().map_err(|error| Failed(format!("{}: {error}", name())))?;
        if !output.status.success() {
            let messages = String::from_utf8_lossy(&output.stderr);
            return Err(Failed(format!("{}: {}", name(), messages.trim_end())));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
    }

    /// The tracked files that differ between a commit and the working tree, by their paths.
    pub(crate) fn files_changed_since(&self, commit: &str) -> Result<Vec<String>, Failed> {
        // Without renames, a file that moved counts at both places.
        let what = ["diff", "--name-only", "--no-renames", "--no-ext-diff", "-z", commit, "--"];
        let names = self.command_output(&what)?;
        Ok(names.split('\0').filter(|name| !name.is_empty()).map(str::to_owned).collect())
    }

    fn git_command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("git");
        command.arg("-C").arg(&self.directory).args(arguments);
        for variable in ELSEWHERE {
            command.env_remove(variable);
        }
        command
    }
}

/// Repositories for tests.
#[cfg(test)]
pub(crate) mod tests {
    use std::fs;

    use nocopy_lab::Missing;

    use super::*;

    /// A new repository with a commit, in a directory that is removed with it.
    pub(crate) struct TemporaryRepository {
        directory: tempfile::TempDir,
    }

    impl TemporaryRepository {
        /// `None` after printing that git is missing.
        pub(crate) fn new_or_skip() -> Option<Self> {
            let repository = Self { directory: tempfile::tempdir().unwrap() };
            if repository.git().command_output(&["--version"]).is_err() {
                nocopy_lab::skip(&Missing::Device("git"));
                return None;
            }
            repository.run(&["init", "--quiet", "--template="]);
            repository.commit_change("first");
            Some(repository)
        }

        pub(crate) fn path(&self) -> &Path {
            self.directory.path()
        }

        pub(crate) fn git(&self) -> Git {
            Git::at(self.path())
        }

        pub(crate) fn write(&self, file: &str, text: &str) {
            let path = self.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Commits a change of a file; returns the commit's name.
        pub(crate) fn commit_change(&self, file: &str) -> String {
            let path = self.path().join(file);
            let text = fs::read_to_string(path).unwrap_or_default();
            self.write(file, &format!("{text}changed\n"));
            self.run(&["add", "--all"]);
            self.run(&["commit", "--quiet", "--message", file]);
            self.git().command_output(&["rev-parse", "HEAD"]).unwrap()
        }

        /// Runs git without the user's settings, at a fixed time.
        pub(crate) fn run(&self, arguments: &[&str]) {
            let mut command = self.git().git_command(arguments);
            for settings in ["COUNT", "GLOBAL", "PARAMETERS", "SYSTEM"] {
                command.env_remove(format!("GIT_CONFIG_{settings}"));
            }
            command.env("GIT_CONFIG_NOSYSTEM", "1");
            command.env("HOME", self.path()).env("XDG_CONFIG_HOME", self.path());
            for who in ["AUTHOR", "COMMITTER"] {
                command.env(format!("GIT_{who}_NAME"), "test").env(format!("GIT_{who}_EMAIL"), "test@test");
                command.env(format!("GIT_{who}_DATE"), "2026-01-01T00:00:00Z");
            }
            let output = command.output().unwrap();
            assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
        }
    }

    #[test]
    fn a_moved_file_has_changed_at_both_paths() {
        let Some(repository) = TemporaryRepository::new_or_skip() else { return };
        let before = repository.commit_change("a b/ö");
        repository.run(&["mv", "a b/ö", "moved"]);
        assert_eq!(repository.git().files_changed_since(&before).unwrap(), ["a b/ö", "moved"]);
        assert!(repository.git().files_changed_since("no-such-commit").is_err());
    }
}
