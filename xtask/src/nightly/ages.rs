//! The age of a row: how many commits since the suite's last run touch what decides its verdict.

use std::fmt;

use super::rows::RecordedRun;
use crate::git::Git;

/// Older rows are warned of.
const OLD: u64 = 100;

/// No issue is resolved while a row is older.
const OVERDUE: u64 = 300;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum VerdictAge {
    NeverRun,
    /// With the cause.
    Unknown(String),
    Commits(u64),
}

impl VerdictAge {
    pub(super) fn is_old(&self) -> bool {
        matches!(self, Self::NeverRun) || matches!(self, Self::Commits(count) if *count > OLD)
    }

    pub(super) fn is_overdue(&self) -> bool {
        matches!(self, Self::NeverRun) || matches!(self, Self::Commits(count) if *count > OVERDUE)
    }

    /// A number by which rows are sorted. A row of unknown age may be very old.
    pub(super) fn sort_rank(&self) -> (u8, u64) {
        match self {
            Self::NeverRun => (2, 0),
            Self::Unknown(_) => (1, 0),
            Self::Commits(count) => (0, *count),
        }
    }
}

impl fmt::Display for VerdictAge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NeverRun => f.write_str("never"),
            Self::Unknown(_) => f.write_str("unknown"),
            Self::Commits(count) => write!(f, "{count}"),
        }
    }
}

/// The commits from which ages are counted.
#[derive(Debug)]
pub(super) enum CommitHistory {
    Whole(Git),
    /// Why there are none.
    Missing(&'static str),
}

impl CommitHistory {
    pub(super) fn from_git(git: Git) -> Self {
        match git.command_output(&["rev-parse", "--is-shallow-repository"]).as_deref() {
            Ok("false") => Self::Whole(git),
            Ok(_) => Self::Missing("the clone is shallow; 'git fetch --unshallow' completes it"),
            Err(_) => Self::Missing("this is no clone of the repository, or git is missing"),
        }
    }

    /// How many commits after the run touch one of these paths.
    pub(super) fn age_of_run(&self, run: Option<&RecordedRun>, inputs: &[String]) -> VerdictAge {
        let Some(run) = run else { return VerdictAge::NeverRun };
        match self {
            Self::Missing(why) => VerdictAge::Unknown((*why).to_owned()),
            Self::Whole(git) => commits_since(git, &run.commit, inputs),
        }
    }
}

fn commits_since(git: &Git, commit: &str, inputs: &[String]) -> VerdictAge {
    // A commit of another branch is not counted from: other clones may lack it.
    if git.command_output(&["merge-base", "--is-ancestor", commit, "HEAD"]).is_err() {
        return VerdictAge::Unknown(format!("commit {commit} is not in the history of HEAD"));
    }
    let range = format!("{commit}..HEAD");
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    let count = git.command_output(&[&["rev-list", "--count", &range, "--"], &inputs[..]].concat());
    match count.map(|count| count.parse()) {
        Ok(Ok(count)) => VerdictAge::Commits(count),
        Ok(Err(error)) => VerdictAge::Unknown(error.to_string()),
        Err(failed) => VerdictAge::Unknown(failed.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::super::rows;
    use super::*;
    use crate::git::tests::TemporaryRepository;

    fn run_at_commit(commit: &str) -> Option<RecordedRun> {
        let text =
            format!("| suite | verdict | commit | date |\n|---|\n| a | passed | {commit} | 2026-01-01 |");
        rows::parse_table(&text).unwrap().remove(0).run
    }

    fn age_in_repository(repository: &TemporaryRepository, commit: &str) -> VerdictAge {
        let inputs = ["src", "Cargo.lock"].map(str::to_owned);
        CommitHistory::from_git(repository.git()).age_of_run(run_at_commit(commit).as_ref(), &inputs)
    }

    #[test]
    fn only_commits_that_touch_an_input_count() {
        let Some(repository) = TemporaryRepository::new_or_skip() else { return };
        let commit = repository.commit_change("src/lib.rs");
        assert_eq!(age_in_repository(&repository, &commit), VerdictAge::Commits(0));
        for file in ["docs/a.md", "src/lib.rs", "src2", "Cargo.lock", "src/deep/b.rs"] {
            repository.commit_change(file);
        }
        assert_eq!(age_in_repository(&repository, &commit), VerdictAge::Commits(3));
        assert_eq!(age_in_repository(&repository, &commit[..8]), VerdictAge::Commits(3));
        assert_eq!(CommitHistory::from_git(repository.git()).age_of_run(None, &[]), VerdictAge::NeverRun);
    }

    #[test]
    fn a_commit_outside_of_the_history_has_no_age() {
        let Some(repository) = TemporaryRepository::new_or_skip() else { return };
        repository.run(&["checkout", "--quiet", "-b", "other"]);
        let other = repository.commit_change("src/lib.rs");
        repository.run(&["checkout", "--quiet", "-b", "new", "HEAD^"]);
        for commit in [other.as_str(), "0123abcd"] {
            let VerdictAge::Unknown(why) = age_in_repository(&repository, commit) else {
                panic!("{commit} has an age")
            };
            assert!(why.contains(commit) && why.contains("not in the history"), "{why}");
        }
    }

    #[test]
    fn a_clone_without_history_has_no_ages() {
        let Some(repository) = TemporaryRepository::new_or_skip() else { return };
        let commit = repository.commit_change("src/lib.rs");
        fs::write(repository.path().join(".git/shallow"), format!("{commit}\n")).unwrap();
        let VerdictAge::Unknown(why) = age_in_repository(&repository, &commit) else {
            panic!("a shallow clone has ages")
        };
        assert!(why.contains("shallow"), "{why}");
        let nothing = tempfile::tempdir().unwrap();
        assert!(matches!(
            CommitHistory::from_git(Git::at(&nothing.path().join("none"))),
            CommitHistory::Missing(_)
        ));
    }

    #[test]
    fn an_age_at_a_limit_is_not_yet_old_or_overdue() {
        assert!(!VerdictAge::Commits(100).is_old() && VerdictAge::Commits(101).is_old());
        assert!(!VerdictAge::Commits(300).is_overdue() && VerdictAge::Commits(301).is_overdue());
        assert!(VerdictAge::NeverRun.is_old() && VerdictAge::NeverRun.is_overdue());
        let unknown = VerdictAge::Unknown(String::new());
        assert!(!unknown.is_old() && !unknown.is_overdue());
    }
}
