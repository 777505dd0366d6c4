//! Medians with their intervals on one scale, for the cells of a table.

use crate::chart::{AxisScale, CellInterval};

/// A median, and its interval if known.
pub(super) type Estimate = (f64, Option<(f64, f64)>);

/// The scale of the cells that are compared with each other.
#[derive(Debug)]
pub(super) struct EstimateScale {
    pub scale: AxisScale,
    /// A value that is marked by a line.
    reference: Option<f64>,
}

impl EstimateScale {
    pub(super) fn for_figures(estimates: impl Iterator<Item = Estimate> + Clone) -> Self {
        Self { scale: AxisScale::linear_or_logarithmic(estimates.flat_map(low_median_high)), reference: None }
    }

    /// Ratios, on a scale with a line at 1.
    pub(super) fn for_ratios(estimates: impl Iterator<Item = Estimate>) -> Self {
        Self {
            scale: AxisScale::logarithmic_around_one(estimates.flat_map(low_median_high)),
            reference: Some(1.0),
        }
    }

    pub(super) fn cell_interval(&self, estimate: Estimate) -> CellInterval {
        let [low, median, high] = low_median_high(estimate).map(|value| self.scale.position(value));
        CellInterval { low, median, high, reference: self.reference.map(|value| self.scale.position(value)) }
    }
}

fn low_median_high((median, interval): Estimate) -> [f64; 3] {
    interval.map_or([median; 3], |(low, high)| [low, median, high])
}
