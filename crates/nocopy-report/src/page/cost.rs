//! What processors spend on each packet, message or megabyte, and where.

use super::bench::once;
use crate::chart::{Bar, Stacks};
use crate::figure::Figure;
use crate::quantity;
use crate::result::{Row, Section};
use crate::result_table;
use crate::table::Table;

/// Of one row: sender, proxy, receiver, and all processors together.
struct Cost {
    threads: [Option<f64>; 3],
    machine: f64,
}

const THREADS: [&str; 3] = ["sender", "proxy", "receiver"];

impl Cost {
    fn of(row: &Row) -> Option<Self> {
        let (threads, machine) = match row.figure {
            Figure::MessagesPerSecond => (
                [row.sender_cpu_ns_per_message, None, row.receiver_cpu_ns_per_message],
                row.machine_cpu_ns_per_message,
            ),
            Figure::BytesPerSecond => (
                [row.sender_cpu_us_per_mb, row.proxy_cpu_us_per_mb, row.receiver_cpu_us_per_mb],
                row.machine_cpu_us_per_mb,
            ),
            _ => (
                [row.sender_cpu_ns_per_packet, None, row.receiver_cpu_ns_per_packet],
                row.machine_cpu_ns_per_packet,
            ),
        };
        Some(Self { threads, machine: machine? })
    }

    /// The threads' clocks and the machine's do not agree to the last nanosecond: then there is no rest.
    fn rest(&self) -> f64 {
        (self.machine - self.threads.iter().flatten().sum::<f64>()).max(0.0)
    }
}

/// The chart with its table; `None` where no processor time was measured.
pub(crate) fn chart(section: Section<'_>) -> Option<(Stacks, Table)> {
    let rows =
        once(section).filter_map(|row| Some((result_table::name(row, section.title()), Cost::of(row)?)));
    let rows: Vec<(String, Cost)> = rows.collect();
    let is_known = |&thread: &usize| rows.iter().any(|(_, cost)| cost.threads[thread].is_some());
    let threads: Vec<usize> = (0..THREADS.len()).filter(is_known).collect();
    if threads.is_empty() {
        return None;
    }
    let names = || threads.iter().map(|&thread| THREADS[thread]);
    let bar = |(name, cost): &(String, Cost)| Bar {
        name: name.clone(),
        amounts: threads.iter().map(|&t| cost.threads[t].unwrap_or(0.0)).chain([cost.rest()]).collect(),
    };
    let stacks = Stacks {
        title: format!("{}, less is better", unit(section.figure())),
        parts: names()
            .chain(["the rest of the machine: softirqs elsewhere, other work"])
            .map(str::to_owned)
            .collect(),
        bars: rows.iter().map(bar).collect(),
    };
    let cells = |(name, cost): &(String, Cost)| {
        let known = threads.iter().map(|&thread| cost.threads[thread]);
        let costs = known.chain([Some(cost.rest()), Some(cost.machine)]);
        let costs = costs.map(|cost| cost.map_or_else(|| "–".into(), quantity::short));
        std::iter::once(name.clone()).chain(costs).collect()
    };
    let header: Vec<_> = ["method"].into_iter().chain(names()).chain(["rest", "machine"]).collect();
    Some((stacks, Table::new(&header, 1..header.len(), rows.iter().map(cells).collect())))
}

fn unit(figure: Figure) -> &'static str {
    match figure {
        Figure::MessagesPerSecond => "Processor time, ns per message",
        Figure::BytesPerSecond => "Processor time, us per MB",
        _ => "Processor time, ns per packet",
    }
}
