//! The programs that make the released files, in versions that are named here, below `target/tools`.

use std::path::PathBuf;

use super::Architecture;
use crate::python_module::Interpreter;
use crate::step::{CommandStep, Failed, write_file};
use crate::suite::{built_program, install_tool_with_features};

/// Subcommands of cargo from crates.io, with their versions (the newest that build with Rust 1.95) and the
/// features that their programs need.
const SUBCOMMANDS: [[&str; 3]; 2] = [["cargo-deb", "3.8.0", ""], ["cargo-about", "0.9.3", "cli"]];

/// From PyPI, as programs: the linker that knows glibc's older versions, and the subcommand that uses it;
/// what builds wheels of the Python module, and judges them.
const PYTHON_PACKAGES: [&str; 4] =
    ["ziglang==0.17.1", "cargo-zigbuild==0.24.1", "maturin==1.16.0", "abi3audit==0.0.26"];

fn tools_path(name: &str) -> PathBuf {
    built_program("tools", name)
}

/// A program of the packages from PyPI.
pub(super) fn python_program(name: &str) -> String {
    tools_path("python/bin").join(name).display().to_string()
}

/// `PATH` with these programs first.
pub(super) fn path_variable() -> String {
    let [cargo, python] =
        [tools_path("bin"), tools_path("python/bin")].map(|path| path.display().to_string());
    format!("{cargo}:{python}:{}", std::env::var("PATH").unwrap_or_default())
}

/// Installs what is missing, and the standard libraries of all targets.
pub(super) fn install_all() -> Result<(), Failed> {
    let targets = Architecture::ALL.iter().flat_map(|each| [each.static_target(), each.glibc_target()]);
    let targets: Vec<String> = targets.collect();
    let targets: Vec<&str> = targets.iter().map(String::as_str).collect();
    CommandStep::new("standard libraries", "rustup", &[&["target", "add"], &targets[..]].concat()).run()?;
    for [name, version, features] in SUBCOMMANDS {
        install_tool_with_features([name, version], features)?;
    }
    install_python_packages()?;
    Architecture::ALL.into_iter().try_for_each(make_unwinder)
}

/// What Rust's standard library calls of the unwinder.
const UNWINDER: [&str; 15] = [
    "Backtrace",
    "DeleteException",
    "FindEnclosingFunction",
    "GetCFA",
    "GetDataRelBase",
    "GetGR",
    "GetIP",
    "GetIPInfo",
    "GetLanguageSpecificData",
    "GetRegionStart",
    "GetTextRelBase",
    "RaiseException",
    "Resume",
    "SetGR",
    "SetIP",
];

/// A library to link with in place of the system's unwinder, of which every architecture's would be needed.
/// Without it zig puts an unwinder of its own into each library, and a thread that ends inside of the library
/// (`pthread_exit`, `pthread_cancel`; Python's, at its end) crashes: glibc unwinds with the system's.
pub(super) fn unwinder_path(architecture: Architecture) -> PathBuf {
    tools_path("unwinder").join(architecture.name()).join("libgcc_s.so.1")
}

fn make_unwinder(architecture: Architecture) -> Result<(), Failed> {
    let library = unwinder_path(architecture);
    let source = library.with_file_name("unwinder.c");
    let functions = UNWINDER.map(|name| format!("void _Unwind_{name}(void) {{}}\n"));
    write_file(&source, functions.concat())?;
    let target = format!("{}-linux-gnu", architecture.name());
    let [library, source] = [library, source].map(|path| path.display().to_string());
    let zig = ["-m", "ziglang", "cc", "-target", &target, "-shared", "-nostdlib"];
    let what = [&zig[..], &["-Wl,-soname,libgcc_s.so.1", "-o", &library, &source]].concat();
    CommandStep::new("unwinder to link with", &python_program("python3"), &what).run()
}

fn install_python_packages() -> Result<(), Failed> {
    Interpreter::at("python3").with_packages(&tools_path("python"), &PYTHON_PACKAGES).map(drop)
}
