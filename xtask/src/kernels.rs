//! The nightly suite `kernels`: what works on Debian's kernels with the drivers of the VM lab. It writes a
//! table of docs/support.md.

use std::fmt::Write as _;

use serde::Deserialize;

use crate::gate::Outcome;
use crate::git::current_commit;
use crate::step::{Failed, date_today};
use crate::support::DOCUMENT;
use crate::tables::write_table;
use crate::vm;

const RESULTS: &str = "target/xtask/vm-kernels.json";

/// The test that measures the table, and those of kernels whose drivers have no zero-copy.
const SUPPORT: &str = "support";
const ROWS: [&str; 3] = [SUPPORT, "older_kernel", "granted_older_kernel"];

pub(crate) fn measure_kernels() -> Outcome {
    vm::run_named_rows(&ROWS, RESULTS).checked_if_good(|| {
        let table = vm::parse_results::<SupportResults>(RESULTS)?.table()?;
        let run = format!("Measured on {}, at commit {}.\n\n", date_today()?, current_commit());
        write_table(DOCUMENT, "nightly kernels", &(run + &table))
    })
}

/// The parts of the lab's results that the table shows.
#[derive(Debug, Deserialize)]
struct SupportResults {
    machines: Vec<MachineVersion>,
    tests: Vec<SupportRow>,
}

#[derive(Debug, Deserialize)]
struct MachineVersion {
    topology: String,
    kernel: String,
    /// The output of `uname -r`.
    version: String,
}

#[derive(Debug, Deserialize)]
struct SupportRow {
    test: String,
    topology: String,
    kernel: String,
    measured: Vec<serde_json::Value>,
}

#[derive(Debug, Deserialize)]
struct MeasuredFeature {
    feature: String,
    /// Why it does not work.
    refused: Option<String>,
}

/// A kernel with a driver, and the features in the order in which they were tried.
struct Column {
    title: String,
    features: Vec<MeasuredFeature>,
}

impl SupportResults {
    /// A column for each kernel and driver, the oldest kernel first, and a list of the reasons.
    fn table(self) -> Result<String, Failed> {
        let columns = self.columns()?;
        let Some(first) = columns.first() else {
            return Err(Failed(format!("{RESULTS}: has no row of the test '{SUPPORT}'")));
        };
        let titles: String = columns.iter().map(|column| format!(" {} |", column.title)).collect();
        let mut text = format!("| works |{titles}\n|---|{}\n", "---|".repeat(columns.len()));
        let mut reasons: Vec<&str> = Vec::new();
        for (place, MeasuredFeature { feature, .. }) in first.features.iter().enumerate() {
            let _ = write!(text, "| {feature} |");
            for Column { title, features } in &columns {
                let found = features.get(place).filter(|found| found.feature == *feature);
                let found = found.ok_or_else(|| Failed(format!("{RESULTS}: {title}: no '{feature}'")))?;
                let _ = match found.refused.as_deref() {
                    None => write!(text, " yes |"),
                    Some(why) => write!(text, " no ({}) |", number_of_reason(&mut reasons, why)),
                };
            }
            text.push('\n');
        }
        text.push('\n');
        for (number, why) in (1..).zip(reasons) {
            let _ = writeln!(text, "{number}. {why}");
        }
        Ok(text)
    }

    fn columns(self) -> Result<Vec<Column>, Failed> {
        let Self { machines, tests } = self;
        let mut columns = Vec::new();
        for row in tests.into_iter().filter(|row| row.test == SUPPORT) {
            let machine = machines
                .iter()
                .find(|machine| (&machine.topology, &machine.kernel) == (&row.topology, &row.kernel))
                .ok_or_else(|| Failed(format!("{RESULTS}: no machine {}, {}", row.topology, row.kernel)))?;
            let features: Result<Vec<MeasuredFeature>, _> =
                row.measured.into_iter().map(serde_json::from_value).collect();
            let features = features.map_err(|error| Failed(format!("{RESULTS}: {error}")))?;
            let driver = if row.topology == "igb" { "igb" } else { "virtio_net" };
            columns.push(Column { title: format!("{}, {driver}", machine.version), features });
        }
        columns.sort_by_key(|column| version_numbers(&column.title));
        Ok(columns)
    }
}

/// The number of a reason in the list, to which it is added if it is new.
fn number_of_reason<'a>(reasons: &mut Vec<&'a str>, why: &'a str) -> usize {
    let known = reasons.iter().position(|known| *known == why);
    known.unwrap_or_else(|| {
        reasons.push(why);
        reasons.len() - 1
    }) + 1
}

/// The numbers of a kernel's version, by which it is sorted.
fn version_numbers(version: &str) -> Vec<u32> {
    version.split(|c: char| !c.is_ascii_digit()).map_while(|number| number.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results(text: &str) -> SupportResults {
        serde_json::from_str(text).unwrap()
    }

    const MACHINES: &str = r#""machines":[{"topology":"igb","kernel":"newest","version":"7.3.4+deb13-amd64"},
        {"topology":"virtio","kernel":"older","version":"6.1.0-50-amd64"}]"#;

    #[test]
    fn kernels_are_columns_and_reasons_a_list() {
        let text = format!(
            r#"{{{MACHINES},"tests":[
            {{"test":"support","topology":"igb","kernel":"newest","measured":[{{"feature":"a","refused":null}},{{"feature":"b","refused":"why"}}]}},
            {{"test":"support","topology":"virtio","kernel":"older","measured":[{{"feature":"a","refused":"why"}},{{"feature":"b","refused":"old"}}]}},
            {{"test":"older_kernel","topology":"igb","kernel":"older","measured":[{{"mode":"x"}}]}}]}}"#
        );
        assert_eq!(
            results(&text).table().unwrap(),
            "| works | 6.1.0-50-amd64, virtio_net | 7.3.4+deb13-amd64, igb |\n|---|---|---|\n| a | no (1) | yes |\n| b | no (2) | no (1) |\n\
             \n1. why\n2. old\n"
        );
    }

    #[test]
    fn incomplete_results_are_errors() {
        let none = format!(r#"{{{MACHINES},"tests":[]}}"#);
        assert!(results(&none).table().is_err());
        let differing = format!(
            r#"{{{MACHINES},"tests":[
            {{"test":"support","topology":"igb","kernel":"newest","measured":[{{"feature":"a","refused":null}}]}},
            {{"test":"support","topology":"virtio","kernel":"older","measured":[{{"feature":"b","refused":null}}]}}]}}"#
        );
        assert!(results(&differing).table().is_err());
    }
}
