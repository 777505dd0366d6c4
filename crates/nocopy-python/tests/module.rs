//! The module as a file: what the interpreter looks for in it, and what the file asks the loader for. What it
//! does is tried by the Python files beside this one.

use std::path::PathBuf;
use std::process::Command;

/// What readelf(1) prints about the module that was built with this test.
fn read_module(option: &str) -> String {
    let module: PathBuf = std::env::current_exe().unwrap().with_file_name("libnocopy_python.so");
    let output = Command::new("readelf").args(["--wide", option]).arg(&module).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_module_defines_the_function_that_python_calls() {
    let symbols = read_module("--dyn-syms");
    let defined = symbols.lines().find(|line| line.ends_with(" PyInit__nocopy"));
    assert!(defined.is_some_and(|line| !line.contains(" UND ")), "{symbols}");
}

#[test]
fn the_module_needs_no_library_of_an_interpreter() {
    let needed = read_module("--dynamic");
    assert!(needed.contains("libc.so.6"), "{needed}");
    assert!(!needed.contains("libpython"), "{needed}");
}
