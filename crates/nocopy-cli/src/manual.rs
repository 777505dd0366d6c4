//! The manual pages and shell completions, from the definitions of the command line.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Command, CommandFactory};
use clap_complete::Shell;
use nocopy_report::Outcome;

use crate::Failure;
use crate::arguments::{Arguments, foreign_options};

pub(crate) fn print_manual_page(command: Option<&str>) -> Result<Outcome, Failure> {
    let all = command_definitions();
    let found = match command {
        None => Some(&all),
        Some(name) => find_command(&all, name),
    };
    let Some(found) = found else {
        return Err(Failure::NoSuchCommand { name: command.unwrap_or_default().into() });
    };
    print_bytes(&render_page(found))
}

pub(crate) fn write_manual_pages(directory: &Path) -> Result<Outcome, Failure> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| nocopy_report::Failure::Output { path, source }
    };
    fs::create_dir_all(directory).map_err(failed(directory))?;
    for (name, command) in visible_commands(&command_definitions()) {
        let path = directory.join(format!("{name}.1"));
        fs::write(&path, render_page(command)).map_err(failed(&path))?;
    }
    Ok(Outcome::Positive)
}

pub(crate) fn print_completions(shell: Shell) -> Result<Outcome, Failure> {
    // Into memory first: clap_complete panics when its writer fails, and a closed pipe is no reason to.
    let mut text = Vec::new();
    clap_complete::generate(
        shell,
        &mut foreign_options::with_synonyms_as_options(Arguments::command()),
        "nocopy",
        &mut text,
    );
    print_bytes(&text)
}

fn command_definitions() -> Command {
    let mut all = Arguments::command();
    all.build();
    all
}

/// nocopy itself and every command that users see, by the names of their pages: `nocopy-profile-sweep`.
fn visible_commands(command: &Command) -> Vec<(String, &Command)> {
    let name = command.get_name().to_owned();
    let below = command.get_subcommands().filter(|below| !below.is_hide_set() && below.get_name() != "help");
    let below: Vec<_> = below
        .flat_map(visible_commands)
        .map(|(below, command)| (format!("{name}-{below}"), command))
        .collect();
    std::iter::once((name, command)).chain(below).collect()
}

/// Finds a command by its name, or by its parent's name and its own, as in the names of pages:
/// `profile-sweep`.
fn find_command<'a>(parent: &'a Command, name: &str) -> Option<&'a Command> {
    parent.get_subcommands().find_map(|command| match name.strip_prefix(command.get_name())? {
        "" => Some(command),
        rest => find_command(command, rest.strip_prefix('-')?),
    })
}

fn render_page(command: &Command) -> Vec<u8> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text).expect("memory takes all that is written");
    text.extend(foreign_options::manual_section(command.get_name()).bytes());
    text
}

fn print_bytes(text: &[u8]) -> Result<Outcome, Failure> {
    let mut output = io::stdout().lock();
    output.write_all(text).and_then(|()| output.flush()).map_err(nocopy_report::Failure::Print)?;
    Ok(Outcome::Positive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_page_with_its_options_and_completions() {
        let all = command_definitions();
        let mut completions = Vec::new();
        clap_complete::generate(Shell::Bash, &mut Arguments::command(), "nocopy", &mut completions);
        let completions = String::from_utf8(completions).unwrap();
        for (name, command) in visible_commands(&all) {
            let page = String::from_utf8(render_page(command)).unwrap().replace('\\', "");
            for option in
                command.get_arguments().filter(|option| !option.is_hide_set()).filter_map(clap::Arg::get_long)
            {
                assert!(page.contains(&format!("--{option}")), "{name}: its page lacks --{option}");
                assert!(
                    completions.contains(&format!("--{option}")),
                    "{name}: the completions lack --{option}"
                );
            }
        }
        assert!(visible_commands(&all).iter().any(|(name, _)| name == "nocopy-profile-sweep"));
    }
}
