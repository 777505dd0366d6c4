//! The interpreter that runs the programs, and what is installed for it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::plan::BenchPlan;

/// Made by `cargo xtask python`, relative to the repository.
const VENV_PYTHON: &str = "target/python/venv/bin/python";
/// The module of this source tree, built and laid out by the same command.
const PACKAGE: &str = "target/python/package";

/// Prints the versions of Python and of what is installed for it; of nocopy, which may be a directory in
/// `PYTHONPATH`, also the names of its classes.
const LIST_VERSIONS: &str = "
import importlib.metadata, importlib.util, sys
print('Python', sys.version.split()[0])
for name in sys.argv[1:]:
    try: print(name, importlib.metadata.version(name))
    except importlib.metadata.PackageNotFoundError: pass
try:
    import nocopy
    print('nocopy', nocopy.__version__)
    for name in nocopy.__all__: print('nocopy.' + name, 'offered')
    if importlib.util.find_spec('nocopy.scapy'): print('nocopy.scapy offered')
except Exception: pass
";

/// The packages from PyPI that the programs use.
const PACKAGES: [&str; 6] = ["numpy", "spead2", "pyzmq", "scapy", "pcapy-ng", "dpkt"];

#[derive(Debug)]
pub(super) struct Interpreter {
    path: PathBuf,
    package: Option<PathBuf>,
    /// Of packages by name, and the classes of nocopy as `nocopy.Capture`; empty if the interpreter does not
    /// run.
    versions: BTreeMap<String, String>,
}

impl Interpreter {
    /// That of `--python`; otherwise the one of the repository, if it was made; otherwise `python3`.
    pub(super) fn find(plan: &BenchPlan) -> Self {
        let made = |path: &str| Some(PathBuf::from(path)).filter(|path| path.exists());
        let path = plan.python.clone().or_else(|| made(VENV_PYTHON)).unwrap_or_else(|| "python3".into());
        let found = Self { path, package: made(PACKAGE), versions: BTreeMap::new() };
        Self { versions: found.list_versions(), ..found }
    }

    fn list_versions(&self) -> BTreeMap<String, String> {
        let output = self.command(LIST_VERSIONS).args(PACKAGES).output();
        let text =
            output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into());
        parse_versions(&text)
    }

    /// A process that runs a program, given as text.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(&self.path);
        // A warning of a package would come between the lines that the bench reads.
        command.args(["-W", "ignore", "-c", program]);
        if let Some(package) = self.package.as_deref().and_then(absolute_path) {
            let others = std::env::var_os("PYTHONPATH");
            let all = std::iter::once(package).chain(others.iter().flat_map(std::env::split_paths));
            if let Ok(joined) = std::env::join_paths(all) {
                command.env("PYTHONPATH", joined);
            }
        }
        command
    }

    pub(super) fn has(&self, package: &str) -> bool {
        self.versions.contains_key(package)
    }

    /// Why nothing can be measured, if so.
    pub(super) fn absence(&self) -> Option<String> {
        let path = self.path.display();
        if self.versions.is_empty() {
            return Some(format!(
                "{path}: does not run; install Python 3.11 or newer, or name one with --python"
            ));
        }
        let missing = ["nocopy", "numpy"].into_iter().find(|package| !self.has(package))?;
        Some(format!(
            "{path}: has no package {missing}; run 'cargo xtask python' in the source tree, or '{path} -m pip install {missing}'"
        ))
    }

    /// Why the methods of a package, or of a class of nocopy, are left out, if so.
    pub(super) fn absence_of(&self, package: &str) -> Option<String> {
        let path = self.path.display();
        (!self.has(package)).then(|| match package.split_once('.') {
            None => format!("{package} is not installed: '{path} -m pip install {package}'"),
            Some((whole, _)) => {
                format!("{package} is not in this version: '{path} -m pip install --upgrade {whole}'")
            }
        })
    }

    /// The version of everything that is measured, in one line.
    pub(super) fn describe(&self) -> String {
        let packages = self.versions.iter().filter(|(name, _)| !name.contains('.'));
        packages.map(|(name, version)| format!("{name} {version}")).collect::<Vec<_>>().join(", ")
    }
}

fn absolute_path(path: &Path) -> Option<PathBuf> {
    std::path::absolute(path).ok()
}

/// A name and a version a line.
fn parse_versions(text: &str) -> BTreeMap<String, String> {
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(name, version)| (name.to_owned(), version.to_owned())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interpreter_with(text: &str) -> Interpreter {
        Interpreter { path: "python3".into(), package: None, versions: parse_versions(text) }
    }

    #[test]
    fn missing_packages_are_named_with_the_command_that_installs_them() {
        let text = "Python 3.11.7\nnumpy 2.4.6\nnocopy 0.1.0\nnocopy.Capture offered\nspead2 4.5.1\n";
        let complete = interpreter_with(text);
        assert_eq!((complete.absence(), complete.absence_of("spead2")), (None, None));
        assert_eq!(complete.describe(), "Python 3.11.7, nocopy 0.1.0, numpy 2.4.6, spead2 4.5.1");
        let missing = complete.absence_of("pyzmq").unwrap();
        assert_eq!(missing, "pyzmq is not installed: 'python3 -m pip install pyzmq'");
        let missing = complete.absence_of("nocopy.Endpoint").unwrap();
        assert!(missing.starts_with("nocopy.Endpoint is not in this version: "), "{missing}");
        assert_eq!(complete.absence_of("nocopy.Capture"), None);
        let without = interpreter_with("Python 3.11.7\nnocopy 0.1.0\n").absence().unwrap();
        assert!(without.contains("has no package numpy"), "{without}");
    }

    #[test]
    fn an_interpreter_that_does_not_run_is_reported() {
        let path = PathBuf::from("/no/such/python");
        let none = Interpreter { path, package: None, versions: BTreeMap::new() };
        assert!(none.list_versions().is_empty());
        assert!(none.absence().unwrap().starts_with("/no/such/python: does not run"));
    }
}
