//! The public items of the library: a committed list that is compared, so that growth is a decision.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::fs;

use serde_json::Value;

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, repository_root};

const LIST: &str = "docs/api.txt";

/// All features for users beside the default ones.
const FEATURES: &str = "bytes,futures,tokio,tracing";

/// The most types and functions that the API may have, with the default features and with all: as many as a
/// user can learn.
const DEFAULT_MAX: ItemCounts = ItemCounts { types: 118, functions: 395 };
const ALL_MAX: ItemCounts = ItemCounts { types: 130, functions: 455 };
/// The most hidden items: what this workspace's own crates use of the library, in `integration` and as hidden
/// functions of public types.
const HIDDEN_MAX: usize = 66;

/// Compares the list with the library.
pub(crate) fn check_committed_list() -> Outcome {
    let compare = || {
        let default = PublicItems::read_from_rustdoc("")?.counts();
        let surface = PublicItems::read_from_rustdoc(FEATURES)?;
        let committed = fs::read_to_string(repository_root().join(LIST)).map_err(|error| {
            Failed(format!("{LIST}: not read ({error}); write it with 'cargo xtask api'"))
        })?;
        surface.check_size_limits(default)?;
        line_differences(&committed, &surface.list_text(default)).map_or(Ok(()), |differences| {
            Err(Failed(format!(
                "public items differ from {LIST}; if they are meant to, write it with 'cargo xtask api'\n{differences}"
            )))
        })
    };
    compare().into()
}

pub(crate) fn write_list() -> Result<(), Failed> {
    let default = PublicItems::read_from_rustdoc("")?.counts();
    let text = PublicItems::read_from_rustdoc(FEATURES)?.list_text(default);
    fs::write(repository_root().join(LIST), &text)
        .map_err(|error| Failed(format!("{LIST}: not written ({error})")))?;
    println!("{}", text.lines().next().unwrap_or_default());
    Ok(())
}

/// The lines that only one of the texts has, each marked.
fn line_differences(before: &str, after: &str) -> Option<String> {
    let only = |sign: char, here: &str, there: &str| {
        let there: Vec<&str> = there.lines().collect();
        let lines = here.lines().filter(move |line| !there.contains(line));
        lines.map(|line| format!("{sign} {line}\n")).collect::<String>()
    };
    let found = only('-', before, after) + &only('+', after, before);
    (before != after).then_some(found)
}

/// Public types and functions that are not hidden.
#[derive(Debug, Clone, Copy)]
struct ItemCounts {
    types: usize,
    functions: usize,
}

impl ItemCounts {
    fn are_within(self, limits: Self) -> bool {
        self.types <= limits.types && self.functions <= limits.functions
    }
}

impl fmt::Display for ItemCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} types, {} functions", self.types, self.functions)
    }
}

#[derive(Debug, Default)]
struct PublicItem {
    path: String,
    /// `struct`, `enum`, `fn` ..., as in the source.
    kind: String,
    /// Whether it is under `doc(hidden)`.
    is_hidden: bool,
    /// Public fields or variants.
    parts: Vec<String>,
    /// Public functions with the names of their arguments, and whether they are hidden.
    functions: Vec<(String, bool)>,
}

impl PublicItem {
    fn is_type(&self) -> bool {
        !matches!(self.kind.as_str(), "fn" | "constant" | "macro")
    }
}

/// All public items by rustdoc's number, each with its shortest path.
#[derive(Debug, Default)]
struct PublicItems(BTreeMap<String, PublicItem>);

