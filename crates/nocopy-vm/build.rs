//! Makes every file of `src/tests` a module, and a list of them all: adding a test is adding a file.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    let directory = Path::new(&env::var("CARGO_MANIFEST_DIR").expect("cargo sets it")).join("src/tests");
    println!("cargo::rerun-if-changed={}", directory.display());
    let files =
        fs::read_dir(&directory).expect("the tests are there").map(|file| file.expect("readable").path());
    let mut files: Vec<_> = files.filter(|path| path.extension().is_some_and(|end| end == "rs")).collect();
    files.sort();
    let (mut modules, mut list) = (String::new(), String::new());
    for path in files {
        let name = path.file_stem().expect("a file").to_string_lossy();
        writeln!(modules, "#[path = {path:?}]\nmod {name};").expect("a string takes all");
        write!(list, "({name:?}, &{name}::TEST), ").expect("a string takes all");
    }
    let text = format!(
        "{modules}\n/// Every test under its name.\npub(crate) static TESTS: &[(&str, &Test)] = &[{list}];\n"
    );
    let place = Path::new(&env::var("OUT_DIR").expect("cargo sets it")).join("tests.rs");
    fs::write(place, text).expect("cargo's directory takes a file");
}
