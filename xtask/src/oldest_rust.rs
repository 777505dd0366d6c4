//! The oldest Rust that is named, `rust-version` in the workspace's Cargo.toml: the nightly suite
//! `oldest-rust` builds with it, and README names the same.

use crate::gate::Outcome;
use crate::imports::read_source;
use crate::step::{CommandStep, Failed, repository_root};
use crate::workspace::Workspace;

const README: &str = "README.md";

/// What a build with another compiler leaves, apart from that of the usual one.
const DIRECTORY: &str = "target/oldest-rust";

/// The nightly suite: the oldest Rust checks everything.
pub(crate) fn check_with_oldest_rust() -> Outcome {
    if !CommandStep::new("rustup there", "rustup", &["--version"]).succeeds_quietly() {
        return Outcome::unavailable("oldest-rust", "rustup, which installs the oldest Rust");
    }
    let checked = || {
        let workspace = Workspace::read()?;
        let version = workspace.rust_version()?;
        install_rust(version)?;
        let check = ["check", "--workspace", "--all-targets", "--all-features", "--locked"];
        let what = [&["run", version, "cargo"], &check[..], &["--target-dir", DIRECTORY]].concat();
        CommandStep::new(&format!("check with Rust {version}"), "rustup", &what).run()?;
        Ok(Outcome::passed().with_remark(format!("Rust {version}")))
    };
    checked().unwrap_or_else(|failed: Failed| failed.into())
}

fn install_rust(version: &str) -> Result<(), Failed> {
    let is_installed = CommandStep::new("Rust there", "rustup", &["run", version, "cargo", "--version"]);
    if is_installed.succeeds_quietly() {
        return Ok(());
    }
    let what = ["toolchain", "install", version, "--profile", "minimal", "--no-self-update"];
    CommandStep::new(&format!("install Rust {version}"), "rustup", &what).run()
}

/// Whether all crates and README name the same oldest Rust.
pub(crate) fn check_named_versions() -> Outcome {
    let same = || {
        check_readme_version(
            &read_source(&repository_root().join(README))?,
            Workspace::read()?.rust_version()?,
        )
    };
    same().into()
}

fn check_readme_version(readme: &str, version: &str) -> Result<(), Failed> {
    match rust_version_in(readme) {
        Some(named) if named == version => Ok(()),
        named => Err(Failed(format!(
            "oldest Rust: {README} names '{}', and 'rust-version' in Cargo.toml is {version}; write 'Rust ({version})' in {README}",
            named.unwrap_or("none")
        ))),
    }
}

/// The version in the words `Rust (1.88)`.
fn rust_version_in(text: &str) -> Option<&str> {
    text.split_once("Rust (")?.1.split_once(')').map(|(version, _)| version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readme_with_another_rust_is_refused() {
        check_readme_version("On a machine with Rust (1.88), as root", "1.88").unwrap();
        for (text, named) in [("with Rust (1.88.1).", "'1.88.1'"), ("Rust 1.88 (or newer)", "'none'")] {
            let Failed(why) = check_readme_version(text, "1.88").unwrap_err();
            assert!(why.contains(named), "{why}");
        }
    }
}
