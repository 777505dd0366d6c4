//! The selection of measurements: the named workloads, or the headline.

use std::time::Instant;

use nocopy_report::capability;
use nocopy_report::result_lines::{RunArguments, RunHeader};
use nocopy_report::{headline_table, machine, wall_clock};
use rustix::thread::CapabilitySet;

use crate::bench::Bench;
use crate::pair::CabledPair;
use crate::plan::{BenchPlan, io_uring_refusal, uses_io_uring};
use crate::workload::Workload;
use crate::workload::list::{self, has_method};
use crate::{BenchArguments, Failure, founding, headline};

/// Nine: the confidence interval may then ignore the best and the worst round.
const ROUNDS: u32 = 9;
const ROUNDS_QUICK: u32 = 7;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SelectionKind {
    /// The main jobs alone.
    Headline,
    /// The five of [`founding`].
    Founding,
    /// The named workloads, or all.
    Workloads,
}

#[derive(Debug)]
pub(crate) struct WorkloadSelection<'a> {
    arguments: &'a BenchArguments,
    workloads: Vec<&'static Workload>,
    pub kind: SelectionKind,
}

impl<'a> WorkloadSelection<'a> {
    pub(crate) fn new(arguments: &'a BenchArguments) -> Self {
        let named = |name| arguments.workloads.iter().any(|workload| workload.name == name);
        let is_unnamed = arguments.workloads.is_empty();
        let kind = match arguments {
            BenchArguments { founding: true, .. } => SelectionKind::Founding,
            BenchArguments { all: false, methods, .. } if is_unnamed && methods.is_empty() => {
                SelectionKind::Headline
            }
            _ => SelectionKind::Workloads,
        };
        let workloads = match kind {
            SelectionKind::Headline => headline::headline_workloads(),
            SelectionKind::Founding => founding::ALL.into(),
            SelectionKind::Workloads => {
                let all = list::ALL.into_iter();
                all.filter(|workload| is_unnamed || named(workload.name)).collect()
            }
        };
        Self { arguments, workloads, kind }
    }

    /// The plan; with the ports of `--pair`, if they were taken.
    pub(crate) fn plan(&self, cable: Option<CabledPair>) -> BenchPlan {
        let BenchArguments { quick, rounds, window, interface, peer, methods, python, .. } = self.arguments;
        let usual = match (self.kind, quick) {
            (SelectionKind::Headline, _) => headline::ROUNDS,
            (SelectionKind::Founding, _) => founding::ROUNDS,
            (SelectionKind::Workloads, true) => ROUNDS_QUICK,
            (SelectionKind::Workloads, false) => ROUNDS,
        };
        BenchPlan {
            methods: methods.clone(),
            rounds: rounds.unwrap_or(usual),
            window: *window,
            quick: *quick,
            interfaces: interface.clone().zip(peer.clone()),
            cable,
            without_io_uring: io_uring_refusal(),
            python: python.clone(),
        }
    }

    /// Fails if none of the chosen workloads can be measured.
    pub(crate) fn check_measurable(&self, plan: &BenchPlan) -> Result<(), Failure> {
        let Self { workloads, .. } = self;
        if !workloads.iter().any(|workload| workload.can_run(plan)) {
            let names: Vec<_> = workloads.iter().map(|workload| workload.name).collect();
            return Err(Failure::Loopback { workload: names.join(", ") });
        }
        let mut methods = workloads.iter().flat_map(|workload| workload.methods);
        methods.any(|(name, _)| plan.includes_method(name)).then_some(()).ok_or(Failure::NothingToMeasure)
    }

    pub(crate) fn required_capabilities(&self) -> CapabilitySet {
        let all = self.workloads.iter().map(|workload| workload.capabilities);
        all.fold(capability::NETWORK, CapabilitySet::union)
    }

    pub(crate) fn result_header(&self, plan: &BenchPlan) -> RunHeader {
        let arguments = RunArguments {
            workloads: self.workloads.iter().map(|workload| workload.name.to_owned()).collect(),
            methods: plan.methods.clone(),
            rounds: plan.rounds,
        };
        RunHeader::new(
            self.repeat_command(),
            arguments,
            wall_clock::now_text(),
            machine::describe_machine(plan.network_name()),
        )
    }

    /// The command that measures the same again, without output files.
    fn repeat_command(&self) -> String {
        let BenchArguments { all, founding, quick, rounds, interface, peer, pair, methods, .. } =
            self.arguments;
        let mut words = vec!["nocopy bench".to_owned()];
        words.extend(self.arguments.workloads.iter().map(|workload| workload.name.to_owned()));
        words.extend(all.then(|| "--all".into()));
        words.extend(founding.then(|| "--founding".into()));
        words.extend(quick.then(|| "--quick".into()));
        words.extend(rounds.map(|rounds| format!("--rounds {rounds}")));
        words.extend(interface.as_ref().map(|interface| format!("--interface {interface}")));
        words.extend(peer.as_ref().map(|peer| format!("--peer {peer}")));
        // Not the names: with a hardware address in them they would tell whose machine it was.
        words.extend((!pair.is_empty()).then(|| "--pair A B".into()));
        words.extend(methods.iter().map(|method| format!("--method {method}")));
        words.join(" ")
    }

