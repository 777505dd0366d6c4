//! Processors, and the kernel's notation for sets of them.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity};

pub(crate) type Cpus = BTreeSet<usize>;

/// CPUs this thread may run on; `None` if the kernel does not report them.
pub(crate) fn allowed_cpus() -> Option<Cpus> {
    let set = sched_getaffinity(None).ok()?;
    Some((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// A list such as `0-3,8`.
pub(crate) fn parse_cpu_list(list: &str) -> Option<Cpus> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse().ok()?..=last.parse().ok()?)
    };
    let ranges: Option<Vec<_>> = list.trim().split(',').map(range).collect();
    Some(ranges?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_of_the_kernel_parse() {
        assert_eq!(parse_cpu_list("0-2,8\n"), Some(Cpus::from([0, 1, 2, 8])));
        assert_eq!(parse_cpu_list("5"), Some(Cpus::from([5])));
        assert_eq!((parse_cpu_list(""), parse_cpu_list("a-b")), (None, None));
        assert!(!allowed_cpus().unwrap().is_empty());
    }
}
