//! The synonyms in manual pages and completions.

use clap::{Arg, ArgAction, Command, ValueHint};

use super::table::FOREIGN_OPTIONS;
use super::{Meaning, TargetKind};

/// The section of a command's manual page: what each option of another program is here.
pub(crate) fn manual_section(command: &str) -> String {
    let mut text = String::new();
    for foreign in FOREIGN_OPTIONS
        .iter()
        .filter(|foreign| foreign.applies_to(command, TargetKind::Any) && !foreign.programs.is_empty())
    {
        let meaning = match (foreign.native_form(), &foreign.meaning) {
            (Some(meaning), _) => meaning,
            (None, Meaning::Hint(hint)) => format!("not accepted: {hint}"),
            (None, _) => continue,
        };
        let target = match foreign.target {
            TargetKind::Any => "",
            TargetKind::Interface => ", to an INTERFACE",
            TargetKind::Host => ", to a host",
        };
        let typed = foreign.typed.replace(' ', ", ").replace('-', "\\-");
        let (value, programs) = (foreign.value.replace('-', "\\-"), foreign.programs);
        let meaning = meaning.replace('\\', "\\\\").replace('-', "\\-");
        text += &format!(".TP\n\\fB{typed}\\fR {value}\n{meaning} ({programs}{target})\n");
    }
    match text.is_empty() {
        true => text,
        false => format!(".SH OPTIONS OF OTHER PROGRAMS\n{text}"),
    }
}

/// The command line with the synonyms as options: for the completions alone.
pub(crate) fn with_synonyms_as_options(all: Command) -> Command {
    let names: Vec<String> = all.get_subcommands().map(|command| command.get_name().to_owned()).collect();
    names.into_iter().fold(all, |all, name| all.mut_subcommand(name, add_synonym_options))
}

fn add_synonym_options(command: Command) -> Command {
    let name = command.get_name().to_owned();
    let all = FOREIGN_OPTIONS.iter().filter(|foreign| foreign.applies_to(&name, TargetKind::Any));
    let spellings = all.flat_map(|foreign| foreign.spellings().map(move |typed| (foreign, typed)));
    spellings.fold(command, |command, (foreign, typed)| {
        let (Some(meaning), letters) = (foreign.native_form(), typed.trim_start_matches('-')) else {
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
        let option = Arg::new(typed).help(format!("{}: {meaning}", foreign.programs));
        let option = match (is_long, letters.chars().next()) {
            (true, _) => option.long(letters),
            (false, Some(letter)) => option.short(letter),
            (false, None) => return command,
        };
        command.arg(match foreign.value {
            "" => option.action(ArgAction::SetTrue),
            value => option.action(ArgAction::Set).value_name(value).value_hint(match value {
                "FILE" => ValueHint::FilePath,
                _ => ValueHint::Other,
            }),
        })
    })
}
