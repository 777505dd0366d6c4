//! The Python module, `crates/nocopy-python`: as a step of the gate it is built with everything else, put
//! beside the files of its package, and tried by its tests in Python.

mod environment;
mod trial;

use std::path::{Path, PathBuf};

pub(crate) use environment::{Interpreter, environment_directory};
pub(crate) use trial::{PythonTests, RUNNER};

use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, repository_root};
use crate::suite::built_program;

pub(crate) const CRATE: &str = "crates/nocopy-python";

/// Where the package is put together, and what it is tried with.
pub(crate) const DIRECTORY: &str = "target/python-module";

/// What cargo calls the module, and what Python calls it.
pub(crate) const BUILT: &str = "libnocopy_python.so";
const LOADED: &str = "nocopy/_nocopy.abi3.so";

/// The package that arrays come from; this version is for Python 3.11 and newer ones.
pub(crate) const NUMPY: &str = "numpy==2.4.6";

/// Which the tests put on our sockets.
pub(crate) const SCAPY: &str = "scapy==2.8.0";

/// All that the tests need: examples plot.
pub(crate) const TESTED_WITH: [&str; 3] = [NUMPY, SCAPY, "matplotlib==3.11.2"];

/// Where `nocopy bench python` looks for the package, and for an interpreter with what it is compared with.
const BENCH: &str = "target/python";
const COMPARED: [&str; 6] =
    ["spead2==4.5.1", "pyzmq==27.3.0", SCAPY, "pcapy-ng==2.1.0", "dpkt==1.9.8", NUMPY];

const STEP: &str = "Python module";

/// The gate's step.
pub(crate) fn test_built_module() -> Outcome {
    let Some(interpreter) = interpreter_with_packages() else {
        let needs = "Python 3.11 or newer with numpy, scapy and matplotlib, or PyPI, where these come from";
        return Outcome::unavailable(STEP, needs);
    };
    let package = build_module().and_then(|module| put_together(&module, "package"));
    match package {
        Ok(package) => PythonTests::with_package(&package).run(&interpreter),
        Err(failed) => failed.into(),
    }
}

/// The first one that is there: one of this machine with what the tests need, or one to which that is added.
fn interpreter_with_packages() -> Option<Interpreter> {
    let usable: Vec<Interpreter> = Interpreter::all_usable().collect();
    let has_all = |interpreter: &&Interpreter| {
        ["numpy", "scapy", "matplotlib"].iter().all(|package| interpreter.has_package(package))
    };
    usable.iter().find(has_all).cloned().or_else(|| usable.first()?.with_test_packages(&TESTED_WITH).ok())
}

/// Builds the module with the features of all other builds, so that most of it is there: see its test.
fn build_module() -> Result<PathBuf, Failed> {
    let what = ["test", "--workspace", "--all-features", "--no-run", "--test", "module"];
    CommandStep::cargo("build the module", &what).run()?;
    Ok(built_program("debug/deps", BUILT))
}

/// Makes what `nocopy bench python` uses.
pub(crate) fn build_for_bench() -> Result<(), Failed> {
    let bench = repository_root().join(BENCH);
    Interpreter::usable()?.with_packages(&bench.join("venv"), &COMPARED)?;
    CommandStep::cargo("build the module", &["build", "--release", "--package", "nocopy-python"]).run()?;
    put_together_in(&built_program("release", BUILT), &bench.join("package")).map(drop)
}

/// Puts a module beside the package's files, in a directory of that name; returns it.
pub(crate) fn put_together(module: &Path, name: &str) -> Result<PathBuf, Failed> {
    put_together_in(module, &repository_root().join(DIRECTORY).join(name))
}

fn put_together_in(module: &Path, package: &Path) -> Result<PathBuf, Failed> {
    let sources = repository_root().join(CRATE).join("python/.").display().to_string();
    let [module, to, loaded] =
        [module, package, &package.join(LOADED)].map(|path| path.display().to_string());
    crate::step::run_steps(&[
        CommandStep::new("no package of before", "rm", &["-rf", &to]),
        CommandStep::new("a directory for the package", "mkdir", &["-p", &to]),
        CommandStep::new("the package's files", "cp", &["-r", &sources, &to]),
        CommandStep::new("the module beside them", "cp", &[&module, &loaded]),
    ])?;
    Ok(package.to_owned())
}
