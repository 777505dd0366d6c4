//! The wheels, tried: by what judges them, in clean roots of Debian, with other interpreters of this machine,
//! built from the archive of sources, with the address sanitizer, and on an emulated processor.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use super::roots::{self, PythonRoot};
use super::tarball::{copy, unpack};
use super::{Architecture, Release, tools, wheels};
use crate::gate::Outcome;
use crate::python_module::{self, CRATE, Interpreter, NUMPY, PythonTests, SCAPY, TESTED_WITH};
use crate::step::{CommandStep, Failed, repository_root, run_steps, write_file};
use crate::suite;

/// The type checker, with the program that compares stubs with a module.
const MYPY: &str = "mypy==2.4.1";

/// What stubtest need not find.
const ALLOWED: &str = "xtask/src/python_module/stubtest.allow";

/// What the tests in Python read, besides the package; at the same paths in a root.
const TESTED_FILES: [&str; 4] = ["tests", "examples", "README.md", "../../docs/python.md"];

/// The nightly suite `wheel`.
pub(crate) fn build_and_try_wheels() -> Outcome {
    let build = || {
        tools::install_all()?;
        wheels::build_all(&Release::of_this_commit()?)
    };
    roots::install_programs().then(|| build().into()).then(try_built_wheels)
}

/// Tries the wheels that were built.
pub(crate) fn try_built_wheels() -> Outcome {
    match Release::of_this_commit() {
        Ok(release) => try_wheels(&release),
        Err(failed) => failed.into(),
    }
}

fn try_wheels(release: &Release) -> Outcome {
    let tries: [fn(&Release) -> Outcome; 6] = [
        judge_wheels,
        try_in_debian,
        try_with_other_interpreter,
        try_sources,
        try_with_sanitizer,
        try_emulated,
    ];
    tries.into_iter().map(|run| run(release)).fold(Outcome::default(), Outcome::merged_with)
}

/// Whether the wheels need nothing but the stable interface, and the stubs are equal to the module.
fn judge_wheels(release: &Release) -> Outcome {
    let audit = tools::python_program("abi3audit");
    let audits = Architecture::ALL.map(|architecture| {
        let wheel = wheels::wheel_path(release, architecture).display().to_string();
        CommandStep::new(&format!("stable interface of {wheel}"), &audit, &["--strict", &wheel]).run().into()
    });
    audits.into_iter().fold(compare_stubs(release).into(), Outcome::merged_with)
}

fn compare_stubs(release: &Release) -> Result<(), Failed> {
    let directory = python_module::environment_directory("stubs");
    environment_with_wheel(
        &Interpreter::usable()?,
        &directory,
        &[NUMPY, SCAPY, MYPY],
        &native_wheel(release)?,
    )?;
    let [stubtest, mypy] =
        ["stubtest", "mypy"].map(|name| directory.join("bin").join(name).display().to_string());
    let allowed = ["--allowlist", ALLOWED, "--ignore-unused-allowlist"];
    run_steps(&[
        CommandStep::new("stubs", &stubtest, &[&["nocopy"][..], &allowed].concat()),
        CommandStep::new("types", &mypy, &["--strict", "--package", "nocopy"]),
    ])
}

fn native_wheel(release: &Release) -> Result<PathBuf, Failed> {
    Ok(wheels::wheel_path(release, Architecture::native()?))
}

/// A directory for packages in which the wheel is installed.
fn environment_with_wheel(
    interpreter: &Interpreter,
    directory: &Path,
    packages: &[&str],
    wheel: &Path,
) -> Result<Interpreter, Failed> {
    let installed = interpreter.with_packages(directory, packages)?;
    let wheel = wheel.display().to_string();
    installed.pip("install the wheel", &["install", "--no-deps", "--force-reinstall", &wheel])?;
    Ok(installed)
}

/// Installed and tried in roots of Debian 12 and 13, by their own interpreters.
fn try_in_debian(release: &Release) -> Outcome {
    let ready = || {
        let wheel = native_wheel(release)?;
        let with_files =
            |debian: PythonRoot| Ok((files_for_root(&debian, Architecture::native()?, &wheel)?, debian));
        PythonRoot::prepare_all()?.into_iter().map(with_files).collect::<Result<Vec<_>, Failed>>()
    };
    match ready() {
        Ok(all) => all
            .iter()
            .map(|(files, debian)| debian.root().with_files(files).run_script("wheel.sh"))
            .fold(Outcome::default(), Outcome::merged_with),
        Err(failed) => failed.into(),
    }
}

/// A directory with the wheel, numpy's for the root's interpreter, and the tests.
fn files_for_root(debian: &PythonRoot, architecture: Architecture, wheel: &Path) -> Result<PathBuf, Failed> {
    let files = roots::empty_directory(&format!("{}-files", debian.name))?;
    let packages = files.join("packages");
    copy(wheel, &packages.join(wheel.file_name().expect("a wheel has a name")))?;
    fetch_packages(debian.python, architecture, &packages)?;
    for name in TESTED_FILES {
        let path = Path::new(CRATE).join(name);
        if repository_root().join(&path).exists() {
            copy(&repository_root().join(&path), &files.join("repository").join(&path))?;
        }
    }
    copy(&repository_root().join(python_module::RUNNER), &files.join("verdicts.py"))?;
    Ok(files)
}

