//! Circles of imports: files of a crate that use each other, directly or through further files.
//!
//! They are looked for in every crate of the workspace. A module and its own submodules may use each other,
//! as they are one unit in several files. Tests are left out. The circles that are [`known`] stay until an
//! issue opens them.

mod known;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::gate::Outcome;
use crate::imports::{CrateSources, Module, SourceFile};
use crate::step::{Failed, repository_root};
use crate::workspace::Workspace;

/// The files that each file uses.
type Edges<'a> = BTreeMap<&'a Module, BTreeSet<Module>>;

/// Files of which each uses all others, directly or through further files; each with the shortest circle
/// through it, which begins and ends with that file. All paths are below `src`.
type Circle = BTreeMap<String, Vec<String>>;

pub(crate) fn check_import_circles() -> Outcome {
    let check_all = || {
        let mut found = Vec::new();
        for directory in Workspace::read()?.directories() {
            let circles =
                CrateSources::read(&repository_root().join(&directory).join("src"))?.import_circles();
            found.extend(circles.into_iter().map(|circle| (directory.clone(), circle)));
        }
        known::compare_with_known(&found, known::ALL).map_err(Failed)
    };
    check_all().into()
}

impl CrateSources {
    fn import_circles(&self) -> Vec<Circle> {
        let edges: Edges<'_> =
            self.0.iter().map(|(module, file)| (module, self.modules_used_by(module, file))).collect();
        let reached: BTreeMap<&Module, BTreeSet<&Module>> =
            self.0.keys().map(|module| (module, modules_reached_from(module, &edges))).collect();
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
    fn modules_used_by(&self, user: &Module, file: &SourceFile) -> BTreeSet<Module> {
        let used = file.used.iter().map(|path| self.module_containing_item(path));
        used.filter(|used| !used.starts_with(user) && !user.starts_with(used)).collect()
    }
}

/// All files that a file uses, directly or through further files.
fn modules_reached_from<'a>(start: &'a Module, edges: &'a Edges<'_>) -> BTreeSet<&'a Module> {
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
                let mut path_back = vec![module.clone()];
                while let Some(before) = from.get(path_back.last().expect("has its end")) {
                    path_back.push((*before).clone());
                }
                path_back.reverse();
                return Some(path_back);
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

    fn circles_of_texts(texts: &[(&str, &str)]) -> Vec<String> {
        let texts: Vec<_> = texts.iter().map(|(path, text)| ((*path).into(), (*text).into())).collect();
        let circles = CrateSources::from_texts(&texts).import_circles();
        circles.iter().flat_map(known::distinct_shortest_circles).map(|circle| circle.join(" → ")).collect()
    }

    #[test]
    fn files_that_use_each_other_are_a_circle() {
        let found = circles_of_texts(&[
            ("lib.rs", "mod a;\nmod b;\nmod c;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "fn f() { crate::c::g() }\n"),
            ("c.rs", "pub use super::a::{self, A};\n"),
        ]);
        assert_eq!(found, ["a.rs → b.rs → c.rs → a.rs"]);
    }

    #[test]
    fn reexported_names_lead_to_their_file() {
        let lib = "mod failure;\npub mod call;\npub use failure::Failure;\n";
        let call = "use crate::{Failure, other};\npub enum Error {}\n";
        let of_failure = |text| circles_of_texts(&[("lib.rs", lib), ("call.rs", call), ("failure.rs", text)]);
        let circle = ["call.rs → failure.rs → call.rs"];
        assert_eq!(of_failure("enum Failure { Call(#[from] crate::call::Error) }\n"), circle);
        assert_eq!(of_failure("enum Failure {}\n"), [""; 0]);
    }

    #[test]
    fn a_module_and_its_submodules_are_one_unit() {
        let found = circles_of_texts(&[
            ("main.rs", "mod a;\nuse a::A;\nstruct Root;\n"),
            ("a/mod.rs", "mod b;\nmod c;\nuse b::B;\nuse self::c::C;\nuse crate::Root;\n"),
            ("a/b.rs", "use super::A;\nuse crate::Root;\n"),
            ("a/c.rs", "use super::b::B;\n"),
        ]);
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn submodules_of_two_modules_can_be_a_circle() {
        let found = circles_of_texts(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a/mod.rs", "mod inner;\n"),
            ("a/inner.rs", "use crate::b;\n"),
            ("b.rs", "use crate::a::{inner::{Inner as Other, self}};\n"),
        ]);
        assert_eq!(found, ["a/inner.rs → b.rs → a/inner.rs"]);
    }

    #[test]
    fn paths_through_an_imported_module_lead_to_their_file() {
        let found = circles_of_texts(&[
            ("lib.rs", "mod a;\nmod b;\n"),
            ("a/mod.rs", "pub mod inner;\n"),
            ("a/inner.rs", "use crate::b::B;\n"),
            ("b.rs", "use crate::a;\nfn f() { a::inner::g() }\n"),
        ]);
        assert_eq!(found, ["a/inner.rs → b.rs → a/inner.rs"]);
    }

    #[test]
    fn tests_and_comments_are_ignored() {
        let found = circles_of_texts(&[
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
