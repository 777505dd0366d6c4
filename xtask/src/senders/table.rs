//! The results as lines of JSON and as a table.

use serde::Serialize;

use super::runs::SendRecord;
use super::{DOCUMENT, RESULTS};
use crate::step::{CommandStep, Failed, repository_root, write_file};
use crate::tables::write_table;

#[derive(Debug, Serialize)]
pub(super) struct SenderRow {
    pub(super) program: &'static str,
    pub(super) package: &'static str,
    pub(super) version: String,
    #[serde(flatten)]
    pub(super) sent: SendRecord,
}

#[derive(Serialize)]
#[serde(tag = "line", rename_all = "lowercase")]
enum ResultLine<'a> {
    Header {
        schema: &'static str,
        command: &'static str,
        measured_at: String,
        kernel: String,
        processors: usize,
    },
    Row(&'a SenderRow),
}

/// Writes the table and the file with the results.
pub(super) fn write_results(rows: &[SenderRow]) -> Result<(), Failed> {
    let asked = |program, argument| CommandStep::new(program, program, &[argument]).captured_output();
    let header = ResultLine::Header {
        schema: "nocopy.senders/1",
        command: "cargo xtask nightly senders",
        measured_at: asked("date", "--utc")?.trim().to_owned(),
        kernel: asked("uname", "-r")?.trim().to_owned(),
        processors: crate::suite::processor_count(),
    };
    let lines = std::iter::once(header).chain(rows.iter().map(ResultLine::Row));
    let json = |line: ResultLine<'_>| serde_json::to_string(&line).expect("numbers and strings") + "\n";
    write_file(&repository_root().join(RESULTS), lines.map(json).collect::<String>())?;
    write_table(DOCUMENT, "nightly senders", &markdown_table(rows))
}

fn markdown_table(rows: &[SenderRow]) -> String {
    let head = "| program | datagrams | bytes | calls | in runs of 8 and more | of 64 and more | longest run | mostly ended by |\n\
                |---|---|---|---|---|---|---|---|\n";
    let all: Vec<String> = rows.iter().map(markdown_row).collect();
    head.to_owned() + &all.concat()
}

fn markdown_row(SenderRow { program, sent, .. }: &SenderRow) -> String {
    let calls: Vec<&str> = sent.calls.keys().copied().collect();
    let percent = |least| format!("{:.0} %", 100.0 * sent.share_in_runs_of(least));
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