    pub(crate) fn measure(&self, bench: &mut Bench<'_>) -> Result<(), Failure> {
        let measured = match self.kind {
            SelectionKind::Headline => headline::measure(bench),
            SelectionKind::Founding | SelectionKind::Workloads => {
                self.workloads.iter().try_for_each(|&workload| measure_workload(workload, bench))
            }
        };
        debug_assert!(bench.rows.iter().all(|row| has_method(&row.workload, &row.method)));
        match measured {
            // A signal of the terminal also reaches the processes of a workload, which then fail.
            Err(_) if bench.is_interrupted() => Err(Failure::Interrupted),
            Ok(()) if bench.rows.is_empty() => Err(Failure::NothingToMeasure),
            measured => measured,
        }
    }

    /// Measurements that were not possible, and other remarks for the reader.
    pub(crate) fn notes(&self, plan: &BenchPlan) -> Vec<String> {
        let mut notes: Vec<_> =
            self.workloads.iter().flat_map(|workload| self.skip_notes(workload, plan)).collect();
        notes.extend(self.io_uring_skip_note(plan));
        if !plan.is_between_interfaces() && plan.cable.is_none() {
            notes.push(headline_table::OF_VETH.into());
        }
        notes
    }

    /// Methods that are named explicitly are tried all the same, and fail.
    fn io_uring_skip_note(&self, plan: &BenchPlan) -> Option<String> {
        let cause = plan.without_io_uring.as_ref().filter(|_| plan.methods.is_empty())?;
        let mut methods = self.workloads.iter().flat_map(|workload| workload.methods);
        let is_left_out =
            self.kind != SelectionKind::Headline && methods.any(|(name, _)| uses_io_uring(name));
        is_left_out.then(|| format!("SKIP: uring-*: {cause}."))
    }

    fn skip_notes(&self, workload: &Workload, plan: &BenchPlan) -> Vec<String> {
        match workload.lab_only {
            Some(why) if plan.is_between_interfaces() => {
                vec![format!("SKIP: {}: {why}; leave out --interface for it.", workload.name)]
            }
            // In the headline, other omissions have no line.
            _ if self.kind == SelectionKind::Headline => Vec::new(),
            _ => (workload.skips)(plan),
        }
    }
}

fn measure_workload(workload: &Workload, bench: &mut Bench<'_>) -> Result<(), Failure> {
    if !workload.can_run(bench.plan) {
        return Ok(()); // a note says so
    }
    let (start, before) = (Instant::now(), bench.rows.len());
    (workload.measure)(bench)?;
    let (rows, seconds) = (bench.rows.len() - before, start.elapsed().as_secs_f64());
    bench.progress.report_part_done(format_args!("{}: {rows} rows in {seconds:.0} s", workload.name));
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TestCommandLine {
        #[command(flatten)]
        arguments: BenchArguments,
    }

    fn with_parsed_selection<T>(
        words: &str,
        check: impl FnOnce(&WorkloadSelection<'_>, &BenchPlan) -> T,
    ) -> T {
        let line = TestCommandLine::parse_from(["bench"].into_iter().chain(words.split_whitespace()));
        let choice = WorkloadSelection::new(&line.arguments);
        check(&choice, &choice.plan(None))
    }

    fn selected_names(choice: &WorkloadSelection<'_>) -> Vec<&'static str> {
        choice.workloads.iter().map(|workload| workload.name).collect()
    }

    #[test]
    fn without_named_workloads_the_headline_is_selected() {
        assert!(with_parsed_selection("", |choice, plan| choice.kind == SelectionKind::Headline
            && plan.rounds == headline::ROUNDS));
        for words in ["--all", "--method xdp"] {
            with_parsed_selection(words, |choice, _| {
                assert_eq!(choice.kind, SelectionKind::Workloads, "{words}");
                assert_eq!(selected_names(choice).len(), list::ALL.len(), "{words}");
                assert_eq!(choice.repeat_command(), format!("nocopy bench {words}"));
            });
        }
        with_parsed_selection("--founding", |choice, plan| {
            assert_eq!((choice.kind, plan.rounds), (SelectionKind::Founding, founding::ROUNDS));
            assert_eq!(selected_names(choice), founding::ALL.map(|workload| workload.name));
        });
        assert_eq!(
            with_parsed_selection("udp-send capture", |choice, _| selected_names(choice)),
            ["capture", "udp-send"]
        );
    }

    #[test]
    fn lab_workloads_are_skipped_between_interfaces() {
        let between = |words: &str| format!("{words} --interface a --peer b");
        let (checked, notes) = with_parsed_selection(&between(""), |choice, plan| {
            (choice.check_measurable(plan), choice.notes(plan))
        });
        let is_skipped = |name: &str| notes.iter().any(|note| note.starts_with(&format!("SKIP: {name}: ")));
        assert!(checked.is_ok() && is_skipped("udp-send") && !is_skipped("capture"), "{notes:?}");
        let refused = with_parsed_selection(&between("tcp-send udp-send"), |choice, plan| {
            choice.check_measurable(plan)
        });
        assert!(matches!(refused, Err(Failure::Loopback { workload }) if workload == "udp-send, tcp-send"));
    }

    #[test]
    fn a_method_of_no_selected_workload_is_refused() {
        let refused =
            with_parsed_selection("capture --method tcpdump", |choice, plan| choice.check_measurable(plan));
        assert!(matches!(refused, Err(Failure::NothingToMeasure)));
    }
}
