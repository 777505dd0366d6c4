//! The nightly suite `licences`, and `cargo xtask advisories`: what cargo-deny finds about all dependencies.

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed};
use crate::suite::install_tool;

/// The program of crates.io, with its version: one that builds with Rust 1.95.
const PROGRAM: [&str; 2] = ["cargo-deny", "0.20.2"];

/// Licences, bans and sources.
pub(crate) fn check_licences() -> Outcome {
    check_dependencies(&["bans", "licenses", "sources"]).into()
}

/// Advisories. Their database is fetched from a host that a build machine need not reach, so no suite has
/// them.
pub(crate) fn check_advisories() -> Result<(), Failed> {
    check_dependencies(&["advisories"])
}

fn check_dependencies(what: &[&str]) -> Result<(), Failed> {
    let program = install_tool(PROGRAM)?.display().to_string();
    CommandStep::new(&what.join(", "), &program, &[&["check"], what].concat()).run()
}
