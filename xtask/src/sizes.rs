//! The lines of the code of messages, tests included: they only become fewer until the design's limits are
//! reached.

use std::path::Path;

use crate::gate::Outcome;
use crate::imports::{read_source, rust_files_below};
use crate::step::{Failed, repository_root};

/// A directory with the most lines that it may have now, and in the end.
#[derive(Debug)]
struct LineLimit {
    directory: &'static str,
    now: usize,
    /// As the design *One road for a message* has it.
    goal: usize,
}

const LIMITS: [LineLimit; 3] = [
    LineLimit { directory: "crates/nocopy-proto/src/message", now: 18_500, goal: 11_300 },
    LineLimit { directory: "crates/nocopy/src/message", now: 15_200, goal: 5_620 },
    LineLimit { directory: "crates/nocopy/tests/messages", now: 2_850, goal: 1_050 },
];

/// By how much a limit may be above what is there: whoever deletes more lowers it.
const SLACK: usize = 200;

pub(crate) fn check_message_lines() -> Outcome {
    let check_all = || {
        let mut complaints = Vec::new();
        for limit in &LIMITS {
            complaints.extend(limit.complaint(count_lines(&repository_root().join(limit.directory))?));
        }
        if complaints.is_empty() { Ok(()) } else { Err(Failed(complaints.join("\n"))) }
    };
    check_all().into()
}

fn count_lines(directory: &Path) -> Result<usize, Failed> {
    rust_files_below(directory)?.iter().map(|path| Ok(read_source(path)?.lines().count())).sum()
}

impl LineLimit {
    fn complaint(&self, lines: usize) -> Option<String> {
        let Self { directory, now, goal } = *self;
        if lines > now {
            return Some(format!(
                "{directory}: {lines} lines are over the limit of {now}; delete what the change replaces"
            ));
        }
        (lines + SLACK < now && now > goal).then(|| {
            format!("{directory}: {lines} lines are left; lower its limit of {now} (xtask/src/sizes.rs)")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_lines_are_refused_and_fewer_lower_the_limit() {
        let limit = LineLimit { directory: "here", now: 1000, goal: 700 };
        assert_eq!([1000, 1000 - SLACK].map(|lines| limit.complaint(lines)), [None, None]);
        assert!(limit.complaint(1001).is_some_and(|words| words.contains("over the limit of 1000")));
        assert!(limit.complaint(999 - SLACK).is_some_and(|words| words.contains("lower its limit")));
        let reached = LineLimit { now: 700, ..limit };
        assert_eq!(reached.complaint(100), None);
    }
}
