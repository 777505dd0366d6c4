//! Medians and intervals that assume no distribution.
//!
//! Times on a shared machine have long tails and drift; a mean with a standard error would assume a normal
//! distribution, which they do not have. The interval of the median by order statistics assumes none.

use serde::{Deserialize, Serialize};

/// The confidence of intervals, with enough values.
pub const CONFIDENCE: f64 = 0.95;

/// The least number of values for that confidence.
pub const ENOUGH: usize = 6;

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MedianInterval {
    pub median: f64,
    pub low: f64,
    pub high: f64,
    /// The probability that `low..=high` covers the true median; below [`CONFIDENCE`] under six values.
    pub confidence: f64,
}

/// The median of the rounds with its interval, as in the bench.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct MedianRange {
    pub median: f64,
    pub low: f64,
    pub high: f64,
}

impl MedianRange {
    /// A summary of no values: zeros.
    pub fn from_values(values: &[f64]) -> Self {
        let interval = median_interval(values);
        interval.map_or_else(Self::default, |found| Self {
            median: found.median,
            low: found.low,
            high: found.high,
        })
    }
}

/// The middle value, or the mean of the two middle ones. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let sorted = sorted_values(values);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        count if count % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}

/// The median and the narrowest symmetric pair of order statistics that covers it with [`CONFIDENCE`].
pub fn median_interval(values: &[f64]) -> Option<MedianInterval> {
    let sorted = sorted_values(values);
    let median = median(&sorted)?;
    let count = sorted.len();
    // Dropping k values at either end misses the median when at most k of the count fall on one side of it.
    let dropped =
        (0..count.div_ceil(2)).take_while(|&k| interval_coverage(count, k) >= CONFIDENCE).last().unwrap_or(0);
    let (low, high) = (sorted[dropped], sorted[count - 1 - dropped]);
    Some(MedianInterval { median, low, high, confidence: interval_coverage(count, dropped) })
}

/// `1 - 2·P(X ≤ k)` for X binomial with `count` tries of one half.
fn interval_coverage(count: usize, k: usize) -> f64 {
    let mut term = 0.5_f64.powi(i32::try_from(count).unwrap_or(i32::MAX));
    let mut tail = term;
    for i in 1..=k {
        term *= (count - i + 1) as f64 / i as f64;
        tail += term;
    }
    1.0 - 2.0 * tail
}

/// `better[i] / worse[i]`, round by round, so that disturbances of both cancel.
pub fn paired_ratios(numerators: &[f64], denominators: &[f64]) -> Vec<f64> {
    let pairs = numerators.iter().zip(denominators);
    pairs.filter(|(_, denominator)| **denominator > 0.0).map(|(n, d)| n / d).collect()
}

fn sorted_values(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[1.0, 2.0, 4.0, 100.0]), Some(3.0));
    }

    #[test]
    fn coverage_is_the_binomial_table() {
        assert!((interval_coverage(5, 0) - 0.9375).abs() < 1e-12);
        assert!((interval_coverage(6, 0) - 0.96875).abs() < 1e-12);
        assert!(interval_coverage(ENOUGH, 0) >= CONFIDENCE && interval_coverage(ENOUGH - 1, 0) < CONFIDENCE);
        assert!((interval_coverage(9, 1) - 0.9609375).abs() < 1e-12);
        assert!((interval_coverage(20, 5) - 0.958_610_5).abs() < 1e-6);
    }

    #[test]
    fn the_interval_is_the_narrowest_with_that_confidence() {
        let values: Vec<f64> = (1..=9).map(f64::from).collect();
        let found = median_interval(&values).unwrap();
        assert_eq!((found.low, found.median, found.high), (2.0, 5.0, 8.0));
        assert!(found.confidence >= CONFIDENCE);
        let few = median_interval(&[1.0, 2.0, 3.0]).unwrap();
        assert_eq!((few.low, few.high), (1.0, 3.0));
        assert!(few.confidence < CONFIDENCE);
        assert_eq!(median_interval(&[7.0]).unwrap().low, 7.0);
        assert_eq!(median_interval(&[]), None);
    }

    /// The claim itself: over many samples of a skewed distribution the interval covers the median that
    /// often.
    #[test]
    fn the_interval_covers_the_median_as_often_as_stated() {
        let mut state = 1_u64;
        let mut uniform = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let tries = 4000;
        let median_of_exponential = std::f64::consts::LN_2;
        let covered = (0..tries).filter(|_| {
            let values: Vec<f64> = (0..9).map(|_| -uniform().max(1e-300).ln()).collect();
            let found = median_interval(&values).unwrap();
            (found.low..=found.high).contains(&median_of_exponential)
        });
        let share = covered.count() as f64 / f64::from(tries);
        assert!((share - 0.961).abs() < 0.015, "covered {share}");
    }

    #[test]
    fn ratios_are_paired_and_never_divide_by_zero() {
        assert_eq!(paired_ratios(&[2.0, 9.0, 5.0], &[1.0, 3.0, 0.0]), [2.0, 3.0]);
    }
}
