//! Cargo's output: the test binaries, and the tests in them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nocopy_lab::libtest;
use serde::{Deserialize, Serialize};

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, repository_root};

#[derive(Debug, Serialize)]
pub(crate) struct TestBinary {
    /// `package::target`, as `nocopy::sockets`; of the library's own tests the package.
    pub(crate) name: String,
    #[serde(rename = "program")]
    pub(crate) path: PathBuf,
    pub(crate) directory: PathBuf,
}

#[derive(Debug, Clone)]
pub(crate) struct TestCase {
    pub(crate) binary: Arc<TestBinary>,
    pub(crate) test: String,
}

impl TestCase {
    pub(crate) fn name(&self) -> String {
        format!("{} {}", self.binary.name, self.test)
    }
}

/// Builds the tests and the programs that they start, and returns the test binaries.
pub(crate) fn build_tests(
    arguments: &[&str],
    variables: &[(&str, &str)],
) -> Result<Vec<TestBinary>, Outcome> {
    let fixed = ["test", "--all-features", "--no-run", "--message-format=json-render-diagnostics"];
    let arguments = [&fixed[..], arguments].concat();
    let step = variables
        .iter()
        .fold(CommandStep::cargo("build the tests", &arguments), |step, (variable, value)| {
            step.with_variable(variable, value)
        });
    let output = step.captured_output().map_err(Outcome::from)?;
    let mut binaries: Vec<TestBinary> = output.lines().filter_map(test_binary).collect();
    binaries.sort_by(|a, b| a.name.cmp(&b.name));
    if binaries.is_empty() {
        Err(Outcome::failed("build the tests", "no tests were built"))
    } else {
        Ok(binaries)
    }
}

#[derive(Deserialize)]
struct CargoArtifact {
    executable: Option<PathBuf>,
    manifest_path: PathBuf,
    target: CargoTarget,
    profile: CargoProfile,
}

#[derive(Deserialize)]
struct CargoTarget {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct CargoProfile {
    test: bool,
}

/// The test binary that a line of cargo's output reports, if it does.
fn test_binary(line: &str) -> Option<TestBinary> {
    let artifact: CargoArtifact = serde_json::from_str(line).ok()?;
    let path = artifact.executable.filter(|_| artifact.profile.test)?;
    let directory = artifact.manifest_path.parent()?.to_owned();
    let package = directory.file_name()?.to_str()?.to_owned();
    let is_of_package = artifact.target.kind.iter().all(|kind| kind != "test");
    let name = if is_of_package { package } else { format!("{package}::{}", artifact.target.name) };
    Some(TestBinary { name, path, directory })
}

/// The tests of a binary that are ignored (`#[ignore]`), or those that are not.
pub(crate) fn test_cases(binary: TestBinary, ignored: bool) -> Result<Vec<TestCase>, Failed> {
    let list = if ignored { libtest::list_ignored_tests } else { libtest::list_tests };
    let tests = list(&binary.path, &binary.directory)
        .map_err(|error| Failed(format!("{}: {error}", binary.path.display())))?;
    let binary = Arc::new(binary);
    Ok(tests.into_iter().map(|test| TestCase { binary: Arc::clone(&binary), test }).collect())
}

/// A program that cargo built in a profile's directory, such as the VM lab beside the tests.
pub(crate) fn built_program(profile: &str, name: &str) -> PathBuf {
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository_root().join("target"), PathBuf::from);
    target.join(profile).join(name)
}

/// Installs a program of crates.io, given with its version, below `target`, unless it is there; returns its
/// path.
pub(crate) fn install_tool(program: [&str; 2]) -> Result<PathBuf, Failed> {
    install_tool_with_features(program, "")
}

/// [`install_tool`] for a program that is not built by default.
pub(crate) fn install_tool_with_features(
    [name, version]: [&str; 2],
    features: &str,
) -> Result<PathBuf, Failed> {
    let directory = built_program("tools", "");
    let root = directory.display().to_string();
    let what = ["install", name, "--version", version, "--features", features];
    let what = [&what[..], &["--locked", "--quiet", "--root", &root]].concat();
    CommandStep::cargo(&format!("install {name} {version}"), &what).run()?;
    Ok(directory.join("bin").join(name))
}

/// A name in `LD_PRELOAD` for a library that was built.
pub(crate) fn preloadable(library: &Path) -> Result<PathBuf, Failed> {
    nocopy_lab::preloadable_path(library).map_err(|error| Failed(format!("{}: {error}", library.display())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn artifact_line(kind: &str, name: &str, test: bool) -> String {
        format!(
            r#"{{"reason":"compiler-artifact","manifest_path":"/r/crates/nocopy/Cargo.toml","target":{{"name":"{name}","kind":["{kind}"]}},"profile":{{"test":{test}}},"executable":"/t/x"}}"#
        )
    }

    #[test]
    fn tests_are_named_by_package_and_target() {
        assert_eq!(test_binary(&artifact_line("lib", "nocopy", true)).unwrap().name, "nocopy");
        let sockets = test_binary(&artifact_line("test", "sockets", true)).unwrap();
        assert_eq!(sockets.name, "nocopy::sockets");
        assert_eq!(sockets.directory, PathBuf::from("/r/crates/nocopy"));
        assert!(test_binary(&artifact_line("example", "echo", false)).is_none());
        assert!(test_binary(r#"{"reason":"build-finished","success":true}"#).is_none());
    }
}
