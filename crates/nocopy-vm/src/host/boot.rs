//! The machines that the chosen tests need.

use serde::Serialize;

use crate::arguments::RunArguments;
use crate::registry::TESTS;
use crate::topology::{Architecture, Kernel, Topology};

/// Tests of one machine, so that three of them have about as much to do. On arm64 each is a whole program of
/// tests.
const fn tests_per_machine_max(kernel: Kernel) -> usize {
    match kernel.architecture() {
        Architecture::Amd64 => 9,
        Architecture::Arm64 => 1,
    }
}

/// Take longer than a run of all may; `cargo xtask nightly nfs` and `cargo xtask nightly kernels` name them.
const ONLY_WHEN_NAMED: &[&str] = &["nfs_programs", "support"];

/// One machine: a kernel, a topology, and the tests to run there.
#[derive(Serialize)]
pub(crate) struct MachinePlan {
    pub(crate) topology: Topology,
    pub(crate) kernel: Kernel,
    #[serde(skip)]
    pub(crate) tests: Vec<&'static str>,
}

impl MachinePlan {
    /// The machines for the tests that `arguments` selects.
    pub(crate) fn for_arguments(arguments: &RunArguments) -> Vec<Self> {
        let selected = |name| match arguments.only.is_empty() {
            true => !ONLY_WHEN_NAMED.contains(&name),
            false => arguments.only.iter().any(|only| only == name),
        };
        let mut boots: Vec<Self> = Vec::new();
        for (name, test) in TESTS.iter().filter(|(name, _)| selected(name)) {
            let rows = test.kernels.iter().flat_map(|&kernel| test.on.iter().map(move |&on| (kernel, on)));
            for (kernel, topology) in rows {
                let is_wanted = match arguments.kernel {
                    Some(only) => only == kernel,
                    None if kernel == Kernel::Stable => !arguments.only.is_empty(),
                    None => kernel.architecture() == Architecture::Amd64,
                };
                if !is_wanted || arguments.topology.is_some_and(|only| only != topology) {
                    continue;
                }
                let like = |boot: &&mut Self| {
                    (boot.kernel, boot.topology) == (kernel, topology)
                        && boot.tests.len() < tests_per_machine_max(kernel)
                };
                match boots.iter_mut().find(like) {
                    Some(boot) => boot.tests.push(name),
                    None => boots.push(Self { kernel, topology, tests: vec![name] }),
                }
            }
        }
        boots.sort_by_key(|boot| (boot.kernel, boot.topology));
        boots
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_test_runs_on_its_topologies_only() {
        let on_arm64 = RunArguments { kernel: Some(Kernel::Arm64), ..Default::default() };
        let mut boots = MachinePlan::for_arguments(&on_arm64);
        assert!(boots.iter().all(|boot| boot.kernel == Kernel::Arm64));
        boots.extend(MachinePlan::for_arguments(&RunArguments::default()));
        assert!(boots.iter().all(|boot| boot.kernel != Kernel::Stable));
        let on_stable = RunArguments { kernel: Some(Kernel::Stable), ..Default::default() };
        boots.extend(MachinePlan::for_arguments(&on_stable));
        assert!(!boots.iter().any(|boot| ONLY_WHEN_NAMED.iter().any(|name| boot.tests.contains(name))));
        let only = ONLY_WHEN_NAMED.iter().map(|name| (*name).to_owned()).collect();
        boots.extend(MachinePlan::for_arguments(&RunArguments { only, ..Default::default() }));
        for (name, test) in TESTS {
            let there = boots.iter().filter(|boot| boot.tests.contains(name));
            let mut on: Vec<_> = there.map(|boot| (boot.kernel, boot.topology)).collect();
            on.sort();
            let on_all = |&kernel: &Kernel| test.on.iter().map(move |&topology| (kernel, topology));
            let mut wanted: Vec<_> = test.kernels.iter().flat_map(on_all).collect();
            wanted.sort();
            assert_eq!(on, wanted, "{name}");
        }
        let only =
            RunArguments { only: vec!["driver".into()], topology: Some(Topology::Igb), ..Default::default() };
        assert_eq!(MachinePlan::for_arguments(&only).len(), 1);
    }
}
