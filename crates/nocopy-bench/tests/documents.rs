//! docs/bench.md names every workload and method.
#![allow(missing_docs)]

use clap::{Args, Command};
use nocopy_bench::BenchArguments;

#[test]
fn the_documentation_has_every_workload_and_method() {
    let page = include_str!("../../../docs/bench.md");
    let command = BenchArguments::augment_args(Command::new("bench"));
    for argument in ["workloads", "methods"] {
        let argument = command.get_arguments().find(|known| known.get_id() == argument).unwrap();
        let names = argument.get_possible_values();
        let names: Vec<&str> = names.iter().map(clap::builder::PossibleValue::get_name).collect();
        assert!(names.len() > 10, "{names:?}");
        let missing: Vec<_> = names.iter().filter(|name| !page.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "docs/bench.md lacks {missing:?}");
    }
}
