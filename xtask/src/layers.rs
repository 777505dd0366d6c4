//! The layers of a crate: modules that use only modules below them.
//!
//! A crate declares them in the documentation of its root: a block of text after [`HEADING`], one layer a line, the highest first. A module
//! may use those of the lines below its own. Tests are left out: tests of a low layer may use higher ones.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::Outcome;
use crate::step::{Failed, root};

const CRATES: [&str; 5] = [
    "crates/nocopy",
    "crates/nocopy-proto",
    "crates/nocopy-pcap",
    "crates/nocopy-sockets",
    "crates/nocopy-nfs",
];

/// Marks the comment line before the declaration.
const HEADING: &str = "in their layers";

/// Checks every import in the crates that declare layers.
pub(crate) fn check() -> Outcome {
    let check_all = || {
        let mut found = Vec::new();
        for name in CRATES {
            check_crate(&root().join(name).join("src"), &mut found)?;
        }
        if found.is_empty() { Ok(()) } else { Err(Failed(format!("layers\n{}", found.join("\n")))) }
    };
    check_all().into()
}

fn check_crate(sources: &Path, found: &mut Vec<String>) -> Result<(), Failed> {
    let lib = sources.join("lib.rs");
    let layers = Layers::declared(&read(&lib)?).ok_or_else(|| {
        Failed(format!("{}: no line that ends '{HEADING}', with a block after it", lib.display()))
    })?;
    for path in rust_files(sources)? {
        let inside = path.strip_prefix(sources).expect("found in it");
        let module: Vec<String> = module_of(inside);
        if module.is_empty() || is_of_tests(&module) {
            continue;
        }
        let shown = path.strip_prefix(root()).unwrap_or(&path).display().to_string();
        for (line, used) in imports(&read(&path)?, module.len()) {
            if let Err(why) = layers.allow(&module[0], &used) {
                found.push(format!("{shown}:{line}: {why}"));
            }
        }
    }
    Ok(())
}

/// The height of each module: the lines of the declaration, counted from the top.
#[derive(Debug)]
struct Layers(BTreeMap<String, usize>);

impl Layers {
    fn declared(lib: &str) -> Option<Self> {
        let mut lines = lib.lines().map_while(|line| line.strip_prefix("//!"));
        lines.find(|line| line.contains(HEADING))?;
        lines.find(|line| line.trim() == "```text")?;
        let block = lines.take_while(|line| line.trim() != "```");
        let of_line = |(depth, line): (usize, &str)| {
            line.split_whitespace().map(|module| (module.to_owned(), depth)).collect::<Vec<_>>()
        };
        Some(Self(block.enumerate().flat_map(of_line).collect()))
    }

    fn allow(&self, user: &str, used: &str) -> Result<(), String> {
        let depth = |module: &str| {
            self.0.get(module).ok_or_else(|| match module.starts_with(char::is_uppercase) {
                true => {
                    format!("'{module}' is a name for users of the crate; name the module that it lies in")
                }
                false => format!("'{module}' has no layer; declare it in lib.rs, after 'in their layers'"),
            })
        };
        let is_allowed = user == used || depth(user)? < depth(used)?;
        is_allowed.then_some(()).ok_or_else(|| {
            format!("'{user}' uses '{used}', which does not lie below it; see the layers in lib.rs")
        })
    }
}

/// The modules of a file, from the root: `port::xdp` for `port/xdp/mod.rs` as for `port/xdp.rs`; none for the root itself.
pub(crate) fn module_of(inside: &Path) -> Vec<String> {
    let names = inside.with_extension("");
    let names = names.components().map(|name| name.as_os_str().to_string_lossy().into_owned());
    names.filter(|name| name != "mod" && name != "lib").collect()
}

/// Models are shared by tests and fuzz targets.
fn is_of_tests(module: &[String]) -> bool {
    module.iter().any(|name| name == "tests" || name == "model")
}

