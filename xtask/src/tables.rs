//! Tables of documents that commands write: between a line that names the command, and one that ends it.

use std::fs;

use crate::imports::read_source;
use crate::step::{Failed, repository_root};

/// The line after a table.
const END: &str = "<!-- end -->";

/// The line before the table of a command of xtask.
fn begin_marker(command: &str) -> String {
    format!("<!-- cargo xtask {command} -->")
}

/// Puts the table of a command of xtask into a document.
pub(crate) fn write_table(document: &str, command: &str, table: &str) -> Result<(), Failed> {
    let path = repository_root().join(document);
    let text = read_source(&path)?;
    let changed = document_with_table(&text, &begin_marker(command), table)
        .ok_or_else(|| no_marker(document, command))?;
    fs::write(&path, changed).map_err(|error| Failed(format!("{document}: {error}")))
}

/// Whether a document has exactly this table of a command. Errors: it has none.
pub(crate) fn has_table(document: &str, command: &str, table: &str) -> Result<bool, Failed> {
    let text = read_source(&repository_root().join(document))?;
    let with = document_with_table(&text, &begin_marker(command), table);
    with.map(|with| with == text).ok_or_else(|| no_marker(document, command))
}

fn no_marker(document: &str, command: &str) -> Failed {
    Failed(format!("{document}: has no line '{}'", begin_marker(command)))
}

/// The document with another table between its two lines.
fn document_with_table(text: &str, begin: &str, table: &str) -> Option<String> {
    let (before, rest) = text.split_once(begin)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{begin}\n{table}{END}{after}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_replaces_the_one_before() {
        let [one, other] = ["nightly one", "other"].map(begin_marker);
        let text = |of_other| format!("a\n{one}\n| one |\n{END}\nb\n{other}\n| {of_other} |\n{END}\nc\n");
        assert_eq!(document_with_table(&text("old"), &other, "| new |\n"), Some(text("new")));
        assert_eq!(document_with_table("no table", &one, ""), None);
    }
}
