//! A program on libnfs, Debian's or another, compiled when it is needed: the programs that come with libnfs
//! make only one call at a time, and libnfs-dev has all that a better one needs.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

const SOURCE: &str = include_str!("libnfs.c");
const COMPILER: &str = "cc";

pub(crate) fn is_installed() -> bool {
    run_compiler(&["-fsyntax-only"]).is_ok_and(|output| output.status.success())
}

pub(crate) fn version() -> String {
    let questions = [
        ["dpkg-query", "-W", "-f=${Version}", "libnfs-dev"].as_slice(),
        &["pkg-config", "--modversion", "libnfs"],
    ];
    let ask = |words: &[&str]| {
        let asked =
            Command::new(words[0]).args(&words[1..]).stdin(Stdio::null()).stderr(Stdio::null()).output();
        let output = asked.ok().filter(|output| output.status.success())?;
        Some(String::from_utf8_lossy(&output.stdout).trim().to_owned()).filter(|version| !version.is_empty())
    };
    questions.into_iter().find_map(ask).unwrap_or_else(|| "of an unknown version".into())
}

/// Compiles it into a directory; returns the program's path.
pub(crate) fn build_program(directory: &Path) -> io::Result<PathBuf> {
    let program = directory.join("reads-by-libnfs");
    let name = program.to_str().ok_or_else(|| io::Error::other("a path that is no text"))?;
    let output = run_compiler(&["-O2", "-o", name, "-", "-lnfs"])?;
    match output.status.success() {
        true => Ok(program),
        false => {
            let output = String::from_utf8_lossy(&output.stderr);
            let first = output.lines().find(|line| line.contains("error")).unwrap_or("it says nothing");
            Err(io::Error::other(format!("{COMPILER} does not compile the program on libnfs: {first}")))
        }
    }
}

fn run_compiler(words: &[&str]) -> io::Result<Output> {
    let mut command = Command::new(COMPILER);
    command
        .args(["-std=gnu11", "-x", "c"])
        .args(words)
        .args(words.iter().all(|word| *word != "-").then_some("-"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
    let mut input = child.stdin.take().expect("it is piped");
    // If it ends before it has read everything, it prints why.
    let _ = input.write_all(SOURCE.as_bytes());
    drop(input);
    child.wait_with_output()
}
