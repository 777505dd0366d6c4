//! `nocopy bench --founding`: repeats the measurements of the five systems that founded the project.
//!
//! Each is a workload, so its rows are written, compared and explained as those of any other.
//! `nocopy_report::founding` makes its table of them, beside what was published.

mod area;
mod ntzc;
mod receive_analysis;
mod sockets;
mod zerocpy;

use nocopy_report::result::Row;

use crate::Failure;
use crate::bench::Bench;
use crate::series::Series;
use crate::workload::Workload;

pub(crate) const ALL: [&Workload; 5] =
    [&area::AREA, &sockets::SOCKETS, &zerocpy::ZEROCPY, &ntzc::NTZC, &receive_analysis::RECEIVE_ANALYSIS];

/// Rounds of every method; the five systems then take less than five minutes. Six is the least for an
/// interval of 95 %.
pub(crate) const ROUNDS: u32 = 7;

/// Plays series of other workloads under the name of this one.
fn run_series_as(
    name: &'static str,
    bench: &mut Bench<'_>,
    all: Vec<Series<'_>>,
    seconds: u64,
) -> Result<(), Failure> {
    bench.run_series_renamed(all, seconds, |row: &mut Row| row.workload = name.into())
}

/// Keeps the trials of a series with the given methods and variants.
fn keep_trials<'a>(mut series: Series<'a>, named: &[(&str, Option<&str>)]) -> Series<'a> {
    series.trials.retain(|trial| {
        let variant = trial.variant.as_deref();
        named
            .iter()
            .any(|(method, wanted)| *method == trial.method && (wanted.is_none() || *wanted == variant))
    });
    series
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::list;

    #[test]
    fn names_differ_from_those_of_other_workloads() {
        for (index, founding) in ALL.iter().enumerate() {
            let others = list::ALL.iter().chain(&ALL[..index]);
            assert!(others.into_iter().all(|other| other.name != founding.name), "{}", founding.name);
        }
    }
}