/// The modules of the root that a file uses, each with its line; `depth` is how many modules deep the file is.
fn imports(text: &str, depth: usize) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let from_root = "super::".repeat(depth);
    let code = without_comments_and_tests(text);
    for (at, before) in code.match_indices("crate::").chain(code.match_indices(&from_root)) {
        let is_longer = code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':');
        let line = 1 + code[..at].matches('\n').count();
        let rest = &code[at + before.len()..];
        if !is_longer && !rest.starts_with("super") {
            found.extend(heads(rest).into_iter().map(|head| (line, head)));
        }
    }
    found.sort();
    found.dedup();
    found
}

/// The first words of a path, or of each path of a group in braces.
fn heads(path: &str) -> Vec<String> {
    let word = |text: &str| {
        text.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>()
    };
    let Some(group) = path.strip_prefix('{') else { return vec![word(path)] };
    let (mut depth, mut starts) = (0_usize, vec![0]);
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => starts.push(at + 1),
            _ => {}
        }
    }
    starts.into_iter().map(|at| word(&group[at..])).filter(|head| !head.is_empty()).collect()
}

/// The code, with line numbers unchanged; a module of tests is always at the end of a file.
fn without_comments_and_tests(text: &str) -> String {
    let of_tests = ["\n#[cfg(test)]\nmod ", "\n#[cfg(all(test, "];
    let tests = of_tests.iter().filter_map(|start| text.find(start)).min().unwrap_or(text.len());
    let of_line = |line: &str| match line.find("//") {
        Some(at) => line[..at].to_owned(),
        None => line.to_owned(),
    };
    text[..tests].lines().map(of_line).collect::<Vec<_>>().join("\n")
}

pub(crate) fn rust_files(directory: &Path) -> Result<Vec<PathBuf>, Failed> {
    let failed = |error| Failed(format!("{}: {error}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            files.extend(rust_files(&path)?);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read(path: &Path) -> Result<String, Failed> {
    fs::read_to_string(path).map_err(|error| Failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIB: &str = "//! A crate.\n//!\n//! The modules in their layers:\n//!\n//! ```text\n//! high\n//! left  right\n//! low\n//! ```\nmod low;\n";

    #[test]
    fn only_what_lies_below_is_allowed() {
        let layers = Layers::declared(LIB).unwrap();
        for (user, used) in [("high", "left"), ("high", "low"), ("right", "low"), ("left", "left")] {
            layers.allow(user, used).unwrap();
        }
        for (user, used) in [("low", "high"), ("low", "left"), ("left", "right")] {
            assert!(layers.allow(user, used).unwrap_err().contains("does not lie below"));
        }
        assert!(layers.allow("high", "Name").unwrap_err().contains("for users"));
        assert!(layers.allow("high", "unknown").unwrap_err().contains("declare it"));
        assert!(Layers::declared("//! A crate without.\n").is_none());
    }

    #[test]
    fn imports_are_found_however_they_are_written() {
        let text = "use crate::one::{A, B};\nuse crate::{two::C, three::{self, D}};\n// crate::comment\nlet x = crate::four::f();\n\
                    use super::five;\nuse super::super::six;\nuse mycrate::no;\n$crate::seven!();\n#[cfg(test)]\nmod tests {\n use crate::test;\n}\n";
        let found: Vec<(usize, String)> = imports(text, 2);
        let expected = [(1, "one"), (2, "three"), (2, "two"), (4, "four"), (6, "six"), (8, "seven")];
        assert_eq!(found, expected.map(|(line, name)| (line, name.to_owned())));
        assert_eq!(imports("use super::five;\n", 1), [(1, "five".to_owned())]);
    }

    #[test]
    fn a_file_knows_its_module() {
        for (path, module) in
            [("lib.rs", vec![]), ("a.rs", vec!["a"]), ("a/mod.rs", vec!["a"]), ("a/b.rs", vec!["a", "b"])]
        {
            assert_eq!(module_of(Path::new(path)), module);
        }
    }
}
