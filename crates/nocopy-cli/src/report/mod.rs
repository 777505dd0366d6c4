//! `nocopy report`: results that were written as JSON, shown again, compared, and made pages of.
//!
//! ```text
//!   JSON ─▶ results ─┬──────────────▶ table, page
//!   JSON ─▶ results ─┴▶ comparison ─▶ table, page, JSON
//! ```

mod chart;
mod comparison;
mod export;
pub(crate) mod page;
mod throughput;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{fs, iter};

use serde::Deserialize;

use crate::arguments::ReportArguments;
use crate::bench::export::table;
use crate::bench::result::{Report, SCHEMA};
use crate::profile::sweep::{self, Sweep};
use crate::result_file::{self, ResultFile};
use crate::{Failure, Outcome, capability, print};
use comparison::Comparison;

/// What a file has.
enum Results {
    Bench(Report),
    Sweep(Sweep),
}

impl Results {
    fn page(&self) -> String {
        match self {
            Self::Bench(report) => page::of_bench(report),
            Self::Sweep(sweep) => page::of_sweep(sweep),
        }
    }

    fn print(&self) -> Result<(), Failure> {
        match self {
            Self::Bench(report) => table::print(report),
            Self::Sweep(sweep) => print::text(&sweep::text(sweep)),
        }
    }

    /// As what can be compared: of a sweep that is the throughput.
    fn into_report(self) -> Report {
        match self {
            Self::Bench(report) => report,
            Self::Sweep(sweep) => throughput::of(&sweep),
        }
    }
}

pub(crate) fn run(arguments: &ReportArguments) -> Result<Outcome, Failure> {
    let results = read(&arguments.results)?;
    let others = arguments.others.as_deref().map(read).transpose()?;
    capability::drop_all_but(capability::NONE)?;
    let html = arguments.html.as_deref().map(|path| page_file(path, arguments)).transpose()?;
    let Some((path, others)) = arguments.others.as_deref().zip(others) else {
        if let Some(html) = html {
            html.write(&results.page())?;
        }
        results.print()?;
        return Ok(Outcome::Positive);
    };
    let (results, others) = (results.into_report(), others.into_report());
    let comparison = Comparison::new((&arguments.results, &results), (path, &others));
    if let Some(html) = html {
        html.write(&page::of_comparison(&comparison))?;
    }
    match arguments.json {
        true => print::text(&result_file::json(&comparison)?)?,
        false => print::text(&export::text::text(&comparison))?,
    }
    Ok(if comparison.rows.is_empty() { Outcome::Negative } else { Outcome::Positive })
}

/// The file of the page, which is none of those that were read, by whatever name.
fn page_file(path: &Path, arguments: &ReportArguments) -> Result<ResultFile, Failure> {
    let identity = |path: &Path| fs::metadata(path).map(|metadata| (metadata.dev(), metadata.ino())).ok();
    let page = identity(path);
    let mut read = iter::once(&arguments.results).chain(&arguments.others);
    match read.find(|results| page.is_some() && identity(results) == page) {
        Some(results) => Err(Failure::PageOverResults { path: results.into() }),
        None => ResultFile::open(path, arguments.force),
    }
}

/// The part of results that says what the rest is.
#[derive(Deserialize)]
struct Kind {
    schema: String,
}

fn read(path: &Path) -> Result<Results, Failure> {
    let text = fs::read(path).map_err(|source| Failure::Input { path: path.into(), source })?;
    let malformed = |source| Failure::Results { path: path.into(), source };
    let Kind { schema } = serde_json::from_slice(&text).map_err(malformed)?;
    match schema.as_str() {
        SCHEMA => serde_json::from_slice(&text).map(Results::Bench).map_err(malformed),
        sweep::SCHEMA => serde_json::from_slice(&text).map(Results::Sweep).map_err(malformed),
        _ => Err(Failure::Schema { path: path.into(), schema }),
    }
}
