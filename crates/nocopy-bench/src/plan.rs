//! What was asked for.

use std::path::PathBuf;
use std::time::Duration;

use nocopy_lab::{Builder, Lab};
use nocopy_report::capability;
use nocopy_report::result_lines::Arguments;
use rustix::thread::CapabilitySet;

use crate::stage::{LONG_MTU_BYTES, Stage};
use crate::workload::{self, Workload};
use crate::{BenchArguments, Failure};

/// Nine: the confidence interval may then ignore the best and the worst round.
const ROUNDS: u32 = 9;
const ROUNDS_QUICK: u32 = 7;

#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub arguments: &'a BenchArguments,
    pub workloads: Vec<&'static dyn Workload>,
    pub rounds: u32,
    /// Our library in front of libpcap, or why it was not found.
    pub libpcap: Result<PathBuf, String>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(arguments: &'a BenchArguments, libpcap: Result<PathBuf, String>) -> Self {
        let named = |name| arguments.workloads.iter().any(|workload| workload.name() == name);
        let chosen = |workload: &&dyn Workload| arguments.workloads.is_empty() || named(workload.name());
        let rounds = if arguments.quick { ROUNDS_QUICK } else { ROUNDS };
        Self {
            arguments,
            workloads: workload::ALL.into_iter().filter(chosen).collect(),
            rounds: arguments.rounds.unwrap_or(rounds),
            libpcap,
        }
    }

    pub(crate) fn budget(&self, seconds: u64) -> Duration {
        let whole = Duration::from_secs(seconds);
        if self.arguments.quick { whole / 2 } else { whole }
    }

    pub(crate) fn wants(&self, method: &str) -> bool {
        let methods = &self.arguments.methods;
        methods.is_empty() || methods.iter().any(|wanted| wanted == method)
    }

    /// Whether it plays between two interfaces that are not ours.
    pub(crate) fn is_between_interfaces(&self) -> bool {
        self.arguments.interface.is_some()
    }

    /// Whether this workload can be measured where it is to be.
    pub(crate) fn can_play(&self, workload: &dyn Workload) -> bool {
        !self.is_between_interfaces() || workload.lab_only().is_none()
    }

    /// Fails if nothing of what is asked for can be measured.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        let Self { workloads, .. } = self;
        if !workloads.iter().any(|workload| self.can_play(*workload)) {
            let names: Vec<_> = workloads.iter().map(|workload| workload.name()).collect();
            return Err(Failure::Loopback { workload: names.join(", ") });
        }
        let mut methods = workloads.iter().flat_map(|workload| workload.methods());
        methods.any(|(name, _)| self.wants(name)).then_some(()).ok_or(Failure::NothingToMeasure)
    }

    pub(crate) fn capabilities(&self) -> CapabilitySet {
        self.workloads.iter().fold(capability::NETWORK, |all, workload| all.union(workload.capabilities()))
    }

    /// A private one as `lab` says, or that of the interfaces given.
    pub(crate) fn stage(&self, lab: Builder) -> Result<Stage, Failure> {
        match (&self.arguments.interface, &self.arguments.peer) {
            (Some(interface), Some(peer)) => Stage::given(interface, peer),
            _ => Stage::private(lab),
        }
    }

    /// One that takes long frames; `None` if the interfaces given do not.
    pub(crate) fn long_stage(&self) -> Result<Option<Stage>, Failure> {
        let stage = self.stage(Lab::builder().mtu(LONG_MTU_BYTES))?;
        Ok(Some(stage).filter(Stage::is_long))
    }

    /// What to run for the same again, without the files it writes.
    pub(crate) fn command(&self) -> String {
        let BenchArguments { quick, rounds, interface, peer, methods, .. } = self.arguments;
        let mut words = vec!["nocopy bench".to_owned()];
        words.extend(self.arguments.workloads.iter().map(|workload| workload.name().to_owned()));
        words.extend(quick.then(|| "--quick".into()));
        words.extend(rounds.map(|rounds| format!("--rounds {rounds}")));
        words.extend(interface.as_ref().map(|interface| format!("--interface {interface}")));
        words.extend(peer.as_ref().map(|peer| format!("--peer {peer}")));
        words.extend(methods.iter().map(|method| format!("--method {method}")));
        words.join(" ")
    }

    /// What is to be measured, with what was left open.
    pub(crate) fn resolved(&self) -> Arguments {
        Arguments {
            workloads: self.workloads.iter().map(|workload| workload.name().to_owned()).collect(),
            methods: self.arguments.methods.clone(),
            rounds: self.rounds,
        }
    }

    pub(crate) fn network(&self) -> String {
        match (&self.arguments.interface, &self.arguments.peer) {
            (Some(interface), Some(peer)) => format!("{interface} to {peer}"),
            _ => "private veth pair".into(),
        }
    }

    /// What a reader of the results needs to know, and what could not be measured.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = Vec::new();
        for &workload in &self.workloads {
            match workload.lab_only() {
                Some(why) if self.is_between_interfaces() => {
                    notes.push(format!("SKIP: {}: {why}; leave out --interface for it.", workload.name()))
                }
                _ => {
                    notes.extend(workload.skips(self));
                    let about = workload.notes().iter().map(|&note| note.to_owned());
                    let new: Vec<_> = about.filter(|note| !notes.contains(note)).collect();
                    notes.extend(new);
                }
            }
        }
        if !self.is_between_interfaces() {
            notes.push(
                "veth has no zero-copy: AF_XDP runs in copy mode here, and the sender's processor does the receiving \
                 softirq too."
                    .into(),
            );
        }
        notes
    }
}
