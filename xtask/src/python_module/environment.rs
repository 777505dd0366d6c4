//! Interpreters of Python, and directories of their own for packages.

use std::path::{Path, PathBuf};

use crate::machine;
use crate::step::{CommandStep, Failed, repository_root};

/// Where interpreters are looked for, in this order.
const NAMES: [&str; 4] = ["python3", "python3.13", "python3.12", "python3.11"];

/// The oldest one that has the buffer protocol in its stable interface; with a global lock.
const IS_USABLE: &str = "import sys, sysconfig\n\
    sys.exit(sys.version_info < (3, 11) or bool(sysconfig.get_config_var('Py_GIL_DISABLED')))";

/// The interpreters that pyenv has installed, below the home directory.
const OF_PYENV: &str = ".pyenv/versions";

/// An interpreter, with the packages that are installed for it.
#[derive(Debug, Clone)]
pub(crate) struct Interpreter {
    pub(super) program: String,
}

impl Interpreter {
    /// Those of this machine that can load the module.
    pub(super) fn all_usable() -> impl Iterator<Item = Self> {
        NAMES.into_iter().map(Self::at).filter(|interpreter| interpreter.runs(IS_USABLE))
    }

    /// The first one that can load the module.
    pub(crate) fn usable() -> Result<Self, Failed> {
        Self::all_usable().next().ok_or_else(|| {
            Failed("Python: none from 3.11 on was found; install python3 of Debian 12 or newer".to_owned())
        })
    }

    /// The one of that name or path.
    pub(crate) fn at(program: impl Into<String>) -> Self {
        Self { program: program.into() }
    }

    /// The first one of pyenv's whose version begins so.
    pub(crate) fn of_pyenv(version: &str) -> Option<Self> {
        let home = PathBuf::from(std::env::var_os("HOME")?);
        let installed = std::fs::read_dir(home.join(OF_PYENV)).ok()?.filter_map(Result::ok);
        let mut matching = installed.filter(|entry| entry.file_name().to_string_lossy().starts_with(version));
        let program = matching.next()?.path().join("bin/python3");
        Some(Self::at(program.display().to_string()))
    }

    pub(super) fn has_package(&self, name: &str) -> bool {
        self.runs(&format!("import {name}"))
    }

    /// Whether a program ends successfully.
    fn runs(&self, program: &str) -> bool {
        CommandStep::new("Python", &self.program, &["-c", program]).succeeds_quietly()
    }

    /// One with these packages in the directory that the gate's tests have.
    pub(crate) fn with_test_packages(&self, packages: &[&str]) -> Result<Self, Failed> {
        // On Debian what makes such directories is a package of its own.
        match machine::install_python_environments() {
            installed if installed.is_good() => {
                self.with_packages(&environment_directory("environment"), packages)
            }
            _ => Err(Failed(
                "Python: it cannot make directories for packages; install python3-venv".to_owned(),
            )),
        }
    }

    /// One with exactly these packages of PyPI, `name==version`, and what they need, in a directory below
    /// `target`. What is there already is not fetched again.
    pub(crate) fn with_packages(&self, directory: &Path, packages: &[&str]) -> Result<Self, Failed> {
        let own = Self::at(directory.join("bin/python3").display().to_string());
        let installed = own.pip_step("Python packages there", &["freeze"]).captured_output();
        let is_there = |package: &&str| {
            installed.as_ref().is_ok_and(|installed| installed.lines().any(|line| line == *package))
        };
        if !packages.iter().all(is_there) {
            let shown = directory.display().to_string();
            let make = ["-m", "venv", "--clear", &shown];
            CommandStep::new("a directory for Python packages", &self.program, &make).run()?;
            own.pip("install Python packages", &[&["install", "--quiet"], packages].concat())?;
        }
        Ok(own)
    }

    /// Runs pip(1).
    pub(crate) fn pip(&self, name: &str, arguments: &[&str]) -> Result<(), Failed> {
        self.pip_step(name, arguments).run()
    }

    fn pip_step(&self, name: &str, arguments: &[&str]) -> CommandStep {
        let pip = [&["-m", "pip", "--disable-pip-version-check"], arguments].concat();
        CommandStep::new(name, &self.program, &pip)
    }
}

/// The directory of a set of packages.
pub(crate) fn environment_directory(name: &str) -> PathBuf {
    repository_root().join(super::DIRECTORY).join(name)
}
