//! README.md and the pages of docs/ against the manual pages that `nocopy man` writes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::running::nocopy_command;

/// README.md and the pages of docs/.
fn read_documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
    let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
    let paths = std::iter::once(root.join("README.md")).chain(pages);
    paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
}

/// The command lines of a document, from code spans and code blocks, each without the word `nocopy`.
fn command_lines(document: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for (index, block) in document.split("```").enumerate() {
        let pieces: Vec<&str> = match index % 2 {
            0 => block.split('`').skip(1).step_by(2).collect(),
            _ => block.lines().collect(),
        };
        for piece in pieces {
            let piece = piece.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
            let piece = piece.replace('\n', " ").replace("cargo run --release -- ", "nocopy ");
            let own = piece.split(['#', '|', ';', '&', '>']).next().unwrap_or_default();
            // A dependency, as Cargo.toml has it, is no command.
            let line = own.strip_prefix("nocopy ").filter(|line| !line.starts_with('='));
            lines.extend(line.map(str::to_owned));
        }
    }
    lines
}

/// The commands with their options, by the names of their pages: `nocopy-profile-sweep`.
struct ManualPages(BTreeMap<String, BTreeSet<String>>);

impl ManualPages {
    fn write_and_read() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let output =
            nocopy_command(&["man", "--output", directory.path().to_str().unwrap()]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let paths = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().path());
        let page = |path: PathBuf| {
            let options = options_of_page(&fs::read_to_string(&path).unwrap());
            (path.file_stem().unwrap().to_str().unwrap().to_owned(), options)
        };
        Self(paths.map(page).collect())
    }

    /// Whether there are the command and the options of a line; values are the reader's.
    fn check_command_line(&self, line: &str) -> Result<(), String> {
        let mut name = "nocopy".to_owned();
        let mut words = line.split_whitespace().peekable();
        while let Some(below) = words.peek().map(|word| format!("{name}-{word}")) {
            if !self.0.contains_key(&below) {
                break;
            }
            name = below;
            words.next();
        }
        if name == "nocopy" && words.peek().is_some_and(|word| !word.starts_with('-')) {
            return Err(format!("no such command: {line}"));
        }
        // Words after `--` are another program's.
        for word in words.take_while(|word| *word != "--") {
            let Some(option) = word.trim_start_matches('[').strip_prefix("--") else { continue };
            let option = option.split(['=', '[', ']', ',']).next().unwrap_or_default();
            if !self.0[&name].contains(option) {
                return Err(format!("no such option --{option}: {line}"));
            }
        }
        Ok(())
    }
}

/// The long options that a page names.
fn options_of_page(page: &str) -> BTreeSet<String> {
    let page = page.replace("\\-", "-");
    let is_name = |character: char| character.is_ascii_alphanumeric() || character == '-';
    let names = page.split("--").skip(1).filter_map(|rest| rest.split(|c: char| !is_name(c)).next());
    names.map(str::to_owned).collect()
}

#[test]
fn documents_name_commands_and_options_that_exist() {
    let pages = ManualPages::write_and_read();
    let mut checked = 0;
    let mut wrong = Vec::new();
    for (path, text) in read_documents() {
        for line in command_lines(&text) {
            checked += 1;
            let error = pages.check_command_line(&line).err();
            wrong.extend(error.map(|error| format!("{}: {error}", path.display())));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 50, "only {checked} command lines were found");
}

#[test]
fn unknown_commands_and_options_in_documents_are_detected() {
    let found =
        command_lines("text `nocopy bench --all` and\n```\n$ sudo nocopy sniff eth0 --quiet | head\n```\n");
    assert_eq!(found, ["bench --all", "sniff eth0 --quiet "]);
    let pages = ManualPages::write_and_read();
    for (line, is_known) in [
        ("sniff eth0 --quiet", true),
        ("profile sweep --json FILE", true),
        ("snif eth0", false),
        ("sniff eth0 --loud", false),
        ("sniff eth0 --quie", false),
    ] {
        assert_eq!(pages.check_command_line(line).is_ok(), is_known, "{line}");
    }
}

#[test]
fn links_in_documents_exist() {
    for (path, text) in read_documents() {
        let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
        for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
            assert!(path.parent().unwrap().join(link).exists(), "{}: {link}", path.display());
        }
    }
}
