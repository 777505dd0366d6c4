//! `nocopy stats`: shows counters of interfaces, live.

mod export;
mod line;
mod live;
mod report;
mod summary;
mod watch;

use console::{Term, is_dumb};

use crate::Failure;
use crate::arguments::StatsArguments;
use export::{json, openmetrics, table};
use nocopy_report::{Interrupt, Outcome, capability, print};
use report::InterfaceReport;
use summary::ObservationSummary;
use watch::InterfaceMonitor;

pub(crate) fn run(arguments: &StatsArguments) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::OTHERS)?;
    let mut watch = InterfaceMonitor::new(arguments.interface.clone());
    if arguments.once || arguments.openmetrics {
        print_reports(arguments, &watch.refresh()?)?;
        return Ok(Outcome::Positive);
    }
    let first = watch.refresh()?;
    if Term::stdout().is_term() && !is_dumb() && !arguments.json {
        return live::run_live_view(&mut watch, first, arguments);
    }
    let interrupt = Interrupt::catch()?;
    let mut summary = ObservationSummary::new(&first);
    let failure = show_until_end(&mut watch, arguments, &interrupt, &mut summary).err();
    if failure.as_ref().is_some_and(Failure::is_broken_pipe) {
        return Ok(Outcome::Positive); // it ended with its reader
    }
    let is_for_programs = arguments.json || !Term::stdout().is_term();
    print::print_summary_text(&summary.summary_line(), is_for_programs, failure, Outcome::Positive)
}

/// Shows each refresh until all are shown or a signal asks for the end.
fn show_until_end(
    watch: &mut InterfaceMonitor,
    arguments: &StatsArguments,
    interrupt: &Interrupt,
    summary: &mut ObservationSummary,
) -> Result<(), Failure> {
    let mut refreshes = 0;
    while arguments.count.is_none_or(|count| refreshes < count) {
        let is_over = interrupt.sleep(arguments.interval);
        let reports = watch.refresh()?;
        summary.add_reports(&reports);
        if is_over {
            break;
        }
        print_reports(arguments, &reports)?;
        refreshes += 1;
    }
    Ok(())
}

fn print_reports(
    arguments: &StatsArguments,
    reports: &[InterfaceReport],
) -> Result<(), nocopy_report::Failure> {
    let text = if arguments.json {
        reports.iter().map(json::json_line).collect()
    } else if arguments.openmetrics {
        openmetrics::openmetrics_text(reports)
    } else if Term::stdout().is_term() {
        reports.iter().map(|report| table::counter_table_text(report, arguments.all)).collect()
    } else {
        table::counter_lines_text(reports, arguments.all)
    };
    print::print_text(&text)
}
