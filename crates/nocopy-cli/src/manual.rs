//! The manual page and shell completions, from the definitions of the command line.

use std::io::{self, Write};

use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::Failure;
use crate::arguments::Arguments;
use nocopy_report::Outcome;

pub(crate) fn print_page(command: Option<&str>) -> Result<Outcome, Failure> {
    let mut all = Arguments::command();
    all.build();
    let page = match command {
        None => all,
        Some(name) => match find(&all, name) {
            Some(found) => found.clone(),
            None => return Err(Failure::NoSuchCommand { name: name.into() }),
        },
    };
    let mut text = Vec::new();
    clap_mangen::Man::new(page).render(&mut text).map_err(nocopy_report::Failure::Print)?;
    print(&text)
}

/// By its name, or that of its parent and its own, as pages name it: `profile-sweep`.
fn find<'a>(parent: &'a Command, name: &str) -> Option<&'a Command> {
    parent.get_subcommands().find_map(|command| match name.strip_prefix(command.get_name())? {
        "" => Some(command),
        rest => find(command, rest.strip_prefix('-')?),
    })
}

pub(crate) fn print_completions(shell: Shell) -> Result<Outcome, Failure> {
    // Into memory first: clap_complete panics when its writer fails, and a closed pipe is no reason to.
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Arguments::command(), "nocopy", &mut text);
    print(&text)
}

fn print(text: &[u8]) -> Result<Outcome, Failure> {
    let mut output = io::stdout().lock();
    output.write_all(text).and_then(|()| output.flush()).map_err(nocopy_report::Failure::Print)?;
    Ok(Outcome::Positive)
}
