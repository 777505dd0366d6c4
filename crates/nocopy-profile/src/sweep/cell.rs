//! One combination of settings, and the results of its rounds.

use std::time::Duration;

use super::result::{CellFigures, Range};
use crate::check;
use crate::figures::Figures;
use crate::measured::Measured;
use nocopy_report::check::Check;
use nocopy_report::quantity::length;
use nocopy_report::statistics;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cell {
    pub buffer_bytes: usize,
    pub receive_buffer_bytes: Option<usize>,
    pub gro: bool,
}

impl Cell {
    pub fn words(&self) -> String {
        let receive_buffer = self.receive_buffer_bytes.map_or("autotuned".into(), length);
        let gro = if self.gro { "on" } else { "off" };
        format!("buffer {}, receive buffer {receive_buffer}, GRO {gro}", length(self.buffer_bytes))
    }
}

#[derive(Debug)]
pub struct Trial {
    pub bytes: u64,
    pub elapsed: Duration,
    /// The receiver's profile, if it was profiled.
    pub measured: Option<Measured>,
}

#[derive(Debug, Default)]
pub struct Samples {
    unprofiled_gbit_per_s: Vec<f64>,
    profiled_gbit_per_s: Vec<f64>,
    profiled_bytes: u64,
    sum: Measured,
}

impl Samples {
    pub fn add(&mut self, trial: Trial) {
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

    pub fn figures(&self, cell: Cell) -> CellFigures {
        let kept = statistics::ratios(&self.profiled_gbit_per_s, &self.unprofiled_gbit_per_s);
        let overhead: Vec<_> = kept.into_iter().map(|kept| 100.0 * (1.0 - kept)).collect();
        let figures = Figures::of(&self.sum);
        let mut checks = check::all(&self.sum, &figures);
        checks.push(self.amount_check());
        CellFigures {
            buffer_bytes: cell.buffer_bytes,
            receive_buffer_bytes: cell.receive_buffer_bytes,
            gro: cell.gro,
            unprofiled_gbit_per_s: Range::of(&self.unprofiled_gbit_per_s),
            profiled_gbit_per_s: Range::of(&self.profiled_gbit_per_s),
            overhead_percent: Range::of(&overhead),
            figures,
            checks,
        }
    }

    /// Compares with the number of bytes that were sent.
    fn amount_check(&self) -> Check {
        let about = "bytes received by the calls, and the amount that was moved".into();
        Check::bytes("amount", self.sum.receives.bytes, self.profiled_bytes, about)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::bulk_receive;

    #[test]
    fn overhead_is_taken_from_the_same_round() {
        let mut samples = Samples::default();
        let trial = |elapsed_ms, measured| Trial {
            bytes: 1 << 30,
            elapsed: Duration::from_millis(elapsed_ms),
            measured,
        };
        for (without_ms, with_ms) in [(100, 125), (200, 250), (1_000, 1_250)] {
            samples.add(trial(with_ms, Some(bulk_receive())));
            samples.add(trial(without_ms, None));
        }
        let cell = Cell { buffer_bytes: 65_536, receive_buffer_bytes: None, gro: true };
        let figures = samples.figures(cell);
        assert!((figures.overhead_percent.median - 20.0).abs() < 1e-9, "{figures:?}");
        assert!((figures.overhead_percent.high - figures.overhead_percent.low).abs() < 1e-9);
        assert!(figures.checks.iter().all(|check| check.passed), "{:?}", figures.checks);
        assert_eq!(figures.figures.received_bytes, 3 << 30);
        samples.profiled_bytes += 1;
        let failed: Vec<_> = samples.figures(cell).checks.into_iter().filter(|check| !check.passed).collect();
        assert_eq!((failed.len(), failed[0].name.as_str()), (1, "amount"));
    }
}
