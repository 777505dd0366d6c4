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
    use std::path::PathBuf;

    use super::*;

    /// README.md and the pages of docs/.
    fn read_documents() -> Vec<(PathBuf, String)> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let docs = fs::read_dir(root.join("docs")).unwrap().map(|entry| entry.unwrap().path());
        let pages = docs.filter(|path| path.extension().is_some_and(|extension| extension == "md"));
        let paths = std::iter::once(root.join("README.md")).chain(pages);
        paths.map(|path| (path.clone(), fs::read_to_string(path).unwrap())).collect()
    }

    /// The command lines of a document, from code spans and code blocks, each without the word `nocopy`.
    fn command_lines(document: &str) -> Vec<String> {
        let mut lines = Vec::new();
        for (index, block) in document.split("```").enumerate() {
            let pieces: Vec<&str> = match index % 2 {
                0 => block.split('`').skip(1).step_by(2).collect(),
                _ => block.lines().collect(),
            };
            for piece in pieces {
                let piece = piece.trim().trim_start_matches("$ ").trim_start_matches("sudo ");
                let piece = piece.replace('\n', " ").replace("cargo run --release -- ", "nocopy ");
                let own = piece.split(['#', '|', ';', '&', '>']).next().unwrap_or_default();
                // A dependency, as Cargo.toml has it, is no command.
                let line = own.strip_prefix("nocopy ").filter(|line| !line.starts_with('='));
                lines.extend(line.map(str::to_owned));
            }
        }
        lines
    }

    /// Whether clap knows the commands and the options of a line; values are the reader's.
    fn check_command_line(line: &str) -> Result<(), String> {
        let definitions = &foreign_options::with_synonyms_as_options(command_definitions());
        let mut command = definitions;
        let mut words = line.split_whitespace().peekable();
        while let Some(below) = words.peek().and_then(|word| command.find_subcommand(word)) {
            command = below;
            words.next();
        }
        if std::ptr::eq(command, definitions) && words.peek().is_some_and(|word| !word.starts_with('-')) {
            return Err(format!("no such command: {line}"));
        }
        // Words after `--` are another program's.
        for word in words.take_while(|word| *word != "--") {
            let Some(name) = word.trim_start_matches('[').strip_prefix("--") else { continue };
            let name = name.split(['=', '[', ']', ',']).next().unwrap_or_default();
            let known =
                |option: &clap::Arg| option.get_long() == Some(name) || name == "help" || name == "version";
            if !command.get_arguments().any(known) {
                return Err(format!("no such option --{name}: {line}"));
            }
        }
        Ok(())
    }

    #[test]
    fn documents_name_commands_and_options_that_exist() {
        let mut checked = 0;
        let mut wrong = Vec::new();
        for (path, text) in read_documents() {
            for line in command_lines(&text) {
                checked += 1;
                wrong.extend(
                    check_command_line(&line).err().map(|error| format!("{}: {error}", path.display())),
                );
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(checked > 50, "only {checked} command lines were found");
    }

    #[test]
    fn unknown_commands_and_options_in_documents_are_detected() {
        let found = command_lines(
            "text `nocopy bench --all` and\n```\n$ sudo nocopy sniff eth0 --quiet | head\n```\n",
        );
        assert_eq!(found, ["bench --all", "sniff eth0 --quiet "]);
        assert!(
            check_command_line("sniff eth0 --quiet").is_ok()
                && check_command_line("profile sweep --json FILE").is_ok()
        );
        assert!(check_command_line("snif eth0").is_err() && check_command_line("sniff eth0 --loud").is_err());
    }

    #[test]
    fn links_in_documents_exist() {
        for (path, text) in read_documents() {
            let links = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#', ' ']).next());
            for link in links.filter(|link| !link.is_empty() && !link.contains("://")) {
                assert!(path.parent().unwrap().join(link).exists(), "{}: {link}", path.display());
            }
        }
    }

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
