//! One combination of settings, and the results of its rounds.

use std::time::Duration;

use super::result::{CellFigures, MedianRange};
use crate::check;
use crate::figures::Figures;
use crate::measured::WindowMeasurement;
use nocopy_report::check::CountCheck;
use nocopy_report::quantity::length_text;
use nocopy_report::statistics;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CellSettings {
    pub buffer_bytes: usize,
    pub receive_buffer_bytes: Option<usize>,
    pub gro: bool,
}

impl CellSettings {
    pub fn settings_words(&self) -> String {
        let receive_buffer = self.receive_buffer_bytes.map_or("autotuned".into(), length_text);
        let gro = if self.gro { "on" } else { "off" };
        format!("buffer {}, receive buffer {receive_buffer}, GRO {gro}", length_text(self.buffer_bytes))
    }
}

#[derive(Debug)]
pub struct SweepTrial {
    pub bytes: u64,
    pub elapsed: Duration,
    /// The receiver's profile, if it was profiled.
    pub measured: Option<WindowMeasurement>,
}

#[derive(Debug, Default)]
pub struct CellSamples {
    unprofiled_gbit_per_s: Vec<f64>,
    profiled_gbit_per_s: Vec<f64>,
    profiled_bytes: u64,
    sum: WindowMeasurement,
}

impl CellSamples {
    pub fn add_trial(&mut self, trial: SweepTrial) {
        let gbit_per_s = trial.bytes as f64 * 8e-9 / trial.elapsed.as_secs_f64().max(f64::MIN_POSITIVE);
        match trial.measured {
            None => self.unprofiled_gbit_per_s.push(gbit_per_s),
            Some(measured) => {
                self.profiled_gbit_per_s.push(gbit_per_s);
                self.profiled_bytes += trial.bytes;
                self.sum += measured;
            }
        }
    }

    pub fn cell_figures(&self, cell: CellSettings) -> CellFigures {
        let kept = statistics::paired_ratios(&self.profiled_gbit_per_s, &self.unprofiled_gbit_per_s);
        let overhead: Vec<_> = kept.into_iter().map(|kept| 100.0 * (1.0 - kept)).collect();
        let figures = Figures::from_measurement(&self.sum);
        let mut checks = check::all_checks(&self.sum, &figures);
        checks.push(self.check_amount());
        CellFigures {
            buffer_bytes: cell.buffer_bytes,
            receive_buffer_bytes: cell.receive_buffer_bytes,
            gro: cell.gro,
            unprofiled_gbit_per_s: MedianRange::from_values(&self.unprofiled_gbit_per_s),
            profiled_gbit_per_s: MedianRange::from_values(&self.profiled_gbit_per_s),
            overhead_percent: MedianRange::from_values(&overhead),
            figures,
            checks,
        }
    }

    /// Compares with the number of bytes that were sent.
    fn check_amount(&self) -> CountCheck {
        let about = "bytes received by the calls, and the amount that was moved".into();
        CountCheck::of_equal_bytes("amount", self.sum.receives.bytes, self.profiled_bytes, about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::bulk_receive_measurement;

    #[test]
    fn overhead_is_taken_from_the_same_round() {
        let mut samples = CellSamples::default();
        let trial = |elapsed_ms, measured| SweepTrial {
            bytes: 1 << 30,
            elapsed: Duration::from_millis(elapsed_ms),
            measured,
        };
        for (without_ms, with_ms) in [(100, 125), (200, 250), (1_000, 1_250)] {
            samples.add_trial(trial(with_ms, Some(bulk_receive_measurement())));
            samples.add_trial(trial(without_ms, None));
        }
        let cell = CellSettings { buffer_bytes: 65_536, receive_buffer_bytes: None, gro: true };
        let figures = samples.cell_figures(cell);
        assert!((figures.overhead_percent.median - 20.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.overhead_percent.high - figures.overhead_percent.low).abs() < 1e-9);
        assert!(figures.checks.iter().all(|check| check.passed), "{:?}", figures.checks);
        assert_eq!(figures.figures.received_bytes, 3 << 30);
        samples.profiled_bytes += 1;
        let failed: Vec<_> =
            samples.cell_figures(cell).checks.into_iter().filter(|check| !check.passed).collect();
        assert_eq!((failed.len(), failed[0].name.as_str()), (1, "amount"));
    }
}
