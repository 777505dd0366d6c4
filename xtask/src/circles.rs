//! Circles of imports: files of a crate that use each other, directly or through further files.
//!
//! They are looked for in every crate of the workspace. A module and its own submodules may use each other, as they are one unit in several
//! files. Tests are left out. The circles that are [`known`] stay until an issue opens them.

mod known;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::gate::Outcome;
use crate::layers::{module_of, read, rust_files};
use crate::step::{Failed, Step, root};

/// The most renames that are followed: enough for every import, and a limit for names that refer to themselves.
const RENAMES_MAX: u32 = 8;

/// A module by its names from the root, which has an empty path.
type Module = Vec<String>;

/// The files that each file uses.
type Edges<'a> = BTreeMap<&'a Module, BTreeSet<Module>>;

/// Files of which each uses all others, directly or through further files; each with the shortest circle through it, which begins and ends
/// with that file. All paths are below `src`.
type Circle = BTreeMap<String, Vec<String>>;

pub(crate) fn check() -> Outcome {
    let check_all = || {
        let mut found = Vec::new();
        for directory in members()? {
            let circles = Sources::read(&root().join(&directory).join("src"))?.circles();
            found.extend(circles.into_iter().map(|circle| (directory.clone(), circle)));
        }
        known::compare(&found, known::ALL).map_err(Failed)
    };
    check_all().into()
}

/// The directories of all crates of the workspace, below its root.
fn members() -> Result<Vec<String>, Failed> {
    #[derive(Deserialize)]
    struct Metadata {
        packages: Vec<Package>,
    }
    #[derive(Deserialize)]
    struct Package {
        manifest_path: PathBuf,
    }
    let what = ["metadata", "--no-deps", "--format-version", "1"];
    let text = Step::cargo("crates of the workspace", &what).captured()?;
    let Metadata { packages } =
        serde_json::from_str(&text).map_err(|error| Failed(format!("cargo metadata: {error}")))?;
    let directory = |package: &Package| {
        let directory = package.manifest_path.parent().expect("a manifest lies in a directory");
        directory.strip_prefix(root()).unwrap_or(directory).display().to_string()
    };
    Ok(packages.iter().map(directory).collect())
}

#[derive(Debug, Default)]
struct Sources(BTreeMap<Module, File>);

#[derive(Debug)]
struct File {
    /// Below `src`.
    path: String,
    /// The full path of each imported name.
    names: BTreeMap<String, Module>,
    /// Every path of the crate that it writes, from the root.
    used: BTreeSet<Module>,
}

impl Sources {
    fn read(directory: &Path) -> Result<Self, Failed> {
        let mut texts = Vec::new();
        for path in rust_files(directory)? {
            let inside = path.strip_prefix(directory).expect("found in it").to_owned();
            texts.push((inside.display().to_string(), read(&path)?));
        }
        Ok(Self::of(&texts))
    }

    fn of(texts: &[(String, String)]) -> Self {
        let mut for_tests = BTreeSet::new();
        let mut files = BTreeMap::new();
        for (path, text) in texts {
            let mut module = module_of(Path::new(path));
            module.retain(|name| name != "main");
            let (code, modules_for_tests) = code_of(text);
            for_tests.extend(modules_for_tests.into_iter().map(|name| below(&module, &[name])));
            files.insert(module, (path.clone(), code));
        }
        files.retain(|module, _| !for_tests.iter().any(|test| module.starts_with(test)));
        let modules: BTreeSet<Module> = files.keys().cloned().collect();
        let read = |(module, (path, code)): (Module, (String, String))| {
            let file = File::read(path, &code, &module, &modules);
            (module, file)
        };
        Self(files.into_iter().map(read).collect())
    }

