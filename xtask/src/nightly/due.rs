//! Which suites are due: those whose inputs a change touched since their last run.

use super::ages::VerdictAge;
use super::rows::RecordedRun;
use crate::git::Git;
use crate::step::Failed;

/// The branch that changes are made for.
const MAIN: &str = "refs/remotes/origin/main";

/// A suite's last run, and how old it is.
#[derive(Debug)]
pub(super) struct SuiteStatus {
    pub(super) suite: &'static str,
    /// Files and directories that decide the verdict.
    pub(super) inputs: Vec<String>,
    pub(super) run: Option<RecordedRun>,
    pub(super) age: VerdictAge,
}

/// The files that a change touched, by their paths.
#[derive(Debug)]
pub(super) struct TouchedFiles {
    /// Since its start, committed or not.
    files: Vec<String>,
    uncommitted: Vec<String>,
}

impl TouchedFiles {
    /// The change since a commit; without one since the branch left `origin/main`.
    pub(super) fn since(git: &Git, commit: Option<&str>) -> Result<Self, Failed> {
        let start = match commit {
            Some(commit) => {
                git.command_output(&["rev-parse", "--verify", "--quiet", &format!("{commit}^{{commit}}")])
            }
            None => git.command_output(&["merge-base", MAIN, "HEAD"]),
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
        Ok(Self { files: git.files_changed_since(&start)?, uncommitted: git.files_changed_since("HEAD")? })
    }
}

impl SuiteStatus {
    fn is_touched_by(&self, files: &[String]) -> bool {
        let is_inside = |file: &str, input: &str| {
            file.strip_prefix(input).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        files.iter().any(|file| self.inputs.iter().any(|input| is_inside(file, input)))
    }

    /// Whether the suite passed with the inputs as they are now.
    fn has_passed_with_current_inputs(&self, uncommitted: &[String]) -> bool {
        let is_good = |run: &RecordedRun| run.passed() && !run.has_changes;
        self.age == VerdictAge::Commits(0)
            && self.run.as_ref().is_some_and(is_good)
            && !self.is_touched_by(uncommitted)
    }
}

/// The suites that a change makes due, the one with the oldest row first.
pub(super) fn due_suites(statuses: Vec<SuiteStatus>, change: &TouchedFiles) -> Vec<SuiteStatus> {
    let mut due = statuses;
    due.retain(|status| {
        status.is_touched_by(&change.files) && !status.has_passed_with_current_inputs(&change.uncommitted)
    });
    due.sort_by_key(|status| std::cmp::Reverse(status.age.sort_rank()));
    due
}

#[cfg(test)]
mod tests {
    use super::super::rows;
    use super::*;
    use crate::git::tests::TemporaryRepository;

    fn run_with_verdict(verdict: &str, commit: &str) -> Option<RecordedRun> {
        let row = format!("| a | {verdict} | {commit} | 2026-01-01 |");
        rows::parse_table(&format!("| suite | verdict | commit | date |\n|---|\n{row}"))
            .unwrap()
            .remove(0)
            .run
    }

    fn suite_status(suite: &'static str, input: &str, age: VerdictAge) -> SuiteStatus {
        let run = (age != VerdictAge::NeverRun).then(|| run_with_verdict("passed", "1c89421").unwrap());
        SuiteStatus { suite, inputs: vec![input.to_owned()], run, age }
    }

    fn touched_files(files: &[&str], uncommitted: &[&str]) -> TouchedFiles {
        let owned = |files: &[&str]| files.iter().map(|&file| file.to_owned()).collect();
        TouchedFiles { files: owned(files), uncommitted: owned(uncommitted) }
    }

    fn suite_names(due: &[SuiteStatus]) -> Vec<&'static str> {
        due.iter().map(|status| status.suite).collect()
    }

    #[test]
    fn suites_with_touched_inputs_are_due_oldest_first() {
        let statuses = vec![
            suite_status("young", "crates/a", VerdictAge::Commits(1)),
            suite_status("never", "Cargo.lock", VerdictAge::NeverRun),
            suite_status("untouched", "crates/b", VerdictAge::Commits(400)),
            suite_status("similar name", "crates/a/src/lib", VerdictAge::NeverRun),
            suite_status("unknown", "crates", VerdictAge::Unknown("shallow".into())),
            suite_status("old", "crates/a/src", VerdictAge::Commits(301)),
        ];
        let due = due_suites(statuses, &touched_files(&["crates/a/src/lib.rs", "Cargo.lock"], &[]));
        assert_eq!(suite_names(&due), ["never", "unknown", "old", "young"]);
    }

    #[test]
    fn a_suite_that_passed_with_the_change_is_not_due() {
        let is_due = |verdict: &str, commit: &str, uncommitted: &[&str]| {
            let status = SuiteStatus {
                run: run_with_verdict(verdict, commit),
                ..suite_status("a", "src", VerdictAge::Commits(0))
            };
            !due_suites(vec![status], &touched_files(&["src/lib.rs"], uncommitted)).is_empty()
        };
        assert!(!is_due("passed; 3 passed", "1c89421", &["docs/nightly.md"]));
        assert!(is_due("FAILED; 1 failed", "1c89421", &[]));
        assert!(is_due("passed", "1c89421 and changes", &[]));
        assert!(is_due("passed", "1c89421", &["src/lib.rs"]));
    }

    #[test]
    fn a_change_begins_where_the_branch_left_main() {
        let Some(repository) = TemporaryRepository::new_or_skip() else { return };
        let first = repository.commit_change("before");
        repository.run(&["update-ref", MAIN, "HEAD"]);
        repository.commit_change("committed");
        repository.write("before", "not committed");
        let of = |since| TouchedFiles::since(&repository.git(), since).unwrap();
        assert_eq!(of(None).files, ["before", "committed"]);
        assert_eq!(of(None).uncommitted, ["before"]);
        assert_eq!(of(Some(&first)).files, of(None).files);
        assert_eq!(of(Some("HEAD")).files, ["before"]);
    }

    #[test]
    fn a_change_without_a_start_is_refused() {
        let Some(repository) = TemporaryRepository::new_or_skip() else { return };
        let refused = |since| TouchedFiles::since(&repository.git(), since).unwrap_err().to_string();
        assert!(refused(None).contains("'--since COMMIT'"));
        assert!(refused(Some("--all")).contains("no such commit"));
    }
}
