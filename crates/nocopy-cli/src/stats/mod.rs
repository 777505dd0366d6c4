//! `nocopy stats`: what is counted for interfaces, live.

mod export;
mod live;
mod report;
mod watch;

use std::thread::sleep;

use console::{Term, is_dumb};

use crate::Failure;
use crate::arguments::StatsArguments;
use export::{json, openmetrics, table};
use nocopy_report::{Outcome, capability, print};
use report::Report;
use watch::Watch;

pub(crate) fn run(arguments: &StatsArguments) -> Result<Outcome, Failure> {
    capability::drop_all_but(capability::OTHERS)?;
    let mut watch = Watch::new(arguments.interface.clone());
    if arguments.once || arguments.openmetrics {
        show(arguments, &watch.refresh()?)?;
        return Ok(Outcome::Positive);
    }
    if Term::stdout().is_term() && !is_dumb() && !arguments.json {
        return live::run(&mut watch, arguments);
    }
    watch.refresh()?;
    let mut refreshes = 0;
    while arguments.count.is_none_or(|count| refreshes < count) {
        sleep(arguments.interval);
        show(arguments, &watch.refresh()?)?;
        refreshes += 1;
    }
    Ok(Outcome::Positive)
}

fn show(arguments: &StatsArguments, reports: &[Report]) -> Result<(), nocopy_report::Failure> {
    let text = if arguments.json {
        reports.iter().map(json::line).collect()
    } else if arguments.openmetrics {
        openmetrics::exposition(reports)
    } else if Term::stdout().is_term() {
        reports.iter().map(|report| table::table(report, arguments.all)).collect()
    } else {
        table::lines(reports, arguments.all)
    };
    print::text(&text)
}
