//! Medians with their intervals on one scale, for the cells of a table.

use crate::chart::{CellInterval, Scale};

/// A median, and its interval if known.
pub(super) type Estimate = (f64, Option<(f64, f64)>);

/// The scale of the cells that are compared with each other.
#[derive(Debug)]
pub(super) struct Estimates {
    pub scale: Scale,
    /// A value that is marked by a line.
    reference: Option<f64>,
}

impl Estimates {
    pub(super) fn figures(estimates: impl Iterator<Item = Estimate> + Clone) -> Self {
        Self { scale: Scale::spread(estimates.flat_map(values)), reference: None }
    }

    /// Ratios, on a scale with a line at 1.
    pub(super) fn ratios(estimates: impl Iterator<Item = Estimate>) -> Self {
        Self { scale: Scale::around_one(estimates.flat_map(values)), reference: Some(1.0) }
    }

    pub(super) fn position(&self, estimate: Estimate) -> CellInterval {
        let [low, median, high] = values(estimate).map(|value| self.scale.position(value));
        CellInterval { low, median, high, reference: self.reference.map(|value| self.scale.position(value)) }
    }
}

fn values((median, interval): Estimate) -> [f64; 3] {
    interval.map_or([median; 3], |(low, high)| [low, median, high])
}
