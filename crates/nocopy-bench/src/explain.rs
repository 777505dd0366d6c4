//! `nocopy bench --explain`: prints the measurements and methods.

use std::fmt::Write as _;

use nocopy_report::headline_table::{OF_VETH, wrap_text};
use nocopy_report::result_table;
use nocopy_report::table::Table;

use crate::founding;
use crate::workload::{Workload, list};

const HOW: &str = "Every round runs every method once, in an order that rotates, so that methods are compared within a round: what the \
    machine does to one it does to its neighbours too. A sender writes every byte, a receiver reads every byte, each on a processor of \
    its own. Unless interfaces are named, the two ends are a veth pair between two private network namespaces.";

const HEADLINE: &str = "Without a workload, the main jobs are measured, a line for each other method: nocopy, the other method, and how many \
    times better nocopy is in the same rounds (ratio). Below 1 nocopy is worse. By hand is what a careful program does for this job alone; \
    TCP gathered copies many messages into one buffer and writes it by one call.";

/// The text for these workloads; if there are none, for all, with a common introduction.
pub(crate) fn explanation_text(workloads: &[&'static Workload]) -> String {
    if !workloads.is_empty() {
        return workloads.iter().copied().map(workload_text).collect::<Vec<_>>().join("\n");
    }
    let how = result_table::column_explanation();
    let general = [HOW, OF_VETH, &how, HEADLINE].map(wrap_text).join("\n\n") + "\n";
    let all = list::ALL.into_iter().chain(founding::ALL).map(workload_text);
    std::iter::once(general).chain(all).collect::<Vec<_>>().join("\n")
}

fn workload_text(workload: &Workload) -> String {
    let mut text = format!("{}: {}\n", workload.name, workload.about);
    let methods = workload.methods.iter().map(|(name, about)| vec![(*name).into(), (*about).into()]);
    text.push_str(&Table::new(&[], 0..0, methods.collect()).text());
    for note in workload.notes {
        let _ = writeln!(text, "{}", wrap_text(note));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_is_explained() {
        let all = explanation_text(&[]);
        assert!(all.contains("Below 1 nocopy is worse") && all.contains("veth has no zero-copy"), "{all}");
        for workload in list::ALL.into_iter().chain(founding::ALL) {
            let alone = explanation_text(&[workload]);
            assert!(all.contains(&alone), "{alone}");
            assert!(
                workload.methods.iter().all(|(name, about)| alone.contains(name) && alone.contains(about))
            );
        }
    }
}
