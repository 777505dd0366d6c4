//! Which modules of its crate each file uses: every path that it writes, through all imports that rename or
//! re-export a name. Comments and tests are left out.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::step::Failed;

/// The most renames that are followed: enough for every import, and a limit for names that refer to
/// themselves.
const RENAMES_MAX: u32 = 8;

/// A module by its names from the root, which has an empty path.
pub(crate) type Module = Vec<String>;

#[derive(Debug, Default)]
pub(crate) struct CrateSources(pub(crate) BTreeMap<Module, SourceFile>);

#[derive(Debug)]
pub(crate) struct SourceFile {
    /// Below `src`.
    pub(crate) path: String,
    /// The full path of each imported name.
    names: BTreeMap<String, Module>,
    /// Every path of the crate that it writes, from the root.
    pub(crate) used: BTreeSet<Module>,
}

impl CrateSources {
    pub(crate) fn read(directory: &Path) -> Result<Self, Failed> {
        let mut texts = Vec::new();
        for path in rust_files_below(directory)? {
            let inside = path.strip_prefix(directory).expect("found in it").to_owned();
            texts.push((inside.display().to_string(), read_source(&path)?));
        }
        Ok(Self::from_texts(&texts))
    }

    pub(crate) fn from_texts(texts: &[(String, String)]) -> Self {
        let mut for_tests = BTreeSet::new();
        let mut files = BTreeMap::new();
        for (path, text) in texts {
            let mut module = module_path_of_file(Path::new(path));
            module.retain(|name| name != "main");
            let (code, modules_for_tests) = code_without_tests_and_comments(text);
            for_tests.extend(modules_for_tests.into_iter().map(|name| joined_path(&module, &[name])));
            files.insert(module, (path.clone(), code));
        }
        files.retain(|module, _| !for_tests.iter().any(|test| module.starts_with(test)));
        let modules: BTreeSet<Module> = files.keys().cloned().collect();
        let read = |(module, (path, code)): (Module, (String, String))| {
            let file = SourceFile::read(path, &code, &module, &modules);
            (module, file)
        };
        Self(files.into_iter().map(read).collect())
    }

    /// The module that contains the item of a path, through all imports that rename or re-export it.
    pub(crate) fn module_containing_item(&self, path: &[String]) -> Module {
        self.resolve_renames(path, RENAMES_MAX)
    }

    fn resolve_renames(&self, path: &[String], renames_left: u32) -> Module {
        let mut module = Module::new();
        for (index, name) in path.iter().enumerate() {
            let next = joined_path(&module, std::slice::from_ref(name));
            if self.0.contains_key(&next) {
                module = next;
                continue;
            }
            let target = self.0.get(&module).and_then(|file| file.names.get(name));
            return match target {
                Some(target) if renames_left > 0 => {
                    self.resolve_renames(&joined_path(target, &path[index + 1..]), renames_left - 1)
                }
                _ => module,
            };
        }
        module
    }
}

impl SourceFile {
    fn read(path: String, code: &str, module: &[String], modules: &BTreeSet<Module>) -> Self {
        let (mut names, mut used) = (BTreeMap::new(), BTreeSet::new());
        let (imports, rest) = split_off_imports(code);
        for import in imports {
            for (words, name) in expand_import_tree(&import) {
                if let Some(target) = path_from_root(&words, module, modules) {
                    names.insert(name, target.clone());
                    used.insert(target);
                }
            }
        }
        let target = |words: Module| match names.get(words.first()?) {
            Some(target) => Some(joined_path(target, &words[1..])),
            None => path_from_root(&words, module, modules),
        };
        used.extend(paths_written_in(&rest).filter_map(target));
        // A name that refers to itself, as 'use crate::a::B' does within 'a', has no other path.
        names.retain(|name, target| *target != joined_path(module, std::slice::from_ref(name)));
        Self { path, names, used }
    }
}

fn joined_path(module: &[String], names: &[String]) -> Module {
    [module, names].concat()
}

/// A path of this crate from its root; `None`: of another crate.
fn path_from_root(words: &[String], module: &[String], modules: &BTreeSet<Module>) -> Option<Module> {
    let supers = words.iter().take_while(|word| *word == "super").count();
    match words.first()?.as_str() {
        "crate" => Some(words[1..].to_vec()),
        "self" => Some(joined_path(module, &words[1..])),
        "super" => Some(joined_path(&module[..module.len().checked_sub(supers)?], &words[supers..])),
        _ => {
            let own = joined_path(module, &words[..1]);
            modules.contains(&own).then(|| joined_path(module, words))
        }
    }
}

/// Without comments and without tests, and the names of the files that are for tests.
fn code_without_tests_and_comments(text: &str) -> (String, Vec<String>) {
    let (mut code, mut for_tests, mut is_for_tests) = (String::new(), Vec::new(), false);
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        match declared_module_name(line.trim()) {
            Some(module) if is_for_tests => match module.strip_suffix(';') {
                Some(name) => for_tests.push(name.to_owned()),
                None => break, // the last thing in a file
            },
            _ => {
                code.push_str(line);
                code.push('\n');
            }
        }
        let line = line.trim();
        let is_attribute_of_tests = line.starts_with("#[cfg(test)]") || line.starts_with("#[cfg(all(test,");
        is_for_tests = is_attribute_of_tests || is_for_tests && line.starts_with("#[");
    }
    (code, for_tests)
}