/// Fetches wheels for an interpreter that need not be of this machine.
fn fetch_packages(python: &str, architecture: Architecture, into: &Path) -> Result<(), Failed> {
    let into = into.display().to_string();
    let platforms = ["2_27", "2_28"].map(|glibc| format!("manylinux_{glibc}_{}", architecture.name()));
    let kind = ["--only-binary=:all:", "--no-deps", "--implementation", "cp", "--python-version", python];
    let platforms = ["--platform", &platforms[0], "--platform", &platforms[1]];
    let what = [&["download", "--quiet", "--dest", &into][..], &kind, &platforms, &[NUMPY, SCAPY]].concat();
    let interpreter = Interpreter::at(tools::python_program("python3"));
    interpreter.pip(&format!("packages for Python {python}"), &what)
}

/// With Python 3.12, if pyenv has installed it.
fn try_with_other_interpreter(release: &Release) -> Outcome {
    let Some(interpreter) = Interpreter::of_pyenv("3.12.") else {
        return Outcome::skipped("tests with Python 3.12", "Python 3.12, installed by pyenv");
    };
    let directory = python_module::environment_directory("python-3.12");
    let ready = native_wheel(release)
        .and_then(|wheel| environment_with_wheel(&interpreter, &directory, &TESTED_WITH, &wheel));
    match ready {
        Ok(installed) => PythonTests::with_installed_package().run(&installed),
        Err(failed) => failed.into(),
    }
}

/// The archive of sources, unpacked outside of the repository, builds a wheel that passes the tests.
fn try_sources(release: &Release) -> Outcome {
    let built = || {
        let directory = tempfile::tempdir().map_err(|error| Failed(format!("a directory: {error}")))?;
        let (sources, wheels) = (directory.path().join("sources"), directory.path().join("wheels"));
        unpack(&wheels::sources_path(release), &sources, 1)?;
        let [from, to] = [&sources, &wheels].map(|path| path.display().to_string());
        let environment = python_module::environment_directory("sources");
        let interpreter = Interpreter::usable()?.with_packages(&environment, &TESTED_WITH)?;
        // As a user's, it fetches what it is built with.
        interpreter.pip("a wheel of the sources", &["wheel", "--no-deps", "--wheel-dir", &to, &from])?;
        let found = fs::read_dir(&wheels).ok().and_then(|mut entries| entries.next()?.ok());
        let wheel = found.ok_or_else(|| Failed(format!("{to}: no wheel was built")))?.path();
        interpreter.pip(
            "install it",
            &["install", "--no-deps", "--force-reinstall", &wheel.display().to_string()],
        )?;
        Ok(interpreter)
    };
    match built() {
        Ok(interpreter) => PythonTests::with_installed_package().run(&interpreter),
        Err(failed) => Failed::into(failed),
    }
}

/// The module under the address sanitizer.
fn try_with_sanitizer(_: &Release) -> Outcome {
    let built = || {
        let directory = format!("{}/sanitizer-build", python_module::DIRECTORY);
        // With a target the flags are not those of build scripts and macros.
        let target = Architecture::native()?.glibc_target();
        let what = ["build", "--package", "nocopy-python", "--target", &target, "--target-dir", &directory];
        let instrumented = suite::Instrumentation::AddressSanitizer.variables();
        let step = CommandStep::cargo("the module with the address sanitizer", &what);
        instrumented.iter().fold(step, |step, (name, value)| step.with_variable(name, value)).run()?;
        let module = repository_root().join(directory).join(target).join("debug").join(python_module::BUILT);
        let package = python_module::put_together(&module, "sanitizer")?;
        // Without matplotlib: its exceptions end the sanitizer's runtime.
        let environment = python_module::environment_directory("sanitizer-environment");
        let interpreter = Interpreter::usable()?.with_packages(&environment, &[NUMPY, SCAPY])?;
        Ok((package, interpreter, suite::find_sanitizer_runtime()?))
    };
    match built() {
        Ok((package, interpreter, runtime)) => PythonTests::with_package(&package)
            .with_variable("LD_PRELOAD", runtime.display().to_string())
            // The interpreter keeps memory until its end, and has a pool of its own, which would hide faults.
            .with_variable("ASAN_OPTIONS", "detect_leaks=0:detect_stack_use_after_return=0".to_owned())
            .with_variable("PYTHONMALLOC", "malloc".to_owned())
            .run(&interpreter),
        Err(failed) => Failed::into(failed),
    }
}

/// The wheels of other architectures, by the user-mode emulator and an interpreter of Debian.
fn try_emulated(release: &Release) -> Outcome {
    let foreign = Architecture::ALL.into_iter().filter(|each| !each.is_native());
    let tries = foreign.map(|architecture| match install_emulated(release, architecture) {
        // Documents and examples start programs, which the emulator does not do.
        Ok((package, interpreter)) => PythonTests::with_package(&package)
            .in_files("test_udp.py")
            .with_variable("NOCOPY_TEST_EMULATED", "1".to_owned())
            .run(&interpreter),
        Err(failed) => failed.into(),
    });
    tries.fold(Outcome::default(), Outcome::merged_with)
}

/// A directory in which the wheel and numpy's are unpacked, and the interpreter to try them with.
fn install_emulated(release: &Release, architecture: Architecture) -> Result<(PathBuf, Interpreter), Failed> {
    let debian = PythonRoot::unpack(architecture)?;
    let files = files_for_root(&debian, architecture, &wheels::wheel_path(release, architecture))?;
    let package = files.join("installed");
    let lines = "for wheel in packages/*.whl; do python3 -m zipfile --extract $wheel installed; done";
    CommandStep::new("unpack the wheels", "sh", &["-eu", "-c", lines]).in_directory(&files).run()?;
    let program = files.join("python3");
    write_file(&program, debian.emulated_interpreter(architecture))?;
    let executable = fs::set_permissions(&program, fs::Permissions::from_mode(0o755));
    executable.map_err(|error| Failed(format!("{}: {error}", program.display())))?;
    Ok((package, Interpreter::at(program.display().to_string())))
}