impl PublicItems {
    fn read_from_rustdoc(features: &str) -> Result<Self, Failed> {
        let rustdoc = repository_root().join("xtask/src/rustdoc-json.sh");
        let options = ["rustdoc", "--quiet", "--package", "nocopy", "--lib", "--features", features];
        let json = ["--", "-Zunstable-options", "--output-format", "json", "--document-hidden-items"];
        CommandStep::cargo("public items", &[&options[..], &json].concat())
            .with_variable("RUSTDOC", &rustdoc.display().to_string())
            .run()?;
        let target =
            std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository_root().join("target"), Into::into);
        let path = target.join("doc/nocopy.json");
        let failed = |error: &dyn std::fmt::Display| Failed(format!("{}: {error}", path.display()));
        let text = fs::read_to_string(&path).map_err(|error| failed(&error))?;
        let crate_: Value = serde_json::from_str(&text).map_err(|error| failed(&error))?;
        Ok(Self::from_rustdoc_json(&crate_))
    }

    fn from_rustdoc_json(crate_: &Value) -> Self {
        let mut walk = ModuleWalk { index: &crate_["index"], found: Self::default() };
        walk.visit_module(walk.item_by_id(&crate_["root"]), "nocopy", false);
        walk.found
    }

    fn type_count(&self, hidden: bool) -> usize {
        self.0.values().filter(|item| item.is_type() && item.is_hidden == hidden).count()
    }

    fn function_count(&self, hidden: bool) -> usize {
        let free = self.0.values().filter(|item| item.kind == "fn" && item.is_hidden == hidden).count();
        let functions = self.0.values().filter(|item| !item.is_hidden).flat_map(|item| &item.functions);
        free + functions.filter(|(_, is_hidden)| *is_hidden == hidden).count()
    }

    /// Types and free functions of `integration`, and hidden functions of public types.
    fn hidden_count(&self) -> usize {
        self.type_count(true) + self.function_count(true)
    }

    fn counts(&self) -> ItemCounts {
        ItemCounts { types: self.type_count(false), functions: self.function_count(false) }
    }

    /// `default` are the counts with the default features.
    fn counts_line(&self, default: ItemCounts) -> String {
        let (all, hidden) = (self.counts(), self.hidden_count());
        format!("{all}; {default} by default; {hidden} hidden, for crates of this workspace")
    }

    fn check_size_limits(&self, default: ItemCounts) -> Result<(), Failed> {
        let is_small = self.counts().are_within(ALL_MAX)
            && default.are_within(DEFAULT_MAX)
            && self.hidden_count() <= HIDDEN_MAX;
        let failed = || {
            let counts = self.counts_line(default);
            Failed(format!(
                "too many public items: {counts} (at most {ALL_MAX}; {DEFAULT_MAX}; {HIDDEN_MAX})"
            ))
        };
        is_small.then_some(()).ok_or_else(failed)
    }

    fn list_text(&self, default: ItemCounts) -> String {
        let mut text = self.counts_line(default) + "\n";
        let mut items: Vec<&PublicItem> = self.0.values().collect();
        items.sort_by_key(|item| &item.path);
        let (hidden, public): (Vec<&PublicItem>, Vec<&PublicItem>) =
            items.into_iter().partition(|item| item.is_hidden);
        for item in public {
            let PublicItem { path, kind, parts, functions, .. } = item;
            let _ = write!(text, "\n{kind} {path}");
            let _ =
                if parts.is_empty() { writeln!(text) } else { writeln!(text, " {{ {} }}", parts.join(", ")) };
            for (function, is_hidden) in functions {
                let _ = writeln!(text, "    {}{function}", if *is_hidden { "(hidden) " } else { "" });
            }
        }
        text += "\nhidden:\n";
        for PublicItem { path, kind, .. } in hidden {
            let _ = writeln!(text, "    {kind} {path}");
        }
        text
    }
}

/// A walk through the modules of a crate, as rustdoc describes it.
struct ModuleWalk<'a> {
    index: &'a Value,
    found: PublicItems,
}

impl<'a> ModuleWalk<'a> {
    /// The item with that number; null if it is of another crate.
    fn item_by_id(&self, id: &Value) -> &'a Value {
        &self.index[id.to_string()]
    }

    fn visit_module(&mut self, module: &'a Value, path: &str, is_hidden: bool) {
        for id in json_array(&module["inner"]["module"]["items"]) {
            let item = self.item_by_id(id);
            if item["visibility"] == "public" {
                let name = item["name"].as_str().unwrap_or_default();
                self.visit_item(item, path, name, is_hidden || is_doc_hidden(item));
            }
        }
    }

    fn visit_item(&mut self, item: &'a Value, module: &str, name: &str, is_hidden: bool) {
        let (kind, inner) = item_kind(item);
        let path = format!("{module}::{name}");
        match kind {
            "use" => {
                let used = self.item_by_id(&inner["id"]);
                let name = inner["name"].as_str().unwrap_or_default();
                if inner["is_glob"] == true {
                    self.visit_module(used, module, is_hidden);
                } else if used.is_null() {
                    // An item of another crate of this repository.
                    let path = format!("{module}::{name}");
                    let item = PublicItem { path, kind: "use".into(), is_hidden, ..PublicItem::default() };
                    self.keep_shortest_path(&inner["source"], item);
                } else {
                    self.visit_item(used, module, name, is_hidden);
                }
            }
            "module" => self.visit_module(item, &path, is_hidden),
            "function" => {
                let path = format!("{module}::{}", signature(item));
                let id = &item["id"];
                self.keep_shortest_path(
                    id,
                    PublicItem { path, kind: "fn".into(), is_hidden, ..PublicItem::default() },
                );
            }
            _ => {
                let (parts, functions) = (self.public_parts(kind, inner), self.functions_of_type(inner));
                let kind = kind.replace('_', " ");
                self.keep_shortest_path(&item["id"], PublicItem { path, kind, is_hidden, parts, functions });
            }
        }
    }

    /// Keeps an item by its shortest path that is not hidden; `id` is the same for all its paths.
    fn keep_shortest_path(&mut self, id: &Value, item: PublicItem) {
        let rank = |item: &PublicItem| (item.is_hidden, item.path.matches("::").count(), item.path.clone());
        let kept = self.found.0.get(&id.to_string());
        if kept.is_none_or(|kept| rank(&item) < rank(kept)) {
            self.found.0.insert(id.to_string(), item);
        }
    }

    fn public_parts(&self, kind: &str, inner: &'a Value) -> Vec<String> {
        let parts = match kind {
            "enum" => &inner["variants"],
            _ => &inner["kind"]["plain"]["fields"],
        };
        let parts = json_array(parts).iter().map(|id| self.item_by_id(id));
        let public = parts.filter(|part| kind == "enum" || part["visibility"] == "public");
        public.filter_map(|part| part["name"].as_str()).map(str::to_owned).collect()
    }

    /// Functions of the type itself, and functions that a trait requires.
    fn functions_of_type(&self, inner: &'a Value) -> Vec<(String, bool)> {
        let impls = json_array(&inner["impls"]).iter().map(|id| &self.item_by_id(id)["inner"]["impl"]);
        let own =
            impls.filter(|block| block["trait"].is_null()).flat_map(|block| json_array(&block["items"]));
        let own = own.map(|id| self.item_by_id(id)).filter(|item| item["visibility"] == "public");
        let asked = json_array(&inner["items"]).iter().map(|id| self.item_by_id(id));
        let all = own.chain(asked).filter(|item| item_kind(item).0 == "function");
        let mut all: Vec<(String, bool)> = all.map(|item| (signature(item), is_doc_hidden(item))).collect();
        all.sort();
        all
    }
}

