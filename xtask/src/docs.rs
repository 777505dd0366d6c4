//! Documentation besides the source: API pages, man pages, shell completions.

use crate::step::{Failed, Step};

const NOCOPY: [&str; 5] = ["run", "--quiet", "-p", "nocopy-cli", "--"];

const SHELLS: [(&str, &str); 3] = [("bash", "nocopy.bash"), ("zsh", "_nocopy"), ("fish", "nocopy.fish")];

/// The API documentation; a warning is an error.
pub(crate) fn api() -> Step {
    Step::cargo("documentation", &["doc", "--workspace", "--all-features", "--no-deps"])
        .with("RUSTDOCFLAGS", "-D warnings")
}

pub(crate) fn build() -> Result<(), Failed> {
    api().run()?;
    Step::cargo("man pages", &[&NOCOPY[..], &["man", "--output", "target/man"]].concat()).run()?;
    for (shell, file) in SHELLS {
        print(&["completions", shell], &format!("completions/{file}"))?;
    }
    Ok(())
}

/// Writes the output of the command into a file below target/.
fn print(arguments: &[&str], file: &str) -> Result<(), Failed> {
    Step::cargo(file, &[&NOCOPY, arguments].concat()).into_file(&format!("target/{file}"))
}
