//! What works have in common that are measured together: about the same size, and about as many units.

/// Upper ends of the size classes, in [`Work::bytes`](super::Work::bytes); the last has none. 128: headers
/// weigh as much as data. 1472: one packet of an MTU of 1500. 4096: a page. 8972: one packet of an MTU
/// of 9000. From some 10 kB on zero-copy pays on real cards.
pub(super) const SIZE_EDGES: [u32; 7] = [128, 512, 1472, 4096, 8972, 16_384, 65_536];
const SIZES: usize = SIZE_EDGES.len() + 1;

/// Upper ends of the batch classes, in units of a work; the last has none. The fixed cost of a batch is
/// shared by few or by many units.
const BATCH_EDGES: [u32; 3] = [1, 4, 16];
const BATCHES: usize = BATCH_EDGES.len() + 1;

pub(super) const KINDS: usize = SIZES * BATCHES;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct WorkKind(u8);

impl WorkKind {
    pub(super) fn of_size_and_count(bytes: u32, count: u32) -> Self {
        Self((bucket_index(&SIZE_EDGES, bytes) * BATCHES + bucket_index(&BATCH_EDGES, count)) as u8)
    }

    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Whether it consists of one unit.
    pub(super) fn is_single(self) -> bool {
        self.index().is_multiple_of(BATCHES)
    }

    pub(super) fn bytes_range(self) -> (u32, u32) {
        bucket_range(&SIZE_EDGES, self.index() / BATCHES, 0)
    }

    pub(super) fn count_range(self) -> (u32, u32) {
        bucket_range(&BATCH_EDGES, self.index() % BATCHES, 1)
    }

    /// The kinds with the same size, for all batches.
    pub(super) fn all_of_size(bytes: u32) -> impl Iterator<Item = Self> {
        let first = Self::of_size_and_count(bytes, 1).0;
        (first..first + BATCHES as u8).map(Self)
    }
}

fn bucket_index(edges: &[u32], value: u32) -> usize {
    edges.iter().map(|&edge| usize::from(value > edge)).sum()
}

fn bucket_range(edges: &[u32], position: usize, least: u32) -> (u32, u32) {
    let low = if position == 0 { least } else { edges[position - 1] + 1 };
    (low, edges.get(position).copied().unwrap_or(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_work_has_one_kind_that_contains_it() {
        for bytes in [0, 1, 128, 129, 1472, 1473, 65_536, 65_537, u32::MAX] {
            for count in [1, 2, 4, 5, 16, 17, u32::MAX] {
                let kind = WorkKind::of_size_and_count(bytes, count);
                assert!((kind.bytes_range().0..=kind.bytes_range().1).contains(&bytes), "{bytes}");
                assert!((kind.count_range().0..=kind.count_range().1).contains(&count), "{count}");
                assert_eq!(kind.is_single(), count == 1);
                assert!(WorkKind::all_of_size(bytes).any(|one| one == kind));
            }
        }
        assert_eq!(WorkKind::of_size_and_count(1400, 0), WorkKind::of_size_and_count(1400, 1));
    }
}
