//! The synonyms in manual pages and completions.

use clap::{Arg, ArgAction, Command, ValueHint};

use super::table::HABITS;
use super::{Means, On};

/// The section of a command's manual page: what each option of another program is here.
pub(crate) fn manual(command: &str) -> String {
    let mut text = String::new();
    for habit in HABITS.iter().filter(|habit| habit.is_for(command, On::Any) && !habit.programs.is_empty()) {
        let meaning = match (habit.accepted(), &habit.means) {
            (Some(meaning), _) => meaning,
            (None, Means::Hint(hint)) => format!("not accepted: {hint}"),
            (None, _) => continue,
        };
        let on = match habit.on {
            On::Any => "",
            On::Interface => ", to an INTERFACE",
            On::Host => ", to a host",
        };
        let typed = habit.typed.replace(' ', ", ").replace('-', "\\-");
        let (value, programs) = (habit.value.replace('-', "\\-"), habit.programs);
        let meaning = meaning.replace('\\', "\\\\").replace('-', "\\-");
        text += &format!(".TP\n\\fB{typed}\\fR {value}\n{meaning} ({programs}{on})\n");
    }
    match text.is_empty() {
        true => text,
        false => format!(".SH OPTIONS OF OTHER PROGRAMS\n{text}"),
    }
}

/// The command line with the synonyms as options: for the completions alone.
pub(crate) fn with_synonyms(all: Command) -> Command {
    let names: Vec<String> = all.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(all, |all, name| all.mut_subcommand(name, add_synonyms))
}

fn add_synonyms(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let all = HABITS.iter().filter(|habit| habit.is_for(&name, On::Any));
    let spellings = all.flat_map(|habit| habit.spellings().map(move |typed| (habit, typed)));
    spellings.fold(command, |command, (habit, typed)| {
        let (Some(meaning), letters) = (habit.accepted(), typed.trim_start_matches('-')) else {
            return command;
        };
        let is_long = typed.starts_with("--");
        let is_known = |known: &Arg| match is_long {
            true => known.get_long() == Some(letters),
            false => letters.len() > 1 || known.get_short().map(String::from).as_deref() == Some(letters),
        };
        if command.get_arguments().any(is_known) || matches!(typed, "-h" | "--help") {
            return command;
        }
        let option = Arg::new(typed).help(format!("{}: {meaning}", habit.programs));
        let option = match (is_long, letters.chars().next()) {
            (true, _) => option.long(letters),
            (false, Some(letter)) => option.short(letter),
            (false, None) => return command,
        };
        command.arg(match habit.value {
            "" => option.action(ArgAction::SetTrue),
            value => option.action(ArgAction::Set).value_name(value).value_hint(match value {
                "FILE" => ValueHint::FilePath,
                _ => ValueHint::Other,
            }),
        })
    })
}
