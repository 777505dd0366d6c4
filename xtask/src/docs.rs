//! Documentation besides the source: API pages, man pages, shell completions.

use crate::step::{CommandStep, Failed};

const NOCOPY: [&str; 5] = ["run", "--quiet", "-p", "nocopy-cli", "--"];

const SHELLS: [(&str, &str); 3] = [("bash", "nocopy.bash"), ("zsh", "_nocopy"), ("fish", "nocopy.fish")];

/// The API documentation; a warning is an error.
pub(crate) fn api_documentation_step() -> CommandStep {
    CommandStep::cargo("documentation", &["doc", "--workspace", "--all-features", "--no-deps"])
        .with_variable("RUSTDOCFLAGS", "-D warnings")
}

pub(crate) fn build_documentation() -> Result<(), Failed> {
    api_documentation_step().run()?;
    CommandStep::cargo("man pages", &[&NOCOPY[..], &["man", "--output", "target/man"]].concat()).run()?;
    for (shell, file) in SHELLS {
        let file = format!("completions/{file}");
        let print = CommandStep::cargo(&file, &[&NOCOPY[..], &["completions", shell]].concat());
        print.into_file(&format!("target/{file}"))?;
    }
    Ok(())
}
