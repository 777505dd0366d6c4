//! The summary of a command: why it ended, a table for people or JSON for programs, and an exit code.

use serde::Serialize;

use crate::Outcome;
use crate::table::Table;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum CommandEnd {
    /// Everything was sent, or received from a sender that was done.
    Done,
    /// The requested number was reached.
    Count,
    /// The requested time was over.
    Duration,
    Interrupted,
    /// The receiver reached its limit.
    ByReceiver,
    /// The other end closed its connections without reporting that it was done.
    Disconnected,
    /// Nothing more was received from the other end.
    Timeout,
    Failed,
}

impl CommandEnd {
    /// This reason, unless the command itself failed.
    #[must_use]
    pub fn unless_failed(self, other: Self) -> Self {
        if self == Self::Failed { self } else { other }
    }

    /// The end of a sentence about the result.
    pub fn words(self) -> &'static str {
        match self {
            Self::Done | Self::Count => "",
            Self::Duration => ", time is up",
            Self::Interrupted => ", interrupted",
            Self::ByReceiver => ", then the receiver ended",
            Self::Disconnected => ", then the other end disconnected without reporting that it is done",
            Self::Timeout => {
                ", then a timeout: the other end sent nothing more, and did not report that it is done"
            }
            Self::Failed => ", then it failed",
        }
    }
}

/// The JSON summary of a command; a field that does not apply is absent.
pub trait Summary: Serialize {
    /// The name of the JSON's schema. It changes when a field is removed or changes its meaning.
    const SCHEMA: &'static str;

    /// Whether its JSON is one line, for programs that read line by line.
    const IS_ONE_LINE: bool = false;

    fn table(&self) -> Table;

    /// Text below the table.
    fn details(&self) -> String {
        String::new()
    }

    fn outcome(&self) -> Outcome;
}

#[derive(Serialize)]
struct JsonDocument<'a, S> {
    schema: &'static str,
    #[serde(flatten)]
    summary: &'a S,
}

/// The summary as it is printed.
pub fn summary_text<S: Summary>(summary: &S, json: bool) -> String {
    if json { json_text(summary) } else { table_text(summary) }
}

fn json_text<S: Summary>(summary: &S) -> String {
    let document = JsonDocument { schema: S::SCHEMA, summary };
    let text = match S::IS_ONE_LINE {
        true => serde_json::to_string(&document),
        false => serde_json::to_string_pretty(&document),
    };
    text.expect("numbers and strings are JSON") + "\n"
}

fn table_text(summary: &impl Summary) -> String {
    let table = summary.table();
    let table = if table.rows.is_empty() { String::new() } else { table.text() };
    table + &summary.details()
}

/// Lines that belong to the line above them.
pub fn indented_lines(lines: &[String]) -> String {
    lines.iter().map(|line| format!("   {line}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct SentSummary {
        ended: CommandEnd,
        bytes: u64,
    }

    impl Summary for SentSummary {
        const SCHEMA: &'static str = "nocopy.example/1";

        fn table(&self) -> Table {
            let said = format!("{} bytes{}", self.bytes, self.ended.words());
            vec![("sent".to_owned(), said), ("a longer name".into(), "x".into())].into()
        }

        fn details(&self) -> String {
            indented_lines(&["why".into()])
        }

        fn outcome(&self) -> Outcome {
            Outcome::Negative
        }
    }

    const SENT: SentSummary = SentSummary { ended: CommandEnd::ByReceiver, bytes: 7 };

    #[test]
    fn json_has_the_schema_before_the_fields() {
        let text = json_text(&SENT);
        assert_eq!(
            text,
            "{\n  \"schema\": \"nocopy.example/1\",\n  \"ended\": \"by-receiver\",\n  \"bytes\": 7\n}\n"
        );
    }

    #[test]
    fn tables_have_a_line_for_each_row_and_details_below() {
        let text = table_text(&SENT);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 3, "{text}");
        assert!(lines[0].ends_with("7 bytes, then the receiver ended") && lines[1].ends_with(" x"), "{text}");
        assert_eq!(lines[0].find("7 bytes"), lines[1].find('x'), "aligned: {text}");
        assert_eq!(lines[2], "   why");
    }

    #[test]
    fn a_failure_is_reported_before_any_other_end() {
        assert_eq!(CommandEnd::Failed.unless_failed(CommandEnd::Disconnected), CommandEnd::Failed);
        assert_eq!(CommandEnd::Done.unless_failed(CommandEnd::Disconnected), CommandEnd::Disconnected);
    }
}
