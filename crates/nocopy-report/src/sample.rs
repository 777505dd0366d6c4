//! Results made up for tests.

use super::figure::Figure;
use super::headline::{ComparedMethod, HeadlineJob, JOBS};
use super::result::{CopyEvidence, Machine, Report, Row, SCHEMA};

/// A run with the rows of every job of the headline.
pub(crate) fn full_run() -> Report {
    let of = |job: &HeadlineJob, row: Row| {
        let workload = job.series.split([',', ' ']).next().unwrap_or_default();
        Row { workload: workload.into(), sink: job.sink.map(str::to_owned), ..row }
    };
    let rows = JOBS.iter().flat_map(|job| {
        let by = move |method: &ComparedMethod, rate| Row {
            variant: method.variant.map(str::to_owned),
            ..row_with_rate(job.series, method.method, rate)
        };
        let own = by(&job.own, 2e6);
        let baselines = job.baselines.iter().map(move |other| by(other, 1e6));
        let compared = job.baselines.iter().map(move |other| row_with_ratio(other.method, 2.0, own.clone()));
        baselines.chain(compared).map(move |row| of(job, row))
    });
    report_with_rows(rows.collect())
}

pub(crate) fn report_with_rows(results: Vec<Row>) -> Report {
    Report {
        schema: SCHEMA.into(),
        command: "nocopy bench capture --quick".into(),
        measured_at: "2026-01-31T12:00:00Z".into(),
        machine: Machine {
            nocopy_version: "0.1.0".into(),
            kernel: "6.18.5".into(),
            architecture: "x86_64".into(),
            processor: Some("Some Processor".into()),
            processors: 2,
            virtual_machine: true,
            network: "private veth pair".into(),
        },
        notes: vec!["Not measured.".into()],
        results,
        receive_analysis: None,
        card: None,
    }
}

/// Packets, within a tenth of the rate.
pub(crate) fn row_with_rate(series: &str, method: &str, packets_per_s: f64) -> Row {
    Row {
        workload: "capture".into(),
        series: series.into(),
        method: method.into(),
        payload_bytes: 64,
        figure: Figure::PacketsPerSecond,
        packets_per_s: Some(packets_per_s),
        figure_low: Some(packets_per_s * 0.9),
        figure_high: Some(packets_per_s * 1.1),
        evidence: Some(CopyEvidence::Copied),
        rounds: 9,
        ..Row::default()
    }
}

/// Within a tenth of the ratio.
pub(crate) fn row_with_ratio(baseline: &str, ratio: f64, row: Row) -> Row {
    Row {
        baseline: Some(baseline.into()),
        ratio: Some(ratio),
        ratio_low: Some(ratio * 0.9),
        ratio_high: Some(ratio * 1.1),
        ..row
    }
}
