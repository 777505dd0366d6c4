//! The options of `nocopy bench`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use nocopy_report::quantity;

use crate::WINDOW_MIN;
use crate::workload::{Workload, list};

#[derive(Debug, Args)]
pub struct BenchArguments {
    /// What to measure (default: the main jobs in one table, in less than a minute).
    #[arg(value_name = "WORKLOAD", value_parser = workload_parser())]
    pub(crate) workloads: Vec<&'static Workload>,
    /// Measure everything, which takes about 22 minutes.
    #[arg(long, conflicts_with = "workloads")]
    pub all: bool,
    /// Repeat what five published zero-copy systems measured, and print it beside their figures, in about 5
    /// minutes.
    #[arg(long, conflicts_with_all = ["workloads", "all", "methods", "interface"])]
    pub founding: bool,
    /// Explain what is measured and how, without measuring
    #[arg(long, conflicts_with_all = ["json", "html"])]
    pub explain: bool,
    /// Measure for half the time
    #[arg(long)]
    pub quick: bool,
    /// How many times every method runs; fewer if the time runs out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub rounds: Option<u32>,
    /// How long every method runs in a round, whatever the time allows; 50 ms at least. For tests.
    #[arg(long, value_name = "TIME", value_parser = parse_window, hide = true)]
    pub window: Option<Duration>,
    /// Write the results to FILE too, as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the results to FILE too, as a page with charts, for any browser.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Overwrite files that exist.
    #[arg(long)]
    pub force: bool,
    /// Send from this interface instead of a private lab; the bench attaches an XDP program to it while it
    /// runs
    #[arg(long, value_name = "A", requires = "peer")]
    pub interface: Option<String>,
    /// Receive on this interface, which must be connected to A.
    #[arg(long, value_name = "B", requires = "interface")]
    pub peer: Option<String>,
    /// Measure the headline between two ports of this machine that are cabled to each other, and print a
    /// table of their card. They leave this machine's network meanwhile, and come back as they were. Ports
    /// that carry SSH are refused, but SSH through a tunnel and mosh are not seen
    #[arg(long, num_args = 2, value_names = ["A", "B"],
          conflicts_with_all = ["workloads", "all", "founding", "explain", "methods", "interface", "peer"])]
    pub pair: Vec<String>,
    /// Do not ask before --pair takes the ports
    #[arg(long, requires = "pair")]
    pub yes: bool,
    /// Only this method, in all workloads or those that are named; may be repeated. Name its baseline, too,
    /// to have a ratio.
    #[arg(long = "method", value_name = "METHOD", value_parser = PossibleValuesParser::new(list::method_names()))]
    pub methods: Vec<String>,
    /// The interpreter of the workload 'python', with the packages that are compared (default: the one that
    /// 'cargo xtask python' makes below the present directory, otherwise python3).
    #[arg(long, value_name = "PATH")]
    pub python: Option<PathBuf>,
}

fn parse_window(text: &str) -> Result<Duration, String> {
    let window = quantity::parse_duration(text)?;
    let is_enough = window >= WINDOW_MIN;
    is_enough
        .then_some(window)
        .ok_or_else(|| format!("less than {}: write more", quantity::time_text(WINDOW_MIN.as_secs_f64())))
}

fn workload_parser() -> impl TypedValueParser<Value = &'static Workload> {
    let names = list::ALL.map(|workload| PossibleValue::new(workload.name).help(workload.about));
    PossibleValuesParser::new(names).map(|name| {
        let found = list::ALL.into_iter().find(|workload| workload.name == name);
        found.expect("clap lets through the names of workloads alone")
    })
}
