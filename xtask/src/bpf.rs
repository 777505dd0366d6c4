//! The BPF programs in C: built by clang into object files that are committed, so that only who changes them needs clang.

use std::fs;
use std::path::{Path, PathBuf};

use crate::step::{Failed, Step, files, install, root, run_all};

/// One version for all, since another writes another object: the one of Debian 12.
const CLANG: &str = "clang-14";
const STRIP: &str = "llvm-strip-14";

/// Builds every `bpf/*.bpf.c` into the object beside it.
pub(crate) fn build() -> Result<(), Failed> {
    install_clang()?;
    sources()?.iter().try_for_each(|source| compile(source, &source.with_extension("o")))
}

/// Checks that the committed objects are what their sources give.
pub(crate) fn check() -> Result<(), Failed> {
    install_clang()?;
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
    // The object names its source, which must not depend on where the repository lies.
    let name = source.strip_prefix(root()).expect("in the repository").display().to_string();
    let object = object.display().to_string();
    let here = "-fdebug-compilation-dir=.";
    let options =
        ["-target", "bpf", "-mcpu=v3", "-O2", "-g", "-Wall", "-Werror", here, "-c", &name, "-o", &object];
    run_all(&[Step::new("compile for BPF", CLANG, &options), Step::new("strip", STRIP, &["-g", &object])])
}

fn install_clang() -> Result<(), Failed> {
    if Step::new("clang there", CLANG, &["--version"]).succeeds_quietly()
        && Step::new("strip there", STRIP, &["--version"]).succeeds_quietly()
    {
        return Ok(());
    }
    install(&[CLANG, "llvm-14"])
}
