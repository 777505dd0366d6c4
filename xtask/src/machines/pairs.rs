//! Few combinations in which each two values of different factors meet (a covering array of strength 2).
//!
//! Found greedily, one combination after the other, as AETG does (Cohen, Dalal, Fredman, Patton: "The AETG
//! System", 1997): of some candidates, begun at a pair that has not met yet, the one with the most new pairs
//! is taken.

use std::collections::BTreeSet;

/// Candidates for each combination. More find fewer combinations, slowly.
const CANDIDATES: usize = 60;

/// The indices of two factors, each with the index of a value; the lower factor first.
type Pair = [(usize, usize); 2];

/// Combinations, each with the index of a value for each factor, for factors with so many values. The same
/// ones each time.
pub(super) fn pairwise_combinations(counts: &[usize]) -> Vec<Vec<usize>> {
    let mut random = fastrand::Rng::with_seed(1);
    let mut missing = all_value_pairs(counts);
    let mut combinations = Vec::new();
    while !missing.is_empty() {
        let candidates = (0..CANDIDATES).map(|_| random_candidate(counts, &missing, &mut random));
        let best =
            candidates.max_by_key(|candidate| missing_pair_count(candidate, &missing)).expect("candidates");
        for pair in value_pairs_of(&best) {
            missing.remove(&pair);
        }
        combinations.push(best);
    }
    combinations
}

fn all_value_pairs(counts: &[usize]) -> BTreeSet<Pair> {
    let values = |factor: usize| (0..counts[factor]).map(move |value| (factor, value));
    let factors = 0..counts.len();
    let twos = factors.clone().flat_map(|a| (a + 1..factors.end).map(move |b| (a, b)));
    twos.flat_map(|(a, b)| values(a).flat_map(move |first| values(b).map(move |second| [first, second])))
        .collect()
}

fn value_pairs_of(combination: &[usize]) -> impl Iterator<Item = Pair> + '_ {
    let values = combination.iter().copied().enumerate();
    values.clone().flat_map(move |first| values.clone().skip(first.0 + 1).map(move |second| [first, second]))
}

fn missing_pair_count(combination: &[usize], missing: &BTreeSet<Pair>) -> usize {
    value_pairs_of(combination).filter(|pair| missing.contains(pair)).count()
}

/// A combination with a pair that has not met; the other factors, in any order, have the value that meets the
/// most values for the first time.
fn random_candidate(counts: &[usize], missing: &BTreeSet<Pair>, random: &mut fastrand::Rng) -> Vec<usize> {
    let begun = missing.iter().nth(random.usize(..missing.len())).expect("one is missing");
    let mut chosen: Vec<Option<usize>> = vec![None; counts.len()];
    for (factor, value) in begun {
        chosen[*factor] = Some(*value);
    }
    let mut order: Vec<usize> = (0..counts.len()).filter(|&factor| chosen[factor].is_none()).collect();
    random.shuffle(&mut order);
    for factor in order {
        let new_pairs = |value: usize| {
            let others = chosen.iter().enumerate().filter_map(|(other, value)| Some((other, (*value)?)));
            others.filter(|&other| missing.contains(&ordered_pair(other, (factor, value)))).count()
        };
        let mut values: Vec<usize> = (0..counts[factor]).collect();
        random.shuffle(&mut values);
        chosen[factor] = values.into_iter().max_by_key(|&value| new_pairs(value));
    }
    chosen.into_iter().map(|value| value.expect("every factor has values")).collect()
}

fn ordered_pair(a: (usize, usize), b: (usize, usize)) -> Pair {
    if a.0 < b.0 { [a, b] } else { [b, a] }
}

#[cfg(test)]
mod tests {
    use super::super::face::FACTORS;
    use super::*;

    #[test]
    fn each_two_values_meet_in_a_few_combinations() {
        let counts: Vec<usize> = FACTORS.iter().map(|factor| factor.values.len()).collect();
        let found = pairwise_combinations(&counts);
        let met: BTreeSet<Pair> = found.iter().flat_map(|combination| value_pairs_of(combination)).collect();
        assert_eq!(met, all_value_pairs(&counts));
        assert!(found.len() <= 17, "{}", found.len());
        assert_eq!(found, pairwise_combinations(&counts), "the same each time");
    }

    #[test]
    fn two_factors_need_each_pair_once() {
        assert_eq!(pairwise_combinations(&[2, 3]).len(), 6);
        assert_eq!(pairwise_combinations(&[4]).len(), 0, "one factor has no pairs");
    }
}
