//! The BPF programs in C, built by clang into object files that are committed, so that clang is needed only
//! to change them.

use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::Outcome;
use crate::machine::{CLANG, STRIP, install_bpf_compiler};
use crate::step::{CommandStep, Failed, files, root, run_all};

/// Builds every `bpf/*.bpf.c` into the object beside it.
pub(crate) fn build() -> Result<(), Failed> {
    if !install_bpf_compiler()? {
        return Err(Failed(NO_COMPILER.into()));
    }
    sources()?.iter().try_for_each(|source| compile(source, &source.with_extension("o")))
}

const NO_COMPILER: &str =
    "needs clang-14: the packages of this system have none; Debian 12 and Ubuntu 24.04 do";

/// Checks that the committed objects match their sources.
pub(crate) fn check() -> Outcome {
    match install_bpf_compiler() {
        Ok(true) => compare().into(),
        Ok(false) => Outcome::unavailable("BPF objects", NO_COMPILER),
        Err(failed) => failed.into(),
    }
}

fn compare() -> Result<(), Failed> {
    let directory = root().join("target/bpf");
    fs::create_dir_all(&directory).map_err(|error| Failed(format!("{}: {error}", directory.display())))?;
    for source in sources()? {
        let committed = source.with_extension("o");
        let built = directory.join(committed.file_name().expect("a file"));
        compile(&source, &built)?;
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

fn sources() -> Result<Vec<PathBuf>, Failed> {
    files("bpf", ".bpf.c")
}

fn compile(source: &Path, object: &Path) -> Result<(), Failed> {
    // The object names its source, which must not depend on the path of the repository.
    let name = source.strip_prefix(root()).expect("in the repository").display().to_string();
    let object = object.display().to_string();
    let here = "-fdebug-compilation-dir=.";
    let options =
        ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", here, "-c", &name, "-o", &object];
    run_all(&[
        CommandStep::new("compile for BPF", CLANG, &options),
        CommandStep::new("strip", STRIP, &["-g", &object]),
    ])
}
