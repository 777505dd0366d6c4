//! Which suites are due: those whose inputs a change touched since their last run.

use super::ages::Age;
use super::rows::Run;
use crate::git::Git;
use crate::step::Failed;

/// The branch that changes are made for.
const MAIN: &str = "refs/remotes/origin/main";

/// A suite's last run, and how old it is.
#[derive(Debug)]
pub(super) struct Status {
    pub(super) suite: &'static str,
    /// Files and directories that decide the verdict.
    pub(super) inputs: Vec<String>,
    pub(super) run: Option<Run>,
    pub(super) age: Age,
}

/// The files that a change touched, by their paths.
#[derive(Debug)]
pub(super) struct Change {
    /// Since its start, committed or not.
    files: Vec<String>,
    uncommitted: Vec<String>,
}

impl Change {
    /// The change since a commit; without one since the branch left `origin/main`.
    pub(super) fn since(git: &Git, commit: Option<&str>) -> Result<Self, Failed> {
        let start = match commit {
            Some(commit) => {
                git.answer(&["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])
            }
            None => git.answer(&["merge-base", MAIN, "HEAD"]),
        };
        let start = start.map_err(|_| {
            match commit {
            Some(commit) => {
                Failed(format!("--since {commit}: there is no such commit; name one that 'git log' lists"))
            }
            None => Failed(
                "the change's start: no commit is shared with origin/main; name its start by '--since COMMIT'"
                    .to_owned(),
            ),
        }
        })?;
        Ok(Self { files: git.changed_since(&start)?, uncommitted: git.changed_since("HEAD")? })
    }
}

impl Status {
    fn is_touched_by(&self, files: &[String]) -> bool {
        let is_inside = |file: &str, input: &str| {
            file.strip_prefix(input).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        files.iter().any(|file| self.inputs.iter().any(|input| is_inside(file, input)))
    }

    /// Whether the suite passed with the inputs as they are now.
    fn is_current(&self, uncommitted: &[String]) -> bool {
        let is_good = |run: &Run| run.passed() && !run.has_changes;
        self.age == Age::Commits(0)
            && self.run.as_ref().is_some_and(is_good)
            && !self.is_touched_by(uncommitted)
    }
}

/// The suites that a change makes due, the one with the oldest row first.
pub(super) fn due(statuses: Vec<Status>, change: &Change) -> Vec<Status> {
    let mut due = statuses;
    due.retain(|status| status.is_touched_by(&change.files) && !status.is_current(&change.uncommitted));
    due.sort_by_key(|status| std::cmp::Reverse(status.age.rank()));
    due
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;
    use crate::git::tests::Repository;

    fn run(verdict: &str, commit: &str) -> Option<Run> {
        let row = format!("| a | {verdict} | {commit} | 2026-01-01 |");
        rows::parse(&format!("| suite | verdict | commit | date |\n|---|\n{row}")).unwrap().remove(0).run
    }

    fn status(suite: &'static str, input: &str, age: Age) -> Status {
        let run = (age != Age::NeverRun).then(|| run("passed", "1c89421").unwrap());
        Status { suite, inputs: vec![input.to_owned()], run, age }
    }

    fn change(files: &[&str], uncommitted: &[&str]) -> Change {
        let owned = |files: &[&str]| files.iter().map(|&file| file.to_owned()).collect();
        Change { files: owned(files), uncommitted: owned(uncommitted) }
    }

    fn names(due: &[Status]) -> Vec<&'static str> {
        due.iter().map(|status| status.suite).collect()
    }

    #[test]
    fn suites_with_touched_inputs_are_due_oldest_first() {
        let statuses = vec![
            status("young", "crates/a", Age::Commits(1)),
            status("never", "Cargo.lock", Age::NeverRun),
            status("untouched", "crates/b", Age::Commits(400)),
            status("similar name", "crates/a/src/lib", Age::NeverRun),
            status("unknown", "crates", Age::Unknown("shallow".into())),
            status("old", "crates/a/src", Age::Commits(301)),
        ];
        let due = due(statuses, &change(&["crates/a/src/lib.rs", "Cargo.lock"], &[]));
        assert_eq!(names(&due), ["never", "unknown", "old", "young"]);
    }

    #[test]
    fn a_suite_that_passed_with_the_change_is_not_due() {
        let is_due = |verdict: &str, commit: &str, uncommitted: &[&str]| {
            let status = Status { run: run(verdict, commit), ..status("a", "src", Age::Commits(0)) };
            !due(vec![status], &change(&["src/lib.rs"], uncommitted)).is_empty()
        };
        assert!(!is_due("passed; 3 passed", "1c89421", &["docs/nightly.md"]));
        assert!(is_due("FAILED; 1 failed", "1c89421", &[]));
        assert!(is_due("passed", "1c89421 and changes", &[]));
        assert!(is_due("passed", "1c89421", &["src/lib.rs"]));
    }

    #[test]
    fn a_change_begins_where_the_branch_left_main() {
        let Some(repository) = Repository::new_or_skip() else { return };
        let first = repository.commit("before");
        repository.run(&["update-ref", MAIN, "HEAD"]);
        repository.commit("committed");
        repository.write("before", "not committed");
        let of = |since| Change::since(&repository.git(), since).unwrap();
        assert_eq!(of(None).files, ["before", "committed"]);
        assert_eq!(of(None).uncommitted, ["before"]);
        assert_eq!(of(Some(&first)).files, of(None).files);
        assert_eq!(of(Some("HEAD")).files, ["before"]);
    }

    #[test]
    fn a_change_without_a_start_is_refused() {
        let Some(repository) = Repository::new_or_skip() else { return };
        let refused = |since| Change::since(&repository.git(), since).unwrap_err().to_string();
        assert!(refused(None).contains("'--since COMMIT'"));
        assert!(refused(Some("--all")).contains("no such commit"));
    }
}
