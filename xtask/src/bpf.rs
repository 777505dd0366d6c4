//! The BPF programs in C, each beside the crate that loads it, built by clang into object files that are
//! committed, so that clang is needed only to change them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::Outcome;
use crate::machine::{CLANG, STRIP, install_bpf_compiler};
use crate::step::{CommandStep, Failed, files_with_ending, repository_root, run_steps};

/// The directories of the crates that have BPF programs.
const CRATES: [&str; 2] = ["crates/nocopy-profile", "crates/nocopy-vm"];

/// A program under MIT may call every helper with this, and every object has it.
const LICENCE: &[u8] = b"Dual MIT/GPL\0";

/// Builds every `bpf/*.bpf.c` of these crates into the object beside it.
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
        let (object, name) = (read(&committed)?, source.display());
        if object != read(&built)? {
            return Err(Failed(format!(
                "{name}: its object is of another source; run 'cargo xtask bpf' and commit"
            )));
        }
        if !object.windows(LICENCE.len()).any(|bytes| bytes == LICENCE) {
            return Err(Failed(format!(
                "{name}: its object lacks the licence 'Dual MIT/GPL'; the kernel refuses helpers to it; write the \
                 section 'license' as in the other programs"
            )));
        }
    }
    Ok(())
}

fn source_files() -> Result<Vec<PathBuf>, Failed> {
    let files = CRATES.iter().map(|directory| files_with_ending(&format!("{directory}/bpf"), ".bpf.c"));
    Ok(files.collect::<Result<Vec<_>, _>>()?.concat())
}

fn compile_object(source: &Path, object: &Path) -> Result<(), Failed> {
    // The object names its source, which must not depend on the path of the repository.
    let directory = source.parent().and_then(Path::parent).expect("in the directory 'bpf' of a crate");
    let name = source.strip_prefix(directory).expect("below the crate").display().to_string();
    let object = object.display().to_string();
    let here = "-fdebug-compilation-dir=.";
    let options =
        ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", here, "-c", &name, "-o", &object];
    run_steps(&[
        CommandStep::new("compile for BPF", CLANG, &options).in_directory(directory),
        CommandStep::new("strip", STRIP, &["-g", &object]),
    ])
}