    fn circles(&self) -> Vec<Circle> {
        let edges: Edges<'_> =
            self.0.iter().map(|(module, file)| (module, self.uses(module, file))).collect();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|module| (module, reached_from(module, &edges))).collect();
        let mut left: Vec<&Module> =
            self.0.keys().filter(|module| reached[module].contains(module)).collect();
        let mut circles = Vec::new();
        while let Some(&start) = left.first() {
            let is_with_start =
                |module: &&Module| reached[start].contains(module) && reached[module].contains(start);
            let (circle, others) = left.into_iter().partition::<Vec<_>, _>(is_with_start);
            circles.push(circle.into_iter().map(|module| self.shortest_circle(module, &edges)).collect());
            left = others;
        }
        circles
    }

    /// A file that is in a circle, with the shortest one.
    fn shortest_circle(&self, start: &Module, edges: &Edges<'_>) -> (String, Vec<String>) {
        let circle = shortest_circle(start, edges).unwrap_or_default();
        let path = |module: &Module| self.0[module].path.clone();
        (path(start), circle.iter().chain([start]).map(path).collect())
    }

    /// The files that a file uses, except its own submodules and parents.
    fn uses(&self, user: &Module, file: &File) -> BTreeSet<Module> {
        let used = file.used.iter().map(|path| self.home(path, RENAMES_MAX));
        used.filter(|used| !used.starts_with(user) && !user.starts_with(used)).collect()
    }

    /// The module that contains the item of a path, through all imports that rename or re-export it.
    fn home(&self, path: &[String], renames_left: u32) -> Module {
        let mut module = Module::new();
        for (place, name) in path.iter().enumerate() {
            let next = below(&module, std::slice::from_ref(name));
            if self.0.contains_key(&next) {
                module = next;
                continue;
            }
            let meant = self.0.get(&module).and_then(|file| file.names.get(name));
            return match meant {
                Some(meant) if renames_left > 0 => {
                    self.home(&below(meant, &path[place + 1..]), renames_left - 1)
                }
                _ => module,
            };
        }
        module
    }
}

impl File {
    fn read(path: String, code: &str, module: &[String], modules: &BTreeSet<Module>) -> Self {
        let (mut names, mut used) = (BTreeMap::new(), BTreeSet::new());
        let (imports, rest) = imports_of(code);
        for import in imports {
            for (words, name) in tree(&import) {
                if let Some(meant) = from_root(&words, module, modules) {
                    names.insert(name, meant.clone());
                    used.insert(meant);
                }
            }
        }
        let meant = |words: Module| match names.get(words.first()?) {
            Some(meant) => Some(below(meant, &words[1..])),
            None => from_root(&words, module, modules),
        };
        used.extend(paths_of(&rest).filter_map(meant));
        // A name that refers to itself, as 'use crate::a::B' does within 'a', has no other path.
        names.retain(|name, meant| *meant != below(module, std::slice::from_ref(name)));
        Self { path, names, used }
    }
}

fn below(module: &[String], names: &[String]) -> Module {
    [module, names].concat()
}

/// A path of this crate from its root; `None`: of another crate.
fn from_root(words: &[String], module: &[String], modules: &BTreeSet<Module>) -> Option<Module> {
    let supers = words.iter().take_while(|word| *word == "super").count();
    match words.first()?.as_str() {
        "crate" => Some(words[1..].to_vec()),
        "self" => Some(below(module, &words[1..])),
        "super" => Some(below(&module[..module.len().checked_sub(supers)?], &words[supers..])),
        _ => {
            let own = below(module, &words[..1]);
            modules.contains(&own).then(|| below(module, words))
        }
    }
}

