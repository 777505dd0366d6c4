//! What users read besides the source: API documentation, man pages, shell completions.

use crate::step::{Failed, Step};

/// The commands with a man page of their own.
const PAGES: [&str; 6] = ["bench", "doctor", "stats", "sniff", "record", "send"];

const SHELLS: [(&str, &str); 3] = [("bash", "nocopy.bash"), ("zsh", "_nocopy"), ("fish", "nocopy.fish")];

/// The API documentation; a warning is an error.
pub(crate) fn api() -> Step {
    Step::cargo("documentation", &["doc", "--workspace", "--all-features", "--no-deps"])
        .with("RUSTDOCFLAGS", "-D warnings")
}

pub(crate) fn build() -> Result<(), Failed> {
    api().run()?;
    print(&["man"], "man/nocopy.1")?;
    for command in PAGES {
        print(&["man", command], &format!("man/nocopy-{command}.1"))?;
    }
    for (shell, file) in SHELLS {
        print(&["completions", shell], &format!("completions/{file}"))?;
    }
    Ok(())
}

/// Writes what the command prints into a file below target/.
fn print(arguments: &[&str], file: &str) -> Result<(), Failed> {
    let nocopy = ["run", "--quiet", "-p", "nocopy-cli", "--"];
    Step::cargo(file, &[&nocopy, arguments].concat()).into_file(&format!("target/{file}"))
}
