//! The checks that need no traffic: formatting, lints, the width of comments, layers, circles of imports,
//! public items, names in documents and sources, API documentation, BPF objects, the oldest Rust, and the
//! rows of nightly suites.

use crate::gate::Gate;
use crate::step::{CommandStep, Failed, files};
use crate::{api, bpf, circles, docs, layers, names, nightly, oldest_rust, width};

pub(crate) fn run(gate: &mut Gate) {
    gate.run("formatting", || formatting().into());
    gate.run("lints and fuzz targets", || lints().run().into());
    gate.run("width of comments", width::check);
    gate.run("layers", layers::check);
    gate.run("circles of imports", circles::check);
    gate.run("public items", api::check);
    gate.run("names in documents", names::check);
    gate.run("names in sources", names::check_sources);
    gate.run("documentation", || docs::api().run().into());
    gate.run("BPF objects", bpf::check);
    gate.run("oldest Rust", oldest_rust::check);
    gate.run("nightly rows", nightly::check);
}

fn formatting() -> Result<(), Failed> {
    CommandStep::cargo("formatting", &["fmt", "--all", "--check"]).run()?;
    // cargo fmt does not see files that a build script makes modules.
    let files = files("crates/nocopy-vm/src/tests", ".rs")?;
    let paths: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let options = ["--check", "--edition", "2024"];
    let all: Vec<&str> = options.into_iter().chain(paths.iter().map(String::as_str)).collect();
    CommandStep::new("formatting of the VM lab's tests", "rustfmt", &all).run()
}

fn lints() -> CommandStep {
    let what = ["clippy", "--workspace", "--all-features", "--all-targets", "--", "-D", "warnings"];
    CommandStep::cargo("lints", &what)
}
