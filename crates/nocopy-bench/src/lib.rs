//! Part of the `nocopy` command, without a promised API: `nocopy bench`, which measures methods against each
//! other, in interleaved and paired rounds.
//!
//! ```text
//!   choice, plan ─▶ stage (a lab, or two interfaces) ─▶ series of trials ─▶ rounds ─▶ rows ─▶ JSON Lines, table
//! ```
//! A round runs every trial of every series once; the order within a series rotates from round to round. What
//! the machine does to one method in a round it does to its neighbours too, so ratios are taken round by
//! round, and survive a machine whose speed drifts.

// Used only by the crates of this workspace: comments are needed only where a name does not suffice.
#![allow(missing_docs)]

mod arguments;
mod asynchronous;
mod baseline;
mod bench;
mod card;
mod child;
mod choice;
mod conversation;
mod cpu;
mod datagram;
mod evidence;
mod explain;
mod failure;
mod founding;
mod frame;
mod generator;
mod headline;
mod lines;
mod message;
mod nfs_content;
mod pair;
mod plan;
mod ramp;
mod series;
mod ssh;
mod stage;
mod stream;
pub mod sweep;
mod traffic;
mod udp;
mod udp_over_port;
mod window;
mod workload;
mod xdp;

use std::time::Duration;

use nocopy_lab::Lab;
use nocopy_report::{Interrupt, Outcome, ResultFile, capability, page, print, result_table};
use serde::Deserialize;

pub use arguments::BenchArguments;
use baseline::{datagram_program, injector, nfs_client, nfs_server};
use bench::Bench;
pub use child::ChildKind;
use choice::{SelectionKind, WorkloadSelection};
pub use failure::Failure;
use pair::CabledPair;

/// The shortest time that is measured.
pub const WINDOW_MIN: Duration = Duration::from_millis(50);

/// How long to measure other load on the machine before the bench.
const BUSY_SAMPLE: Duration = Duration::from_millis(200);
const BUSY_PERCENT_MAX: f64 = 15.0;

pub fn run(arguments: &BenchArguments) -> Result<Outcome, Failure> {
    if arguments.explain {
        capability::drop_all_but(capability::NONE)?;
        print::print_text(&explain::explanation_text(&arguments.workloads))?;
        return Ok(Outcome::Positive);
    }
    let open = |path| ResultFile::open(path, arguments.force);
    let json = arguments.json.as_deref().map(open).transpose()?;
    let html = arguments.html.as_deref().map(open).transpose()?;
    let choice = WorkloadSelection::new(arguments);
    let cable = match &arguments.pair[..] {
        [interface, peer] => Some(CabledPair::take([interface, peer], arguments.yes)?),
        _ => None,
    };
    let mut plan = choice.plan(cable);
    // Only now, because writing to the directory of the files may need another capability.
    capability::drop_all_but(choice.required_capabilities())?;
    choice.check_measurable(&plan)?;
    // Impossible settings fail now, not after the first workload, and before a warning is printed.
    drop(plan.make_site_pair(Lab::builder())?);
    warn_if_busy();
    let interrupt = Interrupt::catch()?;
    let mut bench = Bench::begin(&plan, choice.result_header(&plan), json, &interrupt)?;
    let measured = choice.measure(&mut bench);
    let notes = choice.notes(&plan);
    let (report, written) = bench.end(&measured, notes);
    let measured = measured.and(plan.cable.take().map_or(Ok(()), CabledPair::put_back));
    capability::drop_all_but(capability::NONE)?;
    if !report.results.is_empty() || report.receive_analysis.is_some() {
        if let Some(html) = html {
            html.write(&page::bench_page(&report))?;
        }
        // The lines of the headline are printed already.
        match choice.kind {
            SelectionKind::Headline => headline::print_footer(&report)?,
            SelectionKind::Founding | SelectionKind::Workloads => result_table::print_report(&report)?,
        }
    }
    if let Err(failure) = measured.and(written) {
        if interrupt.was_interrupted() {
            print::print_status(format_args!("nocopy: {failure}"));
            interrupt.end_process();
        }
        return Err(failure);
    }
    Ok(if report.has_zero_figure() { Outcome::Negative } else { Outcome::Positive })
}

/// The main function of a process that the bench started.
pub fn run_child(kind: ChildKind, task: &str) -> Result<Outcome, Failure> {
    fn parse_task<'task, T: Deserialize<'task>>(task: &'task str) -> Result<T, Failure> {
        serde_json::from_str(task).map_err(Failure::Task)
    }
    match kind {
        ChildKind::Stream => stream::child_main(parse_task(task)?),
        ChildKind::Inject => injector::child_main(parse_task(task)?),
        ChildKind::Sendto => datagram_program::child_main(parse_task(task)?),
        ChildKind::ReadNfs => nfs_client::child_main(&parse_task(task)?),
        ChildKind::ServeNfs => nfs_server::child_main(parse_task(task)?),
        ChildKind::GuardPair => pair::guard_main(&parse_task(task)?),
    }
}

/// Other work on the processors is no error, but explains wide intervals to a reader.
fn warn_if_busy() {
    if let Ok(percent) = cpu::busy_percent(BUSY_SAMPLE)
        && percent >= BUSY_PERCENT_MAX
    {
        print::print_status(format_args!(
            "warning: the processors are {percent:.0} % busy with other work: rates will be low and intervals wide: \
             stop it, or repeat later"
        ));
    }
}
