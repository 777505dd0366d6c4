//! The commit that results are noted with.

use crate::senders;
use crate::step::Step;

/// The file with the verdicts of nightly suites, as rows of a table.
pub(crate) const VERDICTS: &str = "docs/nightly.md";

/// The current commit, marked if files differ from it; files that suites write do not count.
pub(crate) fn commit() -> String {
    let git = |arguments: &[&str]| Step::new("git", "git", arguments).captured().unwrap_or_default();
    let others = [VERDICTS, senders::RESULTS, senders::DOCUMENT].map(|path| format!(":!{path}"));
    let what = ["status", "--porcelain", "--untracked-files=no", "--", "."];
    let changed = git(&[&what[..], &others.each_ref().map(String::as_str)].concat());
    let commit = git(&["rev-parse", "--short", "HEAD"]).trim().to_owned();
    if changed.trim().is_empty() { commit } else { format!("{commit} and changes") }
}
