//! What ownership forbids: each file in `ownership/` fails to compile at the lines marked `//~` with those
//! errors, and no others; a file without a mark compiles. Files named `async_…` need the feature `tokio`.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Line and code of compiler errors (`rustc --explain`). Their texts are not compared, because they change
/// with every version.
type Errors = BTreeSet<(usize, String)>;

fn expected_errors(file: &Path) -> Errors {
    let text = fs::read_to_string(file).unwrap();
    let marks =
        (1..).zip(text.lines()).filter_map(|(number, line)| Some((number, line.split_once("//~ ")?.1)));
    marks.map(|(number, code)| (number, code.trim().to_owned())).collect()
}

/// The errors that the compiler reports for a program that uses the library.
fn reported_errors(file: &Path) -> Errors {
    let (rustc, library) = (rustc_command(), built_library());
    let mut command = Command::new(&rustc);
    command.args([
        "--edition",
        "2024",
        "--crate-type",
        "bin",
        "--emit",
        "metadata",
        "--error-format",
        "short",
    ]);
    command.arg("--extern").arg(format!("nocopy={}", library.display()));
    for directory in dependency_directories(&library) {
        command.arg("-L").arg(format!("dependency={}", directory.display()));
    }
    // The compiled program is not needed.
    command.arg("-o").arg(Path::new(env!("CARGO_TARGET_TMPDIR")).join("ownership.rmeta")).arg(file);
    let output = command.output().unwrap_or_else(|error| panic!("{}: {error}", rustc.display()));
    let said = String::from_utf8_lossy(&output.stderr);
    let errors: Errors = said.lines().filter_map(parse_error).collect();
    assert_eq!(output.status.success(), errors.is_empty(), "{}: {said}", file.display());
    errors
}

/// The error in a line as `FILE:6:5: error[E0382]: borrow of moved
/// value`. One without a code is called `none`.
fn parse_error(line: &str) -> Option<(usize, String)> {
    let (place, message) = line.split_once(": error")?;
    let number = place.rsplit(':').nth(1)?.parse().ok()?;
    let code = message.strip_prefix('[').and_then(|message| message.split_once(']'));
    Some((number, code.map_or("none", |(code, _)| code).to_owned()))
}

/// The compiler that belongs to the cargo which built this test.
fn rustc_command() -> PathBuf {
    let beside = Path::new(env!("CARGO")).with_file_name("rustc");
    if beside.exists() { beside } else { std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()).into() }
}

/// The library as it was built for this test: the newest one beside it.
fn built_library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let files = fs::read_dir(test.parent().unwrap()).unwrap().map(|entry| entry.unwrap().path());
    let libraries = files.filter(|file| {
        let name = file.file_name().unwrap().to_string_lossy();
        name.starts_with("libnocopy-") && name.ends_with(".rlib")
    });
    let newest = libraries.max_by_key(|file| fs::metadata(file).unwrap().modified().unwrap());
    newest.expect("the library was built for this test")
}

/// The directories of the library's dependencies: beside it, in `…/debug/deps`. If it was built with
/// `--target`, that is `…/TARGET/debug/deps`, and macros, which run in the compiler, are built for the host,
/// in `…/debug/deps`.
fn dependency_directories(library: &Path) -> Vec<PathBuf> {
    let beside = library.parent().unwrap();
    let profile = beside.parent().and_then(Path::file_name).unwrap();
    let mut directories = vec![beside.to_owned()];
    if let Some(root) = beside.ancestors().nth(3) {
        directories.push(root.join(profile).join("deps"));
    }
    directories.retain(|directory| directory.exists());
    directories
}

#[test]
fn misuse_does_not_compile_and_allowed_use_does() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/ownership");
    let mut files: Vec<PathBuf> =
        fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let is_async = |file: &PathBuf| file.file_name().unwrap().to_string_lossy().starts_with("async_");
    let (asynchronous, mut files): (Vec<_>, Vec<_>) = files.into_iter().partition(is_async);
    assert_eq!(asynchronous.len(), 9, "programs that call a blocking method of an asynchronous half");
    let (misuses, uses): (Vec<_>, Vec<_>) = files.iter().partition(|file| !expected_errors(file).is_empty());
    assert_eq!((misuses.len(), uses.len()), (12, 1), "programs that must not compile, and that must");
    if cfg!(feature = "tokio") {
        assert!(asynchronous.iter().all(|file| !expected_errors(file).is_empty()));
        files.extend(asynchronous);
    }
    for file in files {
        assert_eq!(reported_errors(&file), expected_errors(&file), "{}: reported, expected", file.display());
    }
}
