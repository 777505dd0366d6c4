//! The BPF programs in C, built by clang into object files that are committed, so that clang is needed only
//! to change them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::Outcome;
use crate::machine::{CLANG, STRIP, install_bpf_compiler};
use crate::step::{CommandStep, Failed, files_with_ending, repository_root, run_steps};

/// Builds every `bpf/*.bpf.c` into the object beside it.
pub(crate) fn build_objects() -> Result<(), Failed> {
    if !install_bpf_compiler()? {
        return Err(Failed(NO_COMPILER.into()));
    }
    source_files()?.iter().try_for_each(|source| compile_object(source, &source.with_extension("o")))
}

const NO_COMPILER: &str =
    "needs clang-14: the packages of this system have none; Debian 12 and Ubuntu 24.04 do";

/// Checks that the committed objects match their sources.
pub(crate) fn check_objects() -> Outcome {
    match install_bpf_compiler() {
        Ok(true) => compare_objects().into(),
        Ok(false) => Outcome::unavailable("BPF objects", NO_COMPILER),
        Err(failed) => failed.into(),
    }
}

fn compare_objects() -> Result<(), Failed> {
    let directory = repository_root().join("target/bpf");
    fs::create_dir_all(&directory).map_err(|error| Failed(format!("{}: {error}", directory.display())))?;
    for source in source_files()? {
        let committed = source.with_extension("o");
        let built = directory.join(committed.file_name().expect("a file"));
        compile_object(&source, &built)?;
        let read =
            |path: &Path| fs::read(path).map_err(|error| Failed(format!("{}: {error}", path.display())));
        if read(&committed)? != read(&built)? {
            let name = source.display();
            return Err(Failed(format!(
                "{name}: its object is of another source; run 'cargo xtask bpf' and commit"
            )));
        }
    }
    Ok(())
}

fn source_files() -> Result<Vec<PathBuf>, Failed> {
    files_with_ending("bpf", ".bpf.c")
}

fn compile_object(source: &Path, object: &Path) -> Result<(), Failed> {
    // The object names its source, which must not depend on the path of the repository.
    let name = source.strip_prefix(repository_root()).expect("in the repository").display().to_string();
    let object = object.display().to_string();
    let here = "-fdebug-compilation-dir=.";
    let options =
        ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", here, "-c", &name, "-o", &object];
    run_steps(&[
        CommandStep::new("compile for BPF", CLANG, &options),
        CommandStep::new("strip", STRIP, &["-g", &object]),
    ])
}
