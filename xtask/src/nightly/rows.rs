//! The rows of docs/nightly.md: what each suite's last run found, and at which commit.

use crate::step::Failed;

/// The verdict of a suite that has a row and no run yet.
const NEVER_RUN: &str = "never run";

/// Follows the commit if files differed from it.
const AND_CHANGES: &str = " and changes";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct VerdictRow {
    pub(super) suite: String,
    /// `None`: never run.
    pub(super) run: Option<RecordedRun>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RecordedRun {
    verdict: String,
    pub(super) commit: String,
    /// Files differed from the commit.
    pub(super) has_changes: bool,
}

impl RecordedRun {
    pub(super) fn passed(&self) -> bool {
        self.verdict == "passed"
    }

    /// The verdict and the commit.
    pub(super) fn verdict_and_commit(&self) -> String {
        let changes = if self.has_changes { AND_CHANGES } else { "" };
        format!("{} at {}{changes}", self.verdict, self.commit)
    }
}

impl VerdictRow {
    fn parse(line: &str) -> Option<Self> {
        let cells = line.strip_prefix('|')?.strip_suffix('|')?;
        let (suite, cells) = cells.split_once('|')?;
        // A remark may have a bar.
        let [_date, commit, verdict] = cells.rsplitn(3, '|').collect::<Vec<_>>()[..] else { return None };
        let (suite, commit) = (suite.trim().to_owned(), commit.trim());
        let verdict = verdict.split(';').next().unwrap_or_default().trim().to_owned();
        if verdict == NEVER_RUN {
            return Some(Self { suite, run: None });
        }
        let bare = commit.strip_suffix(AND_CHANGES);
        let (commit, has_changes) = (bare.unwrap_or(commit), bare.is_some());
        let is_commit = commit.len() >= 4 && commit.bytes().all(|byte| byte.is_ascii_hexdigit());
        is_commit.then(|| Self {
            suite,
            run: Some(RecordedRun { verdict, commit: commit.to_owned(), has_changes }),
        })
    }
}

/// The rows of the table.
pub(super) fn parse_table(text: &str) -> Result<Vec<VerdictRow>, Failed> {
    let lines = text.lines().filter(|line| line.starts_with('|')).skip(2); // its head, and a rule
    let row = |line: &str| {
        VerdictRow::parse(line).ok_or_else(|| {
            Failed(format!("nightly rows: not '| suite | verdict | commit | date |' or '| suite | {NEVER_RUN} | | |': {line}"))
        })
    };
    lines.map(row).collect()
}

/// What is wrong where suites and rows do not belong together.
pub(super) fn unpaired_rows_and_suites(rows: &[VerdictRow], suites: &[&str]) -> Vec<String> {
    let mut found = Vec::new();
    for suite in suites {
        match rows.iter().filter(|row| row.suite == **suite).count() {
            0 => found.push(format!("suite {suite}: has no row; add '| {suite} | {NEVER_RUN} | | |'")),
            1 => {}
            count => found.push(format!("suite {suite}: has {count} rows; remove all but the newest")),
        }
    }
    let without_suite = rows.iter().filter(|row| !suites.contains(&row.suite.as_str()));
    found.extend(without_suite.map(|row| {
        format!("row {}: there is no such suite; a row is removed only together with its suite", row.suite)
    }));
    found
}

/// The text with the row of this name replaced, or added at the end.
pub(super) fn with_row(text: &str, name: &str, row: &str) -> String {
    let start = format!("| {name} |");
    let mut lines: Vec<&str> = text.lines().collect();
    match lines.iter_mut().find(|line| line.starts_with(&start)) {
        Some(line) => *line = row,
        None => lines.push(row),
    }
    lines.join("\n") + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "# Table\n\n| suite | verdict | commit | date |\n|---|---|---|---|\n";

    fn parse_row(line: &str) -> VerdictRow {
        parse_table(&format!("{HEAD}{line}\n")).unwrap().remove(0)
    }

    #[test]
    fn a_row_has_its_verdict_and_commit() {
        let plain = parse_row("| a | passed; 3 passed; a | b | 1c89421 | 2026-11-23 |");
        let run = plain.run.unwrap();
        assert_eq!((plain.suite.as_str(), run.verdict_and_commit().as_str()), ("a", "passed at 1c89421"));
        assert!(run.passed() && !run.has_changes);
        let run = parse_row("| a | FAILED; 1 failed | 1c89421 and changes | 2026-11-23 |").run.unwrap();
        assert_eq!(
            (run.verdict_and_commit().as_str(), run.commit.as_str()),
            ("FAILED at 1c89421 and changes", "1c89421")
        );
        assert!(!run.passed() && run.has_changes);
        assert_eq!(parse_row("| a | never run | | |"), VerdictRow { suite: "a".into(), run: None });
        assert_eq!(parse_row("| a | never run | – | – |").run, None);
    }

    #[test]
    fn other_lines_of_the_table_are_refused() {
        for line in
            ["| a | passed | |", "| a | passed | main | 2026-11-23 |", "| a | passed | 1c89421 | 2026"]
        {
            let Failed(text) = parse_table(&format!("{HEAD}{line}\n")).unwrap_err();
            assert!(text.ends_with(line), "{text}");
        }
        assert_eq!(parse_table(HEAD).unwrap(), []);
    }

    #[test]
    fn rows_and_suites_come_in_pairs() {
        let rows = ["a", "b", "b"].map(|suite| VerdictRow { suite: suite.into(), run: None });
        assert_eq!(unpaired_rows_and_suites(&rows[..2], &["b", "a"]), [""; 0]);
        let found = unpaired_rows_and_suites(&rows, &["b", "c"]);
        let starts = ["suite b: has 2 rows", "suite c: has no row", "row a: there is no such suite"];
        assert_eq!(found.len(), starts.len());
        for (found, start) in found.iter().zip(starts) {
            assert!(found.starts_with(start), "{found}");
        }
    }

    #[test]
    fn a_verdict_replaces_the_one_before() {
        let text = "# Table\n\n| a | old |\n| b | old |\n";
        assert_eq!(with_row(text, "a", "| a | new |"), "# Table\n\n| a | new |\n| b | old |\n");
        assert_eq!(with_row(text, "c", "| c | new |"), format!("{text}| c | new |\n"));
    }
}
