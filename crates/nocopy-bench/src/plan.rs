//! What was asked for.

use std::path::PathBuf;
use std::time::Duration;

use nocopy_lab::{Builder, Lab};
use nocopy_report::capability;
use nocopy_report::result_lines::Arguments;
use rustix::thread::CapabilitySet;

use crate::stage::{LONG_MTU_BYTES, Stage};
use crate::workload::{self, Workload};
use crate::{BenchArguments, Failure, headline};

/// Nine: the confidence interval may then ignore the best and the worst round.
const ROUNDS: u32 = 9;
const ROUNDS_QUICK: u32 = 7;

#[derive(Debug)]
pub(crate) struct Plan<'a> {
    pub arguments: &'a BenchArguments,
    pub workloads: Vec<&'static dyn Workload>,
    pub rounds: u32,
    /// Whether the main jobs alone are measured, a line each.
    pub is_headline: bool,
    /// Our library in front of libpcap, or why it was not found.
    pub libpcap: Result<PathBuf, String>,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(arguments: &'a BenchArguments, libpcap: Result<PathBuf, String>) -> Self {
        let named = |name| arguments.workloads.iter().any(|workload| workload.name() == name);
        let is_unnamed = arguments.workloads.is_empty();
        let is_headline = is_unnamed && !arguments.all && arguments.methods.is_empty();
        let workloads = match is_headline {
            true => headline::workloads(),
            false => {
                let all = workload::ALL.into_iter();
                all.filter(|workload| is_unnamed || named(workload.name())).collect()
            }
        };
        let rounds = match (is_headline, arguments.quick) {
            (true, _) => headline::ROUNDS,
            (false, true) => ROUNDS_QUICK,
            (false, false) => ROUNDS,
        };
        Self { arguments, workloads, rounds: arguments.rounds.unwrap_or(rounds), is_headline, libpcap }
    }

    /// Half of a time, if it is to be quick.
    pub(crate) fn halved(&self, whole: Duration) -> Duration {
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
        let BenchArguments { all, quick, rounds, interface, peer, methods, .. } = self.arguments;
        let mut words = vec!["nocopy bench".to_owned()];
        words.extend(self.arguments.workloads.iter().map(|workload| workload.name().to_owned()));
        words.extend(all.then(|| "--all".into()));
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

    /// What could not be measured, and what else a reader of the results needs to know.
    pub(crate) fn notes(&self) -> Vec<String> {
        let mut notes: Vec<_> = self.workloads.iter().flat_map(|workload| self.skips(*workload)).collect();
        if !self.is_between_interfaces() {
            notes.push(
                "veth has no zero-copy: AF_XDP runs in copy mode here, and the sender's processor does the receiving \
                 softirq too."
                    .into(),
            );
        }
        notes
    }

    fn skips(&self, workload: &dyn Workload) -> Vec<String> {
        match workload.lab_only() {
            Some(why) if self.is_between_interfaces() => {
                vec![format!("SKIP: {}: {why}; leave out --interface for it.", workload.name())]
            }
            // What else is left out of a workload has no line there.
            _ if self.is_headline => Vec::new(),
            _ => workload.skips(self),
        }
    }
}
