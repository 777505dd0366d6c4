//! Links in documents: each file, directory and heading that a document links to exists.
//!
//! A link is `[text](target)` outside of code. Addresses with a scheme are not looked up: the check needs no
//! network.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

use crate::gate::Outcome;
use crate::imports::read_source;
use crate::step::{Failed, repository_root};

/// Directories that are made by builds, or by git.
const NOT_DOCUMENTS: [&str; 2] = ["target", ".git"];

pub(crate) fn check_documents() -> Outcome {
    let check_all = || {
        let root = repository_root();
        let mut documents = BTreeMap::new();
        read_documents(&root, Path::new(""), &mut documents)?;
        let exists = |path: &Path| root.join(path).exists();
        match dead_links(&documents, exists) {
            dead if dead.is_empty() => Ok(()),
            dead => Err(Failed(format!("documents link to what does not exist:\n{}", dead.join("\n")))),
        }
    };
    check_all().into()
}

/// Reads all documents below a directory of the repository, by their paths from its root.
fn read_documents(root: &Path, below: &Path, into: &mut BTreeMap<PathBuf, String>) -> Result<(), Failed> {
    let directory = root.join(below);
    let failed = |error| Failed(format!("{}: {error}", directory.display()));
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = below.join(entry.file_name());
        if entry.file_type().map_err(failed)?.is_dir() {
            if !NOT_DOCUMENTS.iter().any(|name| path.ends_with(name)) {
                read_documents(root, &path, into)?;
            }
        } else if path.extension().is_some_and(|extension| extension == "md") {
            into.insert(path, read_source(&entry.path())?);
        }
    }
    Ok(())
}

/// The links that lead nowhere, each with its document and line.
fn dead_links(documents: &BTreeMap<PathBuf, String>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut dead = Vec::new();
    for (document, text) in documents {
        for (line, target) in link_targets(text) {
            if let Some(what) = fault_of_target(document, &target, documents, &exists) {
                dead.push(format!("{}:{line}: {target}: {what}", document.display()));
            }
        }
    }
    dead
}

/// What is missing at the end of a link of a document.
fn fault_of_target(
    document: &Path,
    target: &str,
    documents: &BTreeMap<PathBuf, String>,
    exists: impl Fn(&Path) -> bool,
) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(path, anchor)| (path, Some(anchor)));
    let file = match path {
        "" => Some(document.to_owned()),
        _ => normal_path(&document.parent().unwrap_or(Path::new("")).join(path)),
    };
    let Some(file) = file.filter(|file| exists(file)) else { return Some("no such file or directory") };
    // Lines of a source, for example, are no headings.
    let (anchor, text) = (anchor?, documents.get(&file)?);
    (!anchors(text).contains(anchor)).then_some("no such heading")
}

/// The path without `.` and `..`; `None` if it leads out of the repository.
fn normal_path(path: &Path) -> Option<PathBuf> {
    let mut normal = PathBuf::new();
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => normal.pop().then_some(())?,
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(normal)
}

/// The targets of all links outside of code, each with its line.
fn link_targets(text: &str) -> Vec<(usize, String)> {
    let text = without_code(text);
    let ends = text.match_indices("](");
    let target = |(at, _): (usize, &str)| {
        let target = text[at + 2..].split([')', ' ', '\n']).next().unwrap_or_default();
        (1 + text[..at].matches('\n').count(), target.to_owned())
    };
    ends.map(target).collect()
}

/// The text with as many lines, but without code between backticks and in blocks.
fn without_code(text: &str) -> String {
    let (mut kept, mut is_in_block, mut is_in_span) = (String::new(), false, false);
    for line in text.lines() {
        let is_fence = line.trim_start().starts_with("```");
        is_in_block ^= is_fence;
        // A span may go over the end of a line, but not of a paragraph.
        is_in_span &= !line.trim().is_empty() && !is_fence && !is_in_block;
        if !is_in_block && !is_fence {
            for (number, part) in line.split('`').enumerate() {
                is_in_span ^= number > 0;
                if !is_in_span {
                    kept += part;
                }
            }
        }
        kept.push('\n');
    }
    kept
}

/// The anchors of a document's headings: in lower case, with hyphens for spaces, and without other
/// punctuation; a heading that is repeated has a number at its end.
fn anchors(text: &str) -> BTreeSet<String> {
    let (mut found, mut is_in_block) = (BTreeSet::new(), false);
    for line in text.lines() {
        is_in_block ^= line.trim_start().starts_with("```");
        let heading = line.trim_start_matches('#');
        if is_in_block || !line.starts_with('#') || !heading.starts_with(' ') {
            continue;
        }
        let anchor = anchor_of_heading(heading.trim());
        let numbered = (1..).map(|number| format!("{anchor}-{number}"));
        let free = std::iter::once(anchor.clone()).chain(numbered).find(|name| !found.contains(name));
        found.extend(free);
    }
    found
}

fn anchor_of_heading(heading: &str) -> String {
    let letters = heading.chars().flat_map(char::to_lowercase);
    let kept = letters.filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const GUIDE: &str =
        "# Guide\n\n## To a host: `udp://HOST:PORT`\n## Twice\n## Twice\n```\n# no heading\n```\n";

    fn dead_links_of(text: &str) -> Vec<String> {
        let documents = [("docs/a.md", text), ("docs/guide.md", GUIDE), ("README.md", "# Title\n")];
        let documents: BTreeMap<PathBuf, String> =
            documents.into_iter().map(|(path, text)| (path.into(), text.to_owned())).collect();
        let others = ["docs", "crates/nocopy/src/lib.rs"].map(PathBuf::from);
        dead_links(&documents, |path| {
            documents.contains_key(path) || others.iter().any(|other| path == other)
        })
    }

    #[test]
    fn links_that_lead_somewhere_pass() {
        let text = "# A\n[1](guide.md) [2](../README.md#title) [3](guide.md#to-a-host-udphostport) [4](#a)\n\
                    [5](guide.md#twice-1) [6](../docs) [7](https://gone.example/#x) [8](../crates/nocopy/src/lib.rs#L7)\n\
                    [a\nlong text](guide.md 'title') `[code](gone.md)` ![image](guide.md)\n```\n[block](gone.md)\n```\n";
        assert_eq!(dead_links_of(text), [""; 0]);
    }

    #[test]
    fn links_that_lead_nowhere_fail_with_their_line() {
        let text =
            "# A\n\n[1](gone.md)\n`code` [2](guide.md#no-heading) [`x`](#b)\n[3](../../outside) [4](/docs)\n";
        assert_eq!(
            dead_links_of(text),
            [
                "docs/a.md:3: gone.md: no such file or directory",
                "docs/a.md:4: guide.md#no-heading: no such heading",
                "docs/a.md:4: #b: no such heading",
                "docs/a.md:5: ../../outside: no such file or directory",
                "docs/a.md:5: /docs: no such file or directory",
            ]
        );
    }
}
