//! Results of a bench as JSON Lines, the schema `nocopy.bench/3`: a header, a line for each row once it is
//! measured, and an end.

use serde::de::Error as _;
use serde::{Deserialize, Serialize};

use crate::receive_analysis::ReceiveAnalysis;
use crate::result::{Card, Machine, Report, Row, SCHEMA};
use crate::result_file::{LineFile, ResultFile};
use crate::{Failure, print};

/// The note that a reader adds if the end is missing.
const KILLED: &str =
    "KILLED: these results have no last line: the run did not come to its end, and rows are missing.";

#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "kebab-case")]
enum ResultLine {
    Header(Box<RunHeader>),
    Row(Box<Row>),
    ReceiveAnalysis(Box<ReceiveAnalysis>),
    Card(Box<Card>),
    End(RunEnd),
    /// A line of a later version.
    #[serde(other)]
    Unknown,
}

/// The first line.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct RunHeader {
    pub schema: String,
    /// The command that repeats the measurement.
    pub command: String,
    pub arguments: RunArguments,
    /// UTC, to the second: when it began.
    pub measured_at: String,
    pub machine: Machine,
}

impl RunHeader {
    /// The header of a run that begins now.
    pub fn new(command: String, arguments: RunArguments, measured_at: String, machine: Machine) -> Self {
        Self { schema: SCHEMA.into(), command, arguments, measured_at, machine }
    }

