//! The crates of the workspace: which depend on which, which are published, and the oldest Rust that they are
//! for.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::step::{CommandStep, Failed};

/// What decides how every crate is built.
const FILES_OF_ALL: [&str; 2] = ["Cargo.lock", "Cargo.toml"];

#[derive(Debug, Deserialize)]
pub(crate) struct Workspace {
    #[serde(rename = "packages")]
    crates: Vec<Crate>,
    workspace_root: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Crate {
    pub(crate) name: String,
    #[serde(default)]
    pub(crate) version: String,
    manifest_path: PathBuf,
    rust_version: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
    #[serde(default)]
    features: BTreeMap<String, Vec<String>>,
    /// The registries that it may be published to; `None`: all.
    #[serde(default)]
    publish: Option<Vec<String>>,
    #[serde(flatten)]
    pub(crate) shown: ShownFields,
}

/// What a registry shows of a crate.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ShownFields {
    pub(crate) description: Option<String>,
    pub(crate) repository: Option<String>,
    pub(crate) readme: Option<String>,
    pub(crate) keywords: Vec<String>,
    pub(crate) categories: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(crate) struct Dependency {
    #[serde(default)]
    pub(crate) name: String,
    /// The versions that fit; `*`: it has none.
    #[serde(default)]
    pub(crate) req: String,
    /// `None`: a normal one.
    kind: Option<String>,
    /// Only crates of the workspace have a path.
    path: Option<PathBuf>,
}

impl Crate {
    pub(crate) fn directory(&self) -> &Path {
        self.manifest_path.parent().expect("a file lies in a directory")
    }

    /// The crates of this workspace that it depends on; not those that only its tests use and that have no
    /// version, which are left out when it is packed.
    pub(crate) fn packed_dependencies(&self) -> impl Iterator<Item = &Dependency> {
        let has_path = self.dependencies.iter().filter(|dependency| dependency.path.is_some());
        has_path.filter(|dependency| dependency.kind.as_deref() != Some("dev") || dependency.req != "*")
    }
}

impl Workspace {
    pub(crate) fn read() -> Result<Self, Failed> {
        let what = ["metadata", "--no-deps", "--format-version", "1", "--offline"];
        let name = "crates of the workspace";
        let text = CommandStep::cargo(name, &what).captured_output()?;
        Self::parse(&text).map_err(|error| Failed(format!("{name}: {error}")))
    }

    fn parse(metadata: &str) -> serde_json::Result<Self> {
        serde_json::from_str(metadata)
    }

    /// The paths and, for each that is a crate's directory, the directories of the crates that it is built
    /// and tested with, and the files that decide how all are built.
    pub(crate) fn with_dependencies(&self, paths: &[&str]) -> Vec<String> {
        let mut found: BTreeSet<String> = paths.iter().map(|&path| path.to_owned()).collect();
        let named: Vec<&Crate> = paths.iter().filter_map(|path| self.crate_in_directory(path)).collect();
        if !named.is_empty() {
            found.extend(FILES_OF_ALL.map(str::to_owned));
        }
        let mut next: Vec<String> =
            named.iter().flat_map(|member| self.dependency_directories(member, true)).collect();
        while let Some(directory) = next.pop() {
            let member = self.crate_in_directory(&directory);
            if found.insert(directory) {
                next.extend(member.into_iter().flat_map(|member| self.dependency_directories(member, false)));
            }
        }
        found.into_iter().collect()
    }

    /// The Rust that all crates name. Errors: a crate names none, or another.
    pub(crate) fn rust_version(&self) -> Result<&str, Failed> {
        let versions: BTreeSet<Option<&str>> =
            self.crates.iter().map(|member| member.rust_version.as_deref()).collect();
        match versions.iter().collect::<Vec<_>>()[..] {
            [Some(version)] => Ok(version),
            _ => {
                let of = |member: &Crate| {
                    format!("{} {}", member.name, member.rust_version.as_deref().unwrap_or("none"))
                };
                let all: Vec<String> = self.crates.iter().map(of).collect();
                Err(Failed(format!(
                    "oldest Rust: the crates name different ones ({}); write 'rust-version.workspace = true' in each",
                    all.join(", ")
                )))
            }
        }
    }

