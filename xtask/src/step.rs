//! A step: a command with a name, run from the root of the repository.

use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A step that did not succeed.
#[derive(Debug)]
pub(crate) struct Failed(pub(crate) String);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the repository").to_owned()
}

pub(crate) struct Step {
    name: String,
    program: String,
    arguments: Vec<String>,
    variable: Option<(&'static str, &'static str)>,
    output: Option<PathBuf>,
}

impl Step {
    pub(crate) fn new(name: &str, program: &str, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|&argument| argument.to_owned()).collect();
        Self { name: name.to_owned(), program: program.to_owned(), arguments, variable: None, output: None }
    }

    pub(crate) fn cargo(name: &str, arguments: &[&str]) -> Self {
        Self::new(name, &std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), arguments)
    }

    /// Sets an environment variable.
    pub(crate) fn with(mut self, variable: &'static str, value: &'static str) -> Self {
        self.variable = Some((variable, value));
        self
    }

    /// Writes what the command prints into a file.
    pub(crate) fn into_file(mut self, path: &str) -> Self {
        self.output = Some(root().join(path));
        self
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).current_dir(root()).envs(self.variable);
        command
    }

    pub(crate) fn succeeds_quietly(&self) -> bool {
        let status = self.command().stdout(Stdio::null()).stderr(Stdio::null()).status();
        status.is_ok_and(|status| status.success())
    }

    fn run(&self) -> Result<(), Failed> {
        let failed = |error: &dyn fmt::Display| {
            Failed(format!("{}: '{} {}': {error}", self.name, self.program, self.arguments.join(" ")))
        };
        eprintln!("xtask: {}", self.name);
        let mut command = self.command();
        if let Some(path) = &self.output {
            fs::create_dir_all(path.parent().expect("a file in a directory"))
                .map_err(|error| failed(&error))?;
            command.stdout(File::create(path).map_err(|error| failed(&error))?);
        }
        let status = command.status().map_err(|error| failed(&error))?;
        if status.success() { Ok(()) } else { Err(failed(&status)) }
    }
}

pub(crate) fn run_all(steps: &[Step]) -> Result<(), Failed> {
    steps.iter().try_for_each(Step::run)
}

/// Installs packages of Debian's.
pub(crate) fn install(packages: &[&str]) -> Result<(), Failed> {
    let name = format!("install {}", packages.join(" "));
    run_all(&[
        Step::new("list Debian's packages", "apt-get", &["update", "-qq"]),
        Step::new(&name, "apt-get", &[&["install", "-y", "-qq"], packages].concat()),
    ])
}

/// The files of a directory of the repository whose names end so, in the order of their names.
pub(crate) fn files(directory: &str, end: &str) -> Result<Vec<PathBuf>, Failed> {
    let directory = root().join(directory);
    let failed = |error| Failed(format!("{}: {error}", directory.display()));
    let entries = fs::read_dir(&directory).map_err(failed)?;
    let paths: Result<Vec<_>, _> = entries.map(|entry| Ok(entry?.path())).collect();
    let mut paths = paths.map_err(failed)?;
    paths.retain(|path| path.to_string_lossy().ends_with(end));
    paths.sort();
    Ok(paths)
}