    pub fn into_report(self, notes: Vec<String>, results: Vec<Row>) -> Report {
        let Self { schema, command, measured_at, machine, .. } = self;
        Report { schema, command, measured_at, machine, notes, results, receive_analysis: None, card: None }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunArguments {
    pub workloads: Vec<String>,
    /// Empty: all.
    pub methods: Vec<String>,
    /// The most rounds.
    pub rounds: u32,
}

/// The last line.
#[derive(Debug, Serialize, Deserialize)]
pub struct RunEnd {
    pub ended: Completeness,
    /// Measurements that were not possible, and other remarks for the reader.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Completeness {
    /// Everything was measured, except for what the notes say.
    Complete,
    /// By a signal or an error.
    Interrupted,
}

/// Writes results one by one; each line is in the file when its call returns.
#[derive(Debug)]
pub struct ResultLines(LineFile);

impl ResultLines {
    pub fn begin_with_header(file: ResultFile, header: &RunHeader) -> Result<Self, Failure> {
        let mut lines = Self(file.into_line_file()?);
        lines.write_line(&ResultLine::Header(Box::new(header.clone())))?;
        Ok(lines)
    }

    pub fn write_row(&mut self, row: &Row) -> Result<(), Failure> {
        self.write_line(&ResultLine::Row(Box::new(row.clone())))
    }

    pub fn write_receive_analysis(&mut self, analysis: &ReceiveAnalysis) -> Result<(), Failure> {
        self.write_line(&ResultLine::ReceiveAnalysis(Box::new(analysis.clone())))
    }

    pub fn write_card(&mut self, card: &Card) -> Result<(), Failure> {
        self.write_line(&ResultLine::Card(Box::new(card.clone())))
    }

    pub fn write_end(mut self, ended: Completeness, notes: &[String]) -> Result<(), Failure> {
        self.write_line(&ResultLine::End(RunEnd { ended, notes: notes.into() }))
    }

    fn write_line(&mut self, line: &ResultLine) -> Result<(), Failure> {
        self.0.write(&serde_json::to_string(line).map_err(|source| Failure::Print(source.into()))?)
    }
}

/// Reads the output of [`ResultLines`], even if it was killed before the end.
///
/// # Errors
/// The error for a line that is not one of these, with its number.
pub fn read_report(text: &[u8]) -> Result<Report, serde_json::Error> {
    let (mut header, mut results, mut end) = (None, Vec::new(), None);
    let (mut receive_analysis, mut card) = (None, None);
    for (line, number) in text.split_inclusive(|&byte| byte == b'\n').zip(1..) {
        let is_cut = number > 1 && !line.ends_with(b"\n");
        let wrong = |why: &dyn std::fmt::Display| serde_json::Error::custom(format!("line {number}: {why}"));
        match print::parse_untrusted_json(line) {
            Ok(ResultLine::Header(_)) if header.is_some() => {
                return Err(wrong(&"a second header, where results of one run belong"));
            }
            Ok(ResultLine::Header(first)) => header = Some(*first),
            Ok(ResultLine::Row(row)) => results.push(*row),
            Ok(ResultLine::ReceiveAnalysis(analysis)) => receive_analysis = Some(*analysis),
            Ok(ResultLine::Card(line)) => card = Some(*line),
            Ok(ResultLine::End(last)) => end = Some(last),
            Ok(ResultLine::Unknown) => {}
            Err(_) if is_cut => break,
            Err(error) => return Err(wrong(&error)),
        }
    }
    let header: RunHeader = header.ok_or_else(|| serde_json::Error::custom("no header in the first line"))?;
    let notes = end.map_or_else(|| vec![KILLED.into()], |end: RunEnd| end.notes);
    Ok(Report { receive_analysis, card, ..header.into_report(notes, results) })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;
    use crate::sample;

    fn sample_header() -> RunHeader {
        let Report { command, measured_at, machine, .. } = sample::report_with_rows(Vec::new());
        let arguments = RunArguments { workloads: vec!["capture".into()], methods: Vec::new(), rounds: 9 };
        RunHeader::new(command, arguments, measured_at, machine)
    }

    /// The text of the file that `write` writes, complete or not.
    fn written_text(name: &str, write: impl FnOnce(ResultLines)) -> String {
        let name = format!("nocopy-lines-{name}-{}", std::process::id());
        let path: PathBuf = std::env::temp_dir().join(name);
        write(
            ResultLines::begin_with_header(ResultFile::open(&path, false).unwrap(), &sample_header())
                .unwrap(),
        );
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        text
    }

    fn sample_row(method: &str) -> Row {
        sample::row_with_rate("capture", method, 1e6)
    }

    #[test]
    fn results_survive_a_round_trip() {
        let notes = ["Not measured.".to_owned()];
        let text = written_text("whole", |mut lines| {
            lines.write_row(&sample_row("xdp")).unwrap();
            lines.write_row(&sample_row("ring")).unwrap();
            lines.write_end(Completeness::Complete, &notes).unwrap();
        });
        assert_eq!(text.lines().count(), 4);
        assert!(text.starts_with(r#"{"line":"header","schema":"nocopy.bench/3","#), "{text}");
        assert!(text.ends_with("{\"line\":\"end\",\"ended\":\"complete\",\"notes\":[\"Not measured.\"]}\n"));
        let report = read_report(text.as_bytes()).unwrap();
        let methods: Vec<_> = report.results.iter().map(|row| row.method.as_str()).collect();
        assert_eq!((methods, report.notes.as_slice()), (vec!["xdp", "ring"], &notes[..]));
        assert_eq!((report.results[0].packets_per_s, report.machine), (Some(1e6), sample_header().machine));
    }

    #[test]
    fn rows_of_a_killed_run_are_read() {
        let text = written_text("killed", |mut lines| lines.write_row(&sample_row("xdp")).unwrap());
        for cut_text in [text.clone(), text.clone() + r#"{"line":"row","workl"#] {
            let report = read_report(cut_text.as_bytes()).unwrap();
            assert_eq!((report.results.len(), report.notes), (1, vec![KILLED.to_owned()]));
        }
    }

    #[test]
    fn unknown_lines_are_ignored() {
        let text = written_text("later", |lines| lines.write_end(Completeness::Complete, &[]).unwrap());
        let text = text.replace("{\"line\":\"end\"", "{\"line\":\"weather\",\"sun\":1}\n{\"line\":\"end\"");
        assert_eq!(read_report(text.as_bytes()).unwrap().notes, [""; 0]);
    }

    #[test]
    fn an_invalid_line_is_named() {
        let text = written_text("wrong", |mut lines| lines.write_row(&sample_row("xdp")).unwrap());
        let wrong = |text: &str| read_report(text.as_bytes()).unwrap_err().to_string();
        assert!(wrong(&text.replace("\"method\":\"xdp\"", "\"method\":1")).starts_with("line 2: "));
        assert!(wrong(&text.repeat(2)).starts_with("line 3: a second header"));
        let without_header = text.lines().nth(1).unwrap().to_owned() + "\n";
        assert!(wrong(&without_header).starts_with("no header"));
    }
}