fn json_array(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn item_kind(item: &Value) -> (&str, &Value) {
    let inner = item["inner"].as_object().and_then(|inner| inner.iter().next());
    inner.map_or(("", &Value::Null), |(kind, inner)| (kind.as_str(), inner))
}

fn is_doc_hidden(item: &Value) -> bool {
    item["attrs"].to_string().contains("doc(hidden)")
}

/// A function's name with the names of its arguments.
fn signature(item: &Value) -> String {
    let inputs = json_array(&item["inner"]["function"]["sig"]["inputs"]);
    let inputs: Vec<&str> = inputs.iter().filter_map(|input| input[0].as_str()).collect();
    format!("{}({})", item["name"].as_str().unwrap_or_default(), inputs.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// `pub struct S { pub field }` with `pub fn go(self, to)` and a hidden function, in a private module,
    /// used in the root.
    fn example_crate_json() -> Value {
        let function = |id: u32, name: &str, hidden: bool| {
            let attrs = if hidden { json!([{"other": "#[doc(hidden)]"}]) } else { json!([]) };
            let inputs = json!([["self", {}], ["to", {}]]);
            json!({"id": id, "name": name, "visibility": "public", "attrs": attrs, "inner": {"function": {"sig": {"inputs": inputs}}}})
        };
        json!({"root": 0, "index": {
            "0": {"id": 0, "name": "nocopy", "visibility": "public", "attrs": [], "inner": {"module": {"items": [1, 2, 7]}}},
            "1": {"id": 1, "name": "private", "visibility": "crate", "attrs": [], "inner": {"module": {"items": [3]}}},
            "2": {"id": 2, "name": null, "visibility": "public", "attrs": [], "inner": {"use": {"name": "S", "id": 3, "is_glob": false}}},
            "3": {"id": 3, "name": "S", "visibility": "public", "attrs": [],
                  "inner": {"struct": {"kind": {"plain": {"fields": [8]}}, "impls": [4]}}},
            "4": {"inner": {"impl": {"trait": null, "items": [5, 6]}}, "attrs": []},
            "5": function(5, "go", false),
            "6": function(6, "hook", true),
            "7": {"id": 7, "name": "integration", "visibility": "public", "attrs": [{"other": "#[doc(hidden)]"}],
                  "inner": {"module": {"items": [9]}}},
            "8": {"name": "field", "visibility": "public", "attrs": [], "inner": {"struct_field": {}}},
            "9": function(9, "inside", false),
        }})
    }

    #[test]
    fn items_are_found_by_their_public_paths() {
        let surface = PublicItems::from_rustdoc_json(&example_crate_json());
        let default = ItemCounts { types: 1, functions: 0 };
        let counts = surface.counts_line(default);
        assert_eq!(
            counts,
            "1 types, 1 functions; 1 types, 0 functions by default; 2 hidden, for crates of this workspace"
        );
        let text = surface.list_text(default);
        assert!(
            text.contains("\nstruct nocopy::S { field }\n    go(self, to)\n    (hidden) hook(self, to)\n"),
            "{text}"
        );
        assert!(text.ends_with("\nhidden:\n    fn nocopy::integration::inside(self, to)\n"), "{text}");
        surface.check_size_limits(default).unwrap();
        surface.check_size_limits(ItemCounts { types: 121, functions: 0 }).unwrap_err();
    }

    #[test]
    fn differences_are_shown() {
        assert_eq!(line_differences("a\nb\n", "a\nb\n"), None);
        assert_eq!(line_differences("a\nb\n", "a\nc\n").unwrap(), "- b\n+ c\n");
    }
}
