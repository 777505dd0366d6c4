//! `nocopy stats`: what is counted for an interface, live.

mod export;
mod report;

use std::thread::sleep;

use console::Term;
use nocopy::integration::statistics::Snapshot;

use crate::Failure;
use crate::arguments::StatsArguments;
use export::{json, openmetrics, table};
use nocopy_report::{Outcome, capability, print};
use report::{Owners, Report};

pub(crate) fn run(arguments: &StatsArguments) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::OTHERS)?;
    let mut owners = Owners::default();
    let mut now = Snapshot::of(&arguments.interface)?;
    if arguments.once || arguments.openmetrics {
        show(arguments, &Report::new(&now, None, &mut owners))?;
        return Ok(Outcome::Positive);
    }
    let mut refreshes = 0;
    while arguments.count.is_none_or(|count| refreshes < count) {
        sleep(arguments.interval);
        let before = std::mem::replace(&mut now, Snapshot::of(&arguments.interface)?);
        let report = Report::new(&now, Some(&before), &mut owners);
        if Term::stdout().is_term() && !arguments.json {
            redraw(&report, arguments.all, refreshes == 0)?;
        } else {
            show(arguments, &report)?;
        }
        refreshes += 1;
    }
    Ok(Outcome::Positive)
}

fn show(arguments: &StatsArguments, report: &Report) -> Result<(), nocopy_report::Failure> {
    let text = if arguments.json {
        json::line(report)
    } else if arguments.openmetrics {
        openmetrics::exposition(report)
    } else if Term::stdout().is_term() {
        table::table(report, arguments.all)
    } else {
        table::lines(report, arguments.all)
    };
    print::text(&text)
}

/// Draws the table over the last one, cut to what the terminal holds.
fn redraw(report: &Report, all: bool, first: bool) -> Result<(), nocopy_report::Failure> {
    let terminal = Term::stdout();
    let (rows, columns) = terminal.size();
    let text = print::printable(&table::table(report, all));
    let drawn = if first { terminal.clear_screen() } else { terminal.move_cursor_to(0, 0) };
    drawn
        .and_then(|()| terminal.clear_to_end_of_screen())
        .and_then(|()| terminal.write_str(&table::cut(&text, rows.into(), columns.into())))
        .and_then(|()| terminal.flush())
        .map_err(nocopy_report::Failure::Print)
}
