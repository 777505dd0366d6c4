//! Positions of values on an axis, and its labels.

use crate::quantity;

/// The lowest and the highest value of an axis. Values outside are drawn at its ends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AxisScale {
    steps: ScaleSteps,
    low: f64,
    high: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScaleSteps {
    Even,
    /// Equal ratios are equal distances; powers of 10 and values between them are named.
    Decades,
    /// Like `Decades`, with powers of 2 as labels.
    Doublings,
}

/// A labelled position of an axis.
#[derive(Debug, Clone, PartialEq)]
pub struct AxisTick {
    pub value: f64,
    pub text: String,
}

/// Values with a larger ratio than this would be drawn on top of each other at the beginning of a linear
/// axis.
const FAR_APART: f64 = 200.0;

/// Measured figures are within these limits; beyond them arithmetic would lose precision.
const SMALLEST: f64 = 1e-100;
const LARGEST: f64 = 1e100;

impl AxisScale {
    /// A linear scale from 0, so that lengths compare like values.
    pub fn linear_from_zero(values: impl IntoIterator<Item = f64>) -> Self {
        let high =
            values.into_iter().filter(|value| (SMALLEST..=LARGEST).contains(value)).fold(0.0, f64::max);
        Self { steps: ScaleSteps::Even, low: 0.0, high: if high > 0.0 { high } else { 1.0 } }
    }

    /// Linear, unless the values are too far apart and none of them is 0.
    pub fn linear_or_logarithmic(values: impl IntoIterator<Item = f64> + Clone) -> Self {
        let has_zero = values.clone().into_iter().any(|value| value < SMALLEST);
        let decades = Self::logarithmic(ScaleSteps::Decades, values.clone());
        let is_far = decades.high / decades.low > FAR_APART;
        if is_far && !has_zero { decades } else { Self::linear_from_zero(values) }
    }

    /// A scale of ratios around 1, on which 2 and 0.5 are equally far from 1.
    pub fn logarithmic_around_one(values: impl IntoIterator<Item = f64>) -> Self {
        Self::logarithmic(ScaleSteps::Decades, values.into_iter().chain([0.97, 1.03]))
    }

    /// For lengths in powers of 2.
    pub fn powers_of_two(values: impl IntoIterator<Item = f64>) -> Self {
        Self::logarithmic(ScaleSteps::Doublings, values)
    }

    fn logarithmic(steps: ScaleSteps, values: impl IntoIterator<Item = f64>) -> Self {
        let values = values.into_iter().filter(|value| (SMALLEST..=LARGEST).contains(value));
        let (low, high) =
            values.fold((f64::MAX, 0.0_f64), |(low, high), value| (low.min(value), high.max(value)));
        match () {
            () if low > high => Self { steps, low: 1.0, high: 10.0 },
            () if low == high => Self { steps, low: low / 2.0, high: high * 2.0 },
            () => Self { steps, low, high },
        }
    }

