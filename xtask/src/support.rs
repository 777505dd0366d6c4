//! The tables of docs/support.md: what each feature needs, and what is known of drivers. They are made of the
//! lists that the library itself uses.

#[allow(dead_code, reason = "the library's own file: effects are for it")]
#[path = "../../crates/nocopy/src/facts/drivers.rs"]
mod drivers;
#[path = "../../crates/nocopy/src/facts/features.rs"]
mod features;
#[allow(dead_code, unreachable_pub, reason = "the library's own file")]
#[path = "../../crates/nocopy/src/facts/kernel.rs"]
mod kernel;

use std::fmt::Write as _;

use crate::gate::Outcome;
use crate::imports::read_source;
use crate::step::{Failed, repository_root};
use crate::tables::{has_table, write_table};

pub(crate) const DOCUMENT: &str = "docs/support.md";
const COMMAND: &str = "support";

/// A feature of the command that the library does not have.
struct CommandFeature {
    name: &'static str,
    /// The file with the error for older kernels, and the words in it after which the kernel is named.
    error: [&'static str; 2],
    interfaces: &'static str,
    capabilities: &'static [&'static str],
    test: &'static str,
}

const OF_COMMAND: [CommandFeature; 3] = [
    CommandFeature {
        name: "`nocopy serve nfs`",
        error: ["crates/nocopy-nfs/src/export/mod.rs", "openat2(2) keeps clients inside the directory"],
        interfaces: "all",
        capabilities: &[],
        test: "crates/nocopy-vm/src/tests/nfs_client.rs",
    },
    CommandFeature {
        name: "`nocopy serve nfs` as root, for its clients' users",
        error: ["crates/nocopy-nfs/src/export/caller.rs", "every client could act as root"],
        interfaces: "all",
        capabilities: &["CAP_SETUID", "CAP_SETGID"],
        test: "crates/nocopy-vm/src/tests/nfs_users.rs",
    },
    CommandFeature {
        name: "`nocopy profile`",
        error: ["crates/nocopy-profile/src/error.rs", "cannot attach to the tracepoint"],
        interfaces: "all",
        capabilities: &["CAP_BPF", "CAP_PERFMON"],
        test: "crates/nocopy-vm/src/tests/profile.rs",
    },
];

/// Compares the tables with the lists.
pub(crate) fn check_document_tables() -> Outcome {
    let same = || match has_table(DOCUMENT, COMMAND, &document_tables()?)? {
        true => Ok(()),
        false => Err(Failed(format!(
            "{DOCUMENT}: its tables differ from the library's lists; write them with 'cargo xtask {COMMAND}'"
        ))),
    };
    same().into()
}

pub(crate) fn write_document_tables() -> Result<(), Failed> {
    write_table(DOCUMENT, COMMAND, &document_tables()?)
}

/// Errors: a test that is named does not exist, or an error that names a kernel is gone.
fn document_tables() -> Result<String, Failed> {
    let mut text = String::from(
        "## Features\n\n| feature | Linux | interfaces | capabilities | tested by |\n|---|---|---|---|---|\n",
    );
    for feature in features::ALL {
        let features::Feature { name, kernel, interfaces, capabilities, test } = feature;
        text += &feature_row(name, &kernel.to_string(), interfaces, capabilities, test)?;
    }
    for CommandFeature { name, error: [file, words], interfaces, capabilities, test } in OF_COMMAND {
        let kernel = kernel_named_after(&read_source(&repository_root().join(file))?, words)
            .ok_or_else(|| Failed(format!("{file}: no kernel is named after '{words}'")))?;
        text += &feature_row(name, &kernel, interfaces, capabilities, test)?;
    }
    text += "\n## Drivers\n\n| drivers | what they do | so a port | tested by |\n|---|---|---|---|\n";
    for quirk in drivers::KNOWN {
        let (names, test) = (quirk.drivers.join(", "), link_to_test(quirk.test)?);
        check_source(quirk.source)?;
        let _ = writeln!(text, "| {names} | {} | {} | {test} |", quirk.does, quirk.port);
    }
    Ok(text)
}

fn feature_row(
    name: &str,
    kernel: &str,
    interfaces: &str,
    capabilities: &[&str],
    test: &str,
) -> Result<String, Failed> {
    let capabilities = if capabilities.is_empty() { "none".into() } else { capabilities.join(", ") };
    Ok(format!("| {name} | {kernel} | {interfaces} | {capabilities} | {} |\n", link_to_test(test)?))
}

/// A link to `FILE: FUNCTION`, or to `FILE`, a test of the VM lab. Errors: it is not there.
fn link_to_test(test: &str) -> Result<String, Failed> {
    let (file, function) = test.split_once(": ").map_or((test, None), |(file, name)| (file, Some(name)));
    let wanted = function.map_or("pub(crate) const TEST: Test".to_owned(), |name| format!("fn {name}()"));
    if !read_source(&repository_root().join(file))?.contains(&wanted) {
        return Err(Failed(format!("{file}: has no '{wanted}', which {DOCUMENT} names as a test")));
    }
    let name = function.unwrap_or_else(|| file.rsplit('/').next().unwrap_or(file).trim_end_matches(".rs"));
    Ok(format!("[`{name}`](../{file})"))
}

/// Whether the source of a fact about drivers is one that a reader finds: the kernel's, or a thread.
fn check_source(source: &str) -> Result<(), Failed> {
    match source.starts_with("linux ") || source.starts_with("github.com/") {
        true => Ok(()),
        false => Err(Failed(format!("'{source}': not a source of a fact about a driver"))),
    }
}

/// The first kernel after these words, written as `Linux 5.6`.
fn kernel_named_after(text: &str, words: &str) -> Option<String> {
    let named = text.split_once(words)?.1.split_once("use Linux ")?.1;
    let version = named.split(|c: char| !c.is_ascii_digit() && c != '.').next()?;
    (!version.is_empty()).then(|| version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_of_an_error_is_the_first_after_its_words() {
        let text = "Linux 4.1 \"a; use Linux 5.6 or newer\" \"b; use Linux 5.8, and c\" \"d\"";
        assert_eq!(kernel_named_after(text, "a;").as_deref(), Some("5.6"));
        assert_eq!(kernel_named_after(text, "b;").as_deref(), Some("5.8"));
        assert_eq!(kernel_named_after(text, "d"), None);
        assert_eq!(kernel_named_after(text, "gone"), None);
    }

    #[test]
    fn missing_tests_and_sources_are_refused() {
        assert!(link_to_test("crates/nocopy-vm/src/tests/driver.rs").unwrap().starts_with("[`driver`](../"));
        for test in ["crates/nocopy-vm/src/tests/gone.rs", "crates/nocopy-vm/src/tests/driver.rs: gone"] {
            assert!(link_to_test(test).is_err(), "{test}");
        }
        assert!(check_source("linux net/a.c: b").is_ok() && check_source("hearsay").is_err());
    }

    #[test]
    fn every_feature_has_a_row() {
        let text = document_tables().unwrap();
        for feature in features::ALL {
            assert!(text.contains(&format!("| {} | {} |", feature.name, feature.kernel)), "{text}");
        }
        assert_eq!(
            text.lines().filter(|line| line.starts_with("| ")).count(),
            2 + features::ALL.len() + OF_COMMAND.len() + drivers::KNOWN.len()
        );
    }
}