    /// The crates that are published.
    pub(crate) fn published_crates(&self) -> impl Iterator<Item = &Crate> {
        self.crates.iter().filter(|member| member.publish.is_none())
    }

    /// The features of a crate, but not the one that names those that are on by default.
    pub(crate) fn features_of(&self, name: &str) -> Vec<&str> {
        let named = self.crates.iter().filter(|member| member.name == name);
        let features = named.flat_map(|member| member.features.keys().map(String::as_str));
        features.filter(|feature| *feature != "default").collect()
    }

    /// The directories of all crates, below the root of the repository.
    pub(crate) fn directories(&self) -> impl Iterator<Item = String> {
        self.crates.iter().map(|member| self.path_in_workspace(member.manifest_path.parent()))
    }

    fn crate_in_directory(&self, directory: &str) -> Option<&Crate> {
        self.crates.iter().find(|member| self.path_in_workspace(member.manifest_path.parent()) == directory)
    }

    /// The directories of the crates that one depends on; with `for_tests` also of those that only its tests
    /// use.
    fn dependency_directories(&self, member: &Crate, for_tests: bool) -> Vec<String> {
        let used = member
            .dependencies
            .iter()
            .filter(|dependency| for_tests || dependency.kind.as_deref() != Some("dev"))
            .filter_map(|dependency| dependency.path.as_deref());
        used.map(|path| self.path_in_workspace(Some(path))).collect()
    }

    /// A path below the root of the repository.
    fn path_in_workspace(&self, path: Option<&Path>) -> String {
        let inside = path.and_then(|path| path.strip_prefix(&self.workspace_root).ok());
        inside.unwrap_or(Path::new("")).display().to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example_workspace(rust_version_of_base: &str) -> Workspace {
        let dependency = |kind: &str, name: &str| format!(r#"{{"kind":{kind},"path":"/r/crates/{name}"}}"#);
        let member = |name: &str, rust_version: &str, dependencies: &[String]| {
            format!(
                r#"{{"name":"{name}","manifest_path":"/r/crates/{name}/Cargo.toml","rust_version":{rust_version},
                    "dependencies":[{{"kind":null,"path":null}},{}]}}"#,
                dependencies.join(",")
            )
        };
        let (dev, normal) = (r#""dev""#, "null");
        let packages = [
            member("base", rust_version_of_base, &[dependency(dev, "for-tests-of-base")]),
            member("for-tests-of-base", r#""1.88""#, &[dependency(normal, "base")]),
            member("for-tests", r#""1.88""#, &[dependency(normal, "base")]),
            member("top", r#""1.88""#, &[dependency(normal, "middle"), dependency(dev, "for-tests")]),
            member("middle", r#""1.88""#, &[dependency(r#""build""#, "base")]),
        ];
        let text = format!(r#"{{"packages":[{}],"workspace_root":"/r"}}"#, packages.join(","));
        Workspace::parse(&text).unwrap()
    }

    #[test]
    fn a_crate_includes_its_dependencies() {
        let all = example_workspace(r#""1.88""#).with_dependencies(&["crates/top", "docs"]);
        let crates = ["base", "for-tests", "middle", "top"].map(|name| format!("crates/{name}"));
        assert_eq!(
            all,
            [&["Cargo.lock".into(), "Cargo.toml".into()], &crates[..], &["docs".into()]].concat()
        );
        let crates = ["base", "for-tests-of-base"].map(|name| format!("crates/{name}"));
        assert_eq!(example_workspace("null").with_dependencies(&["crates/base"])[2..], crates);
    }

    #[test]
    fn paths_outside_of_crates_are_unchanged() {
        assert_eq!(
            example_workspace(r#""1.88""#).with_dependencies(&["crates", "crates/top/src"]),
            ["crates", "crates/top/src"]
        );
    }

    #[test]
    fn crates_with_different_rust_versions_are_refused() {
        assert_eq!(example_workspace(r#""1.88""#).rust_version().unwrap(), "1.88");
        for other in ["null", r#""1.89""#] {
            let Failed(text) = example_workspace(other).rust_version().unwrap_err();
            assert!(text.contains("rust-version.workspace = true"), "{text}");
        }
    }
}
