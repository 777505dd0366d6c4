//! The results as lines of JSON and as a table.

use std::fs;

use serde::Serialize;

use super::runs::Sent;
use super::{DOCUMENT, RESULTS};
use crate::step::{CommandStep, Failed, root};

/// The line after a table of the document.
const END: &str = "<!-- end -->";

/// The line before the table of a suite.
fn begin(suite: &str) -> String {
    format!("<!-- cargo xtask nightly {suite} -->")
}

#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
    pub(super) version: String,
    #[serde(flatten)]
    pub(super) sent: Sent,
}

#[derive(Serialize)]
#[serde(tag = "line", rename_all = "lowercase")]
enum Line<'a> {
    Header {
        schema: &'static str,
        command: &'static str,
        measured_at: String,
        kernel: String,
        processors: usize,
    },
    Row(&'a Row),
}

/// Writes the table and the file with the results.
pub(super) fn write(rows: &[Row]) -> Result<(), Failed> {
    let asked = |program, argument| CommandStep::new(program, program, &[argument]).captured();
    let header = Line::Header {
        schema: "nocopy.senders/1",
        command: "cargo xtask nightly senders",
        measured_at: asked("date", "--utc")?.trim().to_owned(),
        kernel: asked("uname", "-r")?.trim().to_owned(),
        processors: crate::suite::processors(),
    };
    let lines = std::iter::once(header).chain(rows.iter().map(Line::Row));
    let json = |line: Line<'_>| serde_json::to_string(&line).expect("numbers and strings") + "\n";
    change(RESULTS, |_| Ok(lines.map(json).collect()))?;
    write_table(DOCUMENT, "senders", &table(rows))
}

/// Puts the table of a suite into a document.
pub(crate) fn write_table(document: &str, suite: &str, table: &str) -> Result<(), Failed> {
    change(document, |text| {
        let missing = || Failed(format!("{document}: has no line '{}'", begin(suite)));
        with_table(text, &begin(suite), table).ok_or_else(missing)
    })
}

fn change(path: &str, changed: impl FnOnce(&str) -> Result<String, Failed>) -> Result<(), Failed> {
    let text = fs::read_to_string(root().join(path)).unwrap_or_default();
    let text = changed(&text)?;
    fs::write(root().join(path), text).map_err(|error| Failed(format!("{path}: {error}")))
}

/// The document with another table between its two lines.
fn with_table(text: &str, begin: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n{table}{END}{after}"))
}

fn table(rows: &[Row]) -> String {
    let head = "| program | datagrams | bytes | calls | in runs of 8 and more | of 64 and more | longest run | mostly ended by |\n\
                |---|---|---|---|---|---|---|---|\n";
    let all: Vec<String> = rows.iter().map(row).collect();
    head.to_owned() + &all.concat()
}

fn row(Row { program, sent, .. }: &Row) -> String {
    let calls: Vec<&str> = sent.calls.keys().copied().collect();
    let percent = |least| format!("{:.0} %", 100.0 * sent.share(least));
    let others = if sent.sizes > 1 { format!(" (of {} sizes)", sent.sizes) } else { String::new() };
    let own = match (sent.own_bursts > 0, sent.with_control_data > 0) {
        (true, _) => ", its own bursts",
        (_, true) => ", with control data",
        _ => "",
    };
    format!(
        "| {program} | {} | {}{others} | `{}`{own} | {} | {} | {} | {} |\n",
        sent.datagrams,
        sent.bytes,
        calls.join("`, `"),
        percent(8),
        percent(64),
        sent.longest_run,
        sent.mostly_ended_by()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_the_one_before() {
        let [one, other] = ["one", "other"].map(begin);
        let text = |of_other| format!("a\n{one}\n| one |\n{END}\nb\n{other}\n| {of_other} |\n{END}\nc\n");
        assert_eq!(with_table(&text("old"), &other, "| new |\n"), Some(text("new")));
        assert_eq!(with_table("no table", &one, ""), None);
    }
}