/// The name of the module that a line declares, with what follows the name.
fn declared_module_name(line: &str) -> Option<&str> {
    let (visibility, module) = line.split_once("mod ")?;
    let is_restricted = visibility.starts_with("pub(") && visibility.ends_with(") ");
    (visibility.is_empty() || visibility == "pub " || is_restricted).then_some(module)
}

/// The path of each `use`, and the code without them.
fn split_off_imports(code: &str) -> (Vec<String>, String) {
    let (mut imports, mut rest, mut left) = (Vec::new(), String::new(), code);
    while let Some(at) = left.find("use ") {
        let (before, behind) = (&left[..at], &left[at + "use ".len()..]);
        rest.push_str(before);
        let line = before.rsplit('\n').next().unwrap_or_default().trim();
        let is_import = line.is_empty() || line.starts_with("pub");
        let is_of_import = |c: char| c.is_alphanumeric() || c.is_whitespace() || "_:{},*".contains(c);
        match behind.split_once(';').filter(|_| is_import) {
            Some((import, behind)) if import.chars().all(is_of_import) => {
                imports.push(import.to_owned());
                left = behind;
            }
            _ => left = behind, // a word of a text
        }
    }
    rest.push_str(left);
    (imports, rest)
}

/// The paths of an import, each with its local name.
fn expand_import_tree(text: &str) -> Vec<(Module, String)> {
    let text = text.trim();
    if let Some((head, group)) = text.split_once('{') {
        let head: Module = path_segments(head);
        let group = group.strip_suffix('}').unwrap_or(group);
        let parts = split_at_outer_commas(group).into_iter().flat_map(expand_import_tree);
        return parts.map(|(path, name)| (joined_path(&head, &path), name)).map(path_without_self).collect();
    }
    let (path, name) = text.split_once(" as ").unwrap_or((text, ""));
    let path = path_segments(path);
    let name =
        if name.is_empty() { path.last().cloned().unwrap_or_default() } else { name.trim().to_owned() };
    vec![path_without_self((path, name))]
}

/// `a::self` is `a`.
fn path_without_self((mut path, name): (Module, String)) -> (Module, String) {
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
        let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        return (path, name);
    }
    (path, name)
}

/// The parts between commas outside of braces.
fn split_at_outer_commas(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_u32, 0, Vec::new());
    for (at, character) in group.char_indices() {
        match character {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&group[start..]);
    parts.into_iter().filter(|part| !part.trim().is_empty()).collect()
}

fn path_segments(path: &str) -> Module {
    path.split("::").map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

/// The paths of code that have more than one name.
fn paths_written_in(code: &str) -> impl Iterator<Item = Module> {
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(move |c| !is_of_path(c)).filter(|path| path.contains("::")).map(path_segments)
}

/// The modules of a file, from the root: `port::xdp` for `port/xdp/mod.rs` as for `port/xdp.rs`; none for the
/// root itself.
pub(crate) fn module_path_of_file(inside: &Path) -> Vec<String> {
    let names = inside.with_extension("");
    let names = names.components().map(|name| name.as_os_str().to_string_lossy().into_owned());
    names.filter(|name| name != "mod" && name != "lib").collect()
}

pub(crate) fn rust_files_below(directory: &Path) -> Result<Vec<PathBuf>, Failed> {
    let failed = |error| Failed(format!("{}: {error}", directory.display()));
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            files.extend(rust_files_below(&path)?);
        } else if path.extension().is_some_and(|end| end == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

pub(crate) fn read_source(path: &Path) -> Result<String, Failed> {
    fs::read_to_string(path).map_err(|error| Failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_of_every_form_are_found() {
        let text = "use crate::one::{A, B};\nuse crate::{two::C, three::{self, D}};\n// crate::comment\nlet x = crate::four::f();\n\
                    use super::five;\nuse super::super::six;\nuse mycrate::no;\n$crate::seven!();\n#[cfg(test)]\nmod tests {\n use crate::test;\n}\n";
        let used = |path: &str, text: &str| -> Vec<String> {
            let sources = CrateSources::from_texts(&[(path.to_owned(), text.to_owned())]);
            sources.0.values().flat_map(|file| &file.used).map(|path| path.join("::")).collect()
        };
        let expected =
            ["a::five", "four::f", "one::A", "one::B", "seven", "six", "three", "three::D", "two::C"];
        assert_eq!(used("a/b.rs", text), expected);
        assert_eq!(used("a.rs", "use super::five;\n"), ["five"]);
    }

    #[test]
    fn a_file_knows_its_module() {
        for (path, module) in
            [("lib.rs", vec![]), ("a.rs", vec!["a"]), ("a/mod.rs", vec!["a"]), ("a/b.rs", vec!["a", "b"])]
        {
            assert_eq!(module_path_of_file(Path::new(path)), module);
        }
    }
}