/// Without comments and without tests, and the names of the files that are for tests.
fn code_of(text: &str) -> (String, Vec<String>) {
    let (mut code, mut for_tests, mut is_for_tests) = (String::new(), Vec::new(), false);
    for line in text.lines() {
        let line = line.split("//").next().unwrap_or_default();
        match declared_module(line.trim()) {
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
fn declared_module(line: &str) -> Option<&str> {
    let (visibility, module) = line.split_once("mod ")?;
    let is_restricted = visibility.starts_with("pub(") && visibility.ends_with(") ");
    (visibility.is_empty() || visibility == "pub " || is_restricted).then_some(module)
}

/// The path of each `use`, and the code without them.
fn imports_of(code: &str) -> (Vec<String>, String) {
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
fn tree(text: &str) -> Vec<(Module, String)> {
    let text = text.trim();
    if let Some((head, group)) = text.split_once('{') {
        let head: Module = words(head);
        let group = group.strip_suffix('}').unwrap_or(group);
        let parts = parts(group).into_iter().flat_map(tree);
        return parts.map(|(path, name)| (below(&head, &path), name)).map(without_self).collect();
    }
    let (path, name) = text.split_once(" as ").unwrap_or((text, ""));
    let path = words(path);
    let name =
        if name.is_empty() { path.last().cloned().unwrap_or_default() } else { name.trim().to_owned() };
    vec![without_self((path, name))]
}

/// `a::self` is `a`.
fn without_self((mut path, name): (Module, String)) -> (Module, String) {
    if path.len() > 1 && path.last().is_some_and(|last| last == "self") {
        path.pop();
        let name = if name == "self" { path.last().cloned().unwrap_or_default() } else { name };
        return (path, name);
    }
    (path, name)
}

/// The parts between commas outside of braces.
fn parts(group: &str) -> Vec<&str> {
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

fn words(path: &str) -> Module {
    path.split("::").map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

/// The paths of code that have more than one name.
fn paths_of(code: &str) -> impl Iterator<Item = Module> {
    let is_of_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
    code.split(move |c| !is_of_path(c)).filter(|path| path.contains("::")).map(words)
}

/// All files that a file uses, directly or through further files.
fn reached_from<'a>(start: &'a Module, edges: &'a Edges<'_>) -> BTreeSet<&'a Module> {
    let mut reached = BTreeSet::new();
    let mut next = vec![start];
    while let Some(module) = next.pop() {
        next.extend(edges.get(module).into_iter().flatten().filter(|used| reached.insert(*used)));
    }
    reached
}

/// The shortest path from a file back to itself, without its end.
fn shortest_circle(start: &Module, edges: &Edges<'_>) -> Option<Vec<Module>> {
    let mut from: BTreeMap<&Module, &Module> = BTreeMap::new();
    let mut next = VecDeque::from([start]);
    while let Some(module) = next.pop_front() {
        for used in edges.get(module).into_iter().flatten() {
            if used == start {
                let mut way = vec![module.clone()];
                while let Some(before) = from.get(way.last().expect("has its end")) {
                    way.push((*before).clone());
                }
                way.reverse();
                return Some(way);
            }
            if !from.contains_key(used) {
                from.insert(used, module);
                next.push_back(used);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(texts: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<_> = texts.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
        let circles = Sources::of(&texts).circles();
        circles.iter().flat_map(known::shortest).map(|circle| circle.join(" → ")).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() { crate::c::g() }\n"),
            ("c.rs", "pub use super::a::{self, A};\n"),
        ]);
        assert_eq!(found, ["a.rs → b.rs → c.rs → a.rs"]);
    }

    #[test]
    fn names_that_are_passed_on_lead_to_their_file() {
        let lib = "mod failure;\npub mod call;\npub use failure::Failure;\n";
        let call = "use crate::{Failure, other};\npub enum Error {}\n";
        let of_failure = |text| circles(&[("lib.rs", lib), ("call.rs", call), ("failure.rs", text)]);
        let circle = ["call.rs → failure.rs → call.rs"];
        assert_eq!(of_failure("enum Failure { Call(#[from] crate::call::Error) }\n"), circle);
        assert_eq!(of_failure("enum Failure {}\n"), [""; 0]);
    }

    #[test]
    fn a_module_and_its_own_submodules_are_one_thing() {
        let found = circles(&[
            ("main.rs", "mod a;\nuse a::A;\nstruct Root;\n"),
            ("a/mod.rs", "mod b;\nmod c;\nuse b::B;\nuse self::c::C;\nuse crate::Root;\n"),
            ("a/b.rs", "use super::A;\nuse crate::Root;\n"),
            ("a/c.rs", "use super::b::B;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn submodules_of_two_modules_can_be_a_circle() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a/mod.rs", "mod inner;\n"),
            ("a/inner.rs", "use crate::b;\n"),
            ("b.rs", "use crate::a::{inner::{Inner as Other, self}};\n"),
        ]);
        assert_eq!(found, ["a/inner.rs → b.rs → a/inner.rs"]);
    }

    #[test]
    fn paths_through_an_imported_module_lead_to_their_file() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a/mod.rs", "pub mod inner;\n"),
            ("a/inner.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::a;\nfn f() { a::inner::g() }\n"),
        ]);
        assert_eq!(found, ["a/inner.rs → b.rs → a/inner.rs"]);
    }

    #[test]
    fn tests_and_comments_are_left_out() {
        let found = circles(&[
            ("lib.rs", "mod a;\nmod b;\n#[cfg(test)]\n#[path = \"made_up.rs\"]\nmod made_up;\nmod c;\n"),
            ("a.rs", "use crate::b::B;\nuse crate::c::C;\n"),
            ("b.rs", "// crate::a\n\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
            (
                "c.rs",
                "use crate::made_up::M;\n#[cfg(test)]\npub(crate) mod tests {\n    use crate::a::A;\n}\n",
            ),
            ("made_up.rs", "use crate::c::C;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }
}
