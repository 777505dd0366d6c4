//! The checks that need no traffic: formatting, lints, two selections of features, the width of comments,
//! layers, circles of imports, lines of message code, public items, names and links in documents, names in
//! sources, what runs where, API documentation, BPF objects, the published crates, the oldest Rust, and the
//! rows of nightly suites.

use crate::gate::Gate;
use crate::release::crates;
use crate::step::{CommandStep, Failed, files_with_ending};
use crate::{
    api, bpf, circles, docs, features, layers, links, names, nightly, oldest_rust, sizes, support, width,
};

pub(crate) fn run_checks(gate: &mut Gate) {
    gate.run("formatting", || check_formatting().into());
    gate.run("lints and fuzz targets", || lint_step().run().into());
    gate.run("two selections of features", features::check_two_selections);
    gate.run("width of comments", width::check_comment_widths);
    gate.run("layers", layers::check_layers);
    gate.run("circles of imports", circles::check_import_circles);
    gate.run("lines of message code", sizes::check_message_lines);
    gate.run("public items", api::check_committed_list);
    gate.run("names in documents", names::check_documents);
    gate.run("links in documents", links::check_documents);
    gate.run("what runs where", support::check_document_tables);
    gate.run("names in sources", names::check_refused_names);
    gate.run("documentation", || docs::api_documentation_step().run().into());
    gate.run("BPF objects", bpf::check_objects);
    gate.run("published crates", crates::check_crates);
    gate.run("oldest Rust", oldest_rust::check_named_versions);
    gate.run("nightly rows", nightly::check_verdict_rows);
}

fn check_formatting() -> Result<(), Failed> {
    CommandStep::cargo("formatting", &["fmt", "--all", "--check"]).run()?;
    // cargo fmt does not see files that a build script makes modules.
    let files = files_with_ending("crates/nocopy-vm/src/tests", ".rs")?;
    let paths: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    let options = ["--check", "--edition", "2024"];
    let all: Vec<&str> = options.into_iter().chain(paths.iter().map(String::as_str)).collect();
    CommandStep::new("formatting of the VM lab's tests", "rustfmt", &all).run()
}

fn lint_step() -> CommandStep {
    let what = ["clippy", "--workspace", "--all-features", "--all-targets", "--", "-D", "warnings"];
    CommandStep::cargo("lints", &what)
}
