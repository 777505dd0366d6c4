//! `nocopy report`: shows and compares results that were written as JSON, and makes pages of them.
//!
//! ```text
//!   JSON ─▶ results ─┬──────────────▶ table, page, Markdown
//!   JSON ─▶ results ─┴▶ comparison ─▶ table, page, JSON
//! ```

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use serde::Deserialize;

use crate::Failure;
use crate::arguments::ReportArguments;
use nocopy_profile::sweep::{self, SweepResult};
use nocopy_report::comparison::RunComparison;
use nocopy_report::result::{Report, SCHEMA, SCHEMA_1, SCHEMA_2};
use nocopy_report::{Outcome, capability, input_file, print};
use nocopy_report::{ResultFile, comparison_text, markdown, page, result_lines, result_table};

enum ParsedResults {
    Bench(Report),
    Sweep(SweepResult),
}

impl ParsedResults {
    fn html_page(&self) -> String {
        match self {
            Self::Bench(report) => page::bench_page(report),
            Self::Sweep(sweep) => sweep::html_page_of(sweep),
        }
    }

    fn print_tables(&self) -> Result<(), Failure> {
        match self {
            Self::Bench(report) => Ok(result_table::print_report(report)?),
            Self::Sweep(sweep) => Ok(print::print_text(&sweep::sweep_text(sweep))?),
        }
    }

    /// The comparable part: of a sweep the throughput.
    fn into_comparable_report(self) -> Report {
        match self {
            Self::Bench(report) => report,
            Self::Sweep(sweep) => sweep::throughput_report_of(&sweep),
        }
    }
}

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let results = read_results(&arguments.results)?;
    let others = arguments.others.as_deref().map(read_results).transpose()?;
    capability::drop_all_but(capability::NONE)?;
    let mut taken: Vec<&Path> =
        iter::once(&arguments.results).chain(&arguments.others).map(PathBuf::as_path).collect();
    let html = open_page_file(arguments.html.as_deref(), &taken, arguments.force)?;
    taken.extend(arguments.html.as_deref());
    let markdown = open_page_file(arguments.markdown.as_deref(), &taken, arguments.force)?;
    let Some((path, others)) = arguments.others.as_deref().zip(others) else {
        if let Some(html) = html {
            html.write(&results.html_page())?;
        }
        results.print_tables()?;
        if let Some(markdown) = markdown {
            markdown.write(&markdown::bench_page(&results.into_comparable_report()))?;
        }
        return Ok(Outcome::Positive);
    };
    let (results, others) = (results.into_comparable_report(), others.into_comparable_report());
    let comparison = RunComparison::new((&arguments.results, &results), (path, &others));
    if let Some(html) = html {
        html.write(&page::comparison_page(&comparison))?;
    }
    match arguments.json {
        true => print::print_text(&nocopy_report::json_text(&comparison)?)?,
        false => print::print_text(&comparison_text::format_comparison(&comparison))?,
    }
    Ok(if comparison.rows.is_empty() { Outcome::Negative } else { Outcome::Positive })
}

/// The output file of a page, if one was requested. It is refused if it is, by whatever name, a file that is
/// read or written already.
fn open_page_file(path: Option<&Path>, taken: &[&Path], force: bool) -> Result<Option<ResultFile>, Failure> {
    let Some(path) = path else { return Ok(None) };
    let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let page = identity(path);
    match taken.iter().find(|other| page.is_some() && identity(other) == page) {
        Some(&other) => Err(Failure::PageOverOther { path: other.into() }),
        None => Ok(Some(ResultFile::open(path, force)?)),
    }
}

/// Far more than any results have.
const RESULTS_BYTES_MAX: usize = 256 << 20;

/// The field that names the kind of results.
#[derive(Deserialize)]
struct SchemaField {
    schema: String,
}

fn read_results(path: &Path) -> Result<ParsedResults, Failure> {
    let text = input_file::read_or_refuse_long(path, RESULTS_BYTES_MAX)?;
    let path = input_file::display_name(path);
    let malformed = |source| Failure::Results { path: path.clone(), source };
    // The first value: of JSON Lines that is the first line.
    let first = SchemaField::deserialize(&mut serde_json::Deserializer::from_slice(&text));
    let SchemaField { schema } = first.map_err(malformed)?;
    match schema.as_str() {
        SCHEMA | SCHEMA_2 => result_lines::read_report(&text).map(ParsedResults::Bench).map_err(malformed),
        SCHEMA_1 => print::parse_untrusted_json(&text).map(ParsedResults::Bench).map_err(malformed),
        sweep::SCHEMA => print::parse_untrusted_json(&text).map(ParsedResults::Sweep).map_err(malformed),
        _ => Err(Failure::Schema { path, schema }),
    }
}