    /// The position on the axis: 0 at the low end, 1 at the high end.
    pub fn position(&self, value: f64) -> f64 {
        let position = match self.steps {
            ScaleSteps::Even => (value - self.low) / (self.high - self.low),
            _ => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        // A value of 0 has no logarithm, and is at the low end.
        if position.is_nan() { 0.0 } else { position.clamp(0.0, 1.0) }
    }

    pub fn is_logarithmic(&self) -> bool {
        self.steps != ScaleSteps::Even
    }

    /// Labels within the scale, in order; at most one more than `most`.
    pub fn ticks(&self, most: usize) -> Vec<AxisTick> {
        let most = most.max(2);
        match self.steps {
            ScaleSteps::Even => self.even_ticks(most),
            ScaleSteps::Decades => self.decade_ticks(most),
            ScaleSteps::Doublings => self.doubling_ticks(most),
        }
    }

    fn even_ticks(&self, most: usize) -> Vec<AxisTick> {
        let step = round_step((self.high - self.low) / most as f64);
        let first = (self.low / step).ceil() as i64;
        let values = (first..).map(|count| count as f64 * step).take_while(|value| *value <= self.high);
        values.map(|value| AxisTick { value, text: tick_text(value, step) }).collect()
    }

    fn decade_ticks(&self, most: usize) -> Vec<AxisTick> {
        let powers = self.low.log10().floor() as i32..=self.high.log10().floor() as i32;
        let within = |digits: &[f64]| -> Vec<f64> {
            let all =
                powers.clone().flat_map(|power| digits.iter().map(move |digit| digit * 10_f64.powi(power)));
            all.filter(|value| (self.low..=self.high).contains(value)).collect()
        };
        let all = within(&[1.0, 2.0, 5.0]);
        if all.len() < 3 {
            // Within a decade there may be no round value.
            return self.even_ticks(most);
        }
        let fewer = [all, within(&[1.0, 3.0])].into_iter().find(|values| values.len() <= most);
        let values = fewer.unwrap_or_else(|| keep_at_most(within(&[1.0]), most));
        values.into_iter().map(|value| AxisTick { value, text: tick_text(value, value) }).collect()
    }

    fn doubling_ticks(&self, most: usize) -> Vec<AxisTick> {
        let powers = self.low.log2().ceil() as i32..=self.high.log2().floor() as i32;
        let values = keep_at_most(powers.map(|power| 2_f64.powi(power)).collect(), most);
        values
            .into_iter()
            .map(|value| AxisTick { value, text: quantity::length_text(value as usize) })
            .collect()
    }
}

/// Every second, third … label, so that at most `most` remain.
fn keep_at_most(values: Vec<f64>, most: usize) -> Vec<f64> {
    let step = values.len().div_ceil(most).max(1);
    values.into_iter().step_by(step).collect()
}

/// The next step of at least that size that is 1, 2 or 5 times a power of 10.
fn round_step(step: f64) -> f64 {
    let power = 10_f64.powi(step.log10().floor() as i32);
    let digits = [1.0, 2.0, 5.0, 10.0];
    let digit = digits.into_iter().find(|digit| digit * power >= step * (1.0 - 1e-9));
    digit.unwrap_or(10.0) * power
}

/// The value, with as many decimals as distinguish it from its neighbours, which differ by `step`.
fn tick_text(value: f64, step: f64) -> String {
    let prefixes = [(1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")];
    let chosen = prefixes.into_iter().find(|(unit, _)| value >= *unit && value >= 1e4);
    let (unit, prefix) = chosen.unwrap_or((1.0, ""));
    let decimals = (-(step / unit).log10() + 1e-9).ceil().clamp(0.0, 12.0) as usize;
    let number = format!("{:.decimals$}", value / unit);
    let number = match number.contains('.') {
        true => number.trim_end_matches('0').trim_end_matches('.'),
        false => &number,
    };
    format!("{number}{prefix}")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn tick_texts(scale: AxisScale) -> Vec<String> {
        scale.ticks(5).into_iter().map(|tick| tick.text).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(tick_texts(AxisScale::linear_from_zero([4.41e6])), ["0", "1 M", "2 M", "3 M", "4 M"]);
        assert_eq!(tick_texts(AxisScale::linear_from_zero([0.9])), ["0", "0.2", "0.4", "0.6", "0.8"]);
        assert_eq!(tick_texts(AxisScale::linear_from_zero([1.6e6])), ["0", "500 k", "1 M", "1.5 M"]);
        assert_eq!(tick_texts(AxisScale::linear_from_zero([])), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(tick_texts(AxisScale::linear_or_logarithmic([2.0, 5e3])), ["10", "100", "1000"]);
        assert_eq!(tick_texts(AxisScale::logarithmic_around_one([])), ["0.98", "1", "1.02"]);
        assert_eq!(tick_texts(AxisScale::logarithmic_around_one([0.4, 5.2])), ["0.5", "1", "2", "5"]);
        assert_eq!(tick_texts(AxisScale::logarithmic_around_one([0.05, 7.0])), ["0.1", "0.3", "1", "3"]);
        assert_eq!(
            tick_texts(AxisScale::powers_of_two([1024.0, 4194304.0])),
            ["1 KiB", "8 KiB", "64 KiB", "512 KiB", "4 MiB"]
        );
    }

    #[test]
    fn distant_values_are_logarithmic_unless_one_is_zero() {
        assert!(AxisScale::linear_or_logarithmic([1.0, 1e6]).is_logarithmic());
        assert!(!AxisScale::linear_or_logarithmic([0.0, 1.0, 1e6]).is_logarithmic());
        assert!(!AxisScale::linear_or_logarithmic([1.0, 100.0]).is_logarithmic());
    }

    #[test]
    fn halves_and_doubles_are_equally_far_from_one() {
        let scale = AxisScale::logarithmic_around_one([0.25, 4.0]);
        let [half, one, double] = [0.5, 1.0, 2.0].map(|value| scale.position(value));
        assert!((one - half - (double - one)).abs() < 1e-12 && (one - 0.5).abs() < 1e-12);
    }

    fn scales_of_every_kind(values: &[f64]) -> [AxisScale; 4] {
        let values = || values.iter().copied();
        [
            AxisScale::linear_from_zero(values()),
            AxisScale::linear_or_logarithmic(values()),
            AxisScale::logarithmic_around_one(values()),
            AxisScale::powers_of_two(values()),
        ]
    }

    fn any_figure() -> impl Strategy<Value = f64> {
        prop_oneof![
            Just(0.0),
            1e-6..1e6_f64,
            (-99.0..99.0_f64).prop_map(|power| 10_f64.powf(power)),
            any::<f64>(),
        ]
    }

    proptest! {
        #[test]
        fn ticks_are_within_the_scale_and_increase(
            values in prop::collection::vec(any_figure(), 0..20),
            most in 2_usize..9,
        ) {
            for scale in scales_of_every_kind(&values) {
                let ticks = scale.ticks(most);
                prop_assert!(ticks.len() <= most + 1, "{scale:?} {ticks:?}");
                prop_assert!(ticks.windows(2).all(|pair| pair[0].value < pair[1].value), "{ticks:?}");
                prop_assert!(ticks.iter().all(|tick| (scale.low..=scale.high).contains(&tick.value)), "{scale:?} {ticks:?}");
            }
        }

        #[test]
        fn positions_on_a_scale_keep_the_order_of_values(values in prop::collection::vec(any_figure(), 0..20), one in any_figure(), other in any_figure()) {
            prop_assume!(!one.is_nan() && !other.is_nan());
            for scale in scales_of_every_kind(&values) {
                let (low, high) = (scale.position(one.min(other)), scale.position(one.max(other)));
                prop_assert!((0.0..=1.0).contains(&low) && low <= high && high <= 1.0, "{scale:?} {one} {other}");
            }
        }

        #[test]
        fn ticks_have_distinct_labels(low in 0.001..1e9_f64, factor in 1.001..1e4_f64) {
            for scale in scales_of_every_kind(&[low, low * factor]) {
                let names: Vec<String> = scale.ticks(5).into_iter().map(|tick| tick.text).collect();
                prop_assert!(scale.steps == ScaleSteps::Doublings || names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
            }
        }
    }
}
