//! Options of other programs: the same thing is a synonym of ours, for anything else the error says what to
//! use.
//!
//! Synonyms are replaced before clap reads the command line, so they are neither in `--help` nor in the
//! definitions, and an option of ours always means what it says there. `table` has all of them.

mod pages;
mod table;

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

pub(crate) use pages::{manual_section, with_synonyms_as_options};
use table::{FOREIGN_OPTIONS, PROGRAMS};

/// An option of another program.
struct ForeignOption {
    /// The commands that it is typed with, and the programs that have it, as people read them.
    commands: &'static str,
    programs: &'static str,
    /// Its spellings, separated by blanks, and the name of its value, if it has one.
    typed: &'static str,
    value: &'static str,
    target: TargetKind,
    meaning: Meaning,
}

/// The kind of target that a command line has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum TargetKind {
    Any,
    Interface,
    Host,
}

enum Meaning {
    /// This option, with the same value.
    Option(&'static str),
    /// What the function makes of the value and the other words; described by the text.
    Value(&'static str, fn(&str, &[&str]) -> ValueMeaning),
    /// This word.
    Word(&'static str),
    /// Nothing: it is so without.
    Default(&'static str),
    /// The interface, which we have without an option.
    Target,
    /// The port to listen at, and that datagrams are received there: both are in the target.
    Port,
    Datagrams,
    /// What to do instead.
    Hint(&'static str),
}

/// What a value means here.
enum ValueMeaning {
    Word(String),
    Nothing,
    Hint(&'static str),
}

impl ForeignOption {
    fn applies_to(&self, command: &str, target: TargetKind) -> bool {
        let is_for_target =
            self.target == TargetKind::Any || target == TargetKind::Any || self.target == target;
        is_for_target && self.commands.split(' ').any(|name| name == command)
    }

    fn spellings(&self) -> impl Iterator<Item = &'static str> {
        self.typed.split(' ')
    }

    /// What to write, as people read it; `None` if it is not accepted.
    fn native_form(&self) -> Option<String> {
        Some(match self.meaning {
            Meaning::Option(option) => format!("{option} {}", self.value),
            Meaning::Value(text, _) => text.to_owned(),
            Meaning::Word(word) => word.to_owned(),
            Meaning::Default(why) => format!("left out: {why}"),
            Meaning::Target => self.value.to_owned(),
            Meaning::Port => "the port of the target".into(),
            Meaning::Datagrams => "udp://".into(),
            Meaning::Hint(_) => return None,
        })
    }
}

fn find_foreign_option(command: &str, typed: &str, target: TargetKind) -> Option<&'static ForeignOption> {
    FOREIGN_OPTIONS.iter().find(|foreign| {
        foreign.applies_to(command, target) && foreign.spellings().any(|spelling| spelling == typed)
    })
}

/// A command line in our own words, and what is to be said about it if clap refuses it.
pub(super) struct Translation {
    pub(super) words: Vec<OsString>,
    hint: Option<String>,
}

/// Replaces the synonyms in a command line of `command`, whose name is its second word.
pub(super) fn translate_words(words: &[OsString], command: &Command) -> Translation {
    let (head, rest) = words.split_at(words.len().min(2));
    let text: Vec<&str> = rest.iter().filter_map(|word| word.to_str()).collect();
    let mut translator = Translator {
        command,
        target: target_kind(command.get_name(), &text),
        text,
        words: Vec::new(),
        targets: Vec::new(),
        listen_address: ListenAddress::default(),
        hint: None,
    };
    translator.translate_all(rest);
    let Translator { words, targets, hint, .. } = translator;
    Translation { words: [head, &targets, &words].concat(), hint }
}

/// The kind of target of a line: `send` is the one command that has several.
fn target_kind(command: &str, words: &[&str]) -> TargetKind {
    let is_url = |word: &str| {
        word.split_once("://").is_some_and(|(scheme, _)| scheme.chars().all(char::is_alphabetic))
    };
    let is_host = |word: &&str| is_url(word) || word.starts_with("--udp") || word.starts_with("--tcp");
    let names_host = |pair: &[&str]| {
        matches!(pair[0], "-c" | "--client") && !pair[1].starts_with(|first: char| first.is_ascii_digit())
            || pair[0] == "-c" && pair[1].matches('.').count() == 3
    };
    match command {
        "send" if words.iter().any(is_host) || words.windows(2).any(names_host) => TargetKind::Host,
        "send" => TargetKind::Interface,
        _ => TargetKind::Any,
    }
}

struct Translator<'a> {
    command: &'a Command,
    target: TargetKind,
    text: Vec<&'a str>,
    words: Vec<OsString>,
    /// What comes first.
    targets: Vec<OsString>,
    listen_address: ListenAddress,
    hint: Option<String>,
}

/// What is said of the address to listen at.
#[derive(Default)]
struct ListenAddress {
    is_requested: bool,
    is_udp: bool,
    port: Option<String>,
}

impl Translator<'_> {
    fn translate_all(&mut self, words: &[OsString]) {
        let mut rest = words.iter();
        while let Some(word) = rest.next() {
            match word.to_str() {
                Some("--") => {
                    self.words.push(word.clone());
                    self.words.extend(rest.by_ref().cloned());
                }
                Some(text) if text.starts_with("--") => self.translate_long_option(text, &mut rest),
                Some(text) if text.starts_with('-') && text.len() > 1 => {
                    self.translate_short_option(text, &mut rest)
                }
                // Which does not listen at a port that is a word.
                Some(text) if self.command.find_subcommand(text).is_some() => {
                    self.words.push(word.clone());
                    self.words.extend(rest.by_ref().cloned());
                    self.listen_address = ListenAddress::default();
                }
                // The program of `run` and `profile`, as after env(1) and strace(1).
                _ if self.command.get_positionals().last().is_some_and(Arg::is_last_set) => {
                    self.words.extend(["--".into(), word.clone()]);
                    self.words.extend(rest.by_ref().cloned());
                }
                _ => self.words.push(word.clone()),
            }
        }
        self.add_listen_address();
        self.add_replay_file();
    }

    /// `--name`, `--name=value` or `--name value`.
    fn translate_long_option<'w>(&mut self, text: &str, rest: &mut impl Iterator<Item = &'w OsString>) {
        let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
        let own = self.command.get_arguments().find(|own| own.get_long() == Some(&name[2..]));
        if let Some(foreign) = self.find_replaceable_option(name, own.is_some()) {
            let value = match value {
                _ if foreign.value.is_empty() => None,
                Some(value) => Some(value.into()),
                None => rest.next().cloned(),
            };
            return self.apply_foreign_option(foreign, name, value);
        }
        self.words.push(text.into());
        if own.is_some_and(takes_next_word_as_value) && value.is_none() {
            self.words.extend(rest.next().cloned());
        }
    }

    /// `-x`, `-xyz`, `-xVALUE`, `-x VALUE`: the same letter more than once is one option, as in `-nn`.
    fn translate_short_option<'w>(&mut self, text: &str, rest: &mut impl Iterator<Item = &'w OsString>) {
        let mut letters = &text[1..];
        while let Some(letter) = letters.chars().next() {
            let own = self.command.get_arguments().find(|own| own.get_short() == Some(letter));
            let run = letters.len() - letters.trim_start_matches(letter).len();
            let all = format!("-{}", &letters[..run]);
            let one = format!("-{letter}");
            let found = self.find_replaceable_option(&all, own.is_some()).map(|foreign| (foreign, &all, run));
            let found = found.or_else(|| {
                Some((self.find_replaceable_option(&one, own.is_some())?, &one, letter.len_utf8()))
            });
            let after = |used: usize| letters[used..].strip_prefix('=').unwrap_or(&letters[used..]);
            match (found, own) {
                (Some((foreign, typed, used)), _) if foreign.value.is_empty() => {
                    self.apply_foreign_option(foreign, typed, None);
                    letters = &letters[used..];
                }
                (Some((foreign, typed, used)), _) => {
                    let value = match after(used) {
                        "" => rest.next().cloned(),
                        value => Some(value.into()),
                    };
                    return self.apply_foreign_option(foreign, typed, value);
                }
                (None, Some(own)) if !own.get_action().takes_values() => {
                    // As a synonym of it would be written.
                    self.push_word_once(&own.get_long().map_or(one, |long| format!("--{long}")));
                    letters = &letters[run..];
                }
                (None, own) => {
                    self.words.push(format!("-{letters}").into());
                    if own.is_some_and(takes_next_word_as_value) && letters.len() == letter.len_utf8() {
                        self.words.extend(rest.next().cloned());
                    }
                    return;
                }
            }
        }
    }

    /// The synonym of that spelling. What we have ourselves is ours: only its values may be others'.
    fn find_replaceable_option(&self, typed: &str, is_own: bool) -> Option<&'static ForeignOption> {
        let found = find_foreign_option(self.command.get_name(), typed, self.target);
        found.filter(|foreign| match foreign.meaning {
            Meaning::Hint(_) => false,
            Meaning::Value(..) => true,
            _ => !is_own,
        })
    }

    /// A value may be a name of a file, which is bytes.
    fn apply_foreign_option(&mut self, foreign: &ForeignOption, typed: &str, value: Option<OsString>) {
        let Some(value) = value.or_else(|| foreign.value.is_empty().then(OsString::new)) else {
            // Its value is missing: clap says so of our option, or of none.
            let option = match foreign.meaning {
                Meaning::Option(option) => option,
                _ => typed,
            };
            self.hint.get_or_insert_with(|| format!("{typed} needs a value: {typed} {}", foreign.value));
            return self.words.push(option.into());
        };
        match foreign.meaning {
            Meaning::Option(option) => self.words.push([OsStr::new(option), &value].join(OsStr::new("="))),
            Meaning::Value(_, meaning) => match meaning(&value.to_string_lossy(), &self.text) {
                ValueMeaning::Word(word) => self.words.push(word.into()),
                ValueMeaning::Nothing => {}
                ValueMeaning::Hint(hint) => {
                    self.hint.get_or_insert_with(|| hint.into());
                    self.words.push(typed.into());
                }
            },
            Meaning::Word(word) => self.push_word_once(word),
            Meaning::Default(_) => self.listen_address.is_requested = true,
            Meaning::Target => self.targets.push(value),
            Meaning::Port => self.listen_address.port = Some(value.to_string_lossy().into_owned()),
            Meaning::Datagrams => self.listen_address.is_udp = true,
            Meaning::Hint(_) => {}
        }
    }

    fn push_word_once(&mut self, word: &str) {
        if !self.words.iter().any(|before| before == word) {
            self.words.push(word.into());
        }
    }

    /// The address to listen at, from `-u -p PORT`, `-l PORT` or `-l ADDRESS PORT`.
    fn add_listen_address(&mut self) {
        let ListenAddress { is_requested, is_udp, port } = std::mem::take(&mut self.listen_address);
        if !(is_requested || is_udp || port.is_some()) || !matches!(self.command.get_name(), "recv" | "serve")
        {
            return;
        }
        let is_plain =
            |word: &OsString| word.to_str().is_some_and(|word| !word.starts_with('-') && !word.contains(':'));
        let mut at = self.positional_word_indices();
        at.retain(|at| is_plain(&self.words[*at]));
        let mut plain: Vec<String> =
            at.iter().rev().map(|at| self.words.remove(*at).to_string_lossy().into_owned()).collect();
        let Some(port) = port.or_else(|| (!plain.is_empty()).then(|| plain.remove(0))) else { return };
        let place = format!("{}:{port}", plain.pop().unwrap_or_default());
        self.words.push(match (self.command.get_name(), is_udp) {
            ("serve", _) => place.into(),
            (_, true) => format!("--udp={place}").into(),
            (_, false) => format!("--tcp={place}").into(),
        });
    }

    /// tcpreplay's file follows its options, and the interface is one of these.
    fn add_replay_file(&mut self) {
        if self.command.get_name() != "send" || self.targets.is_empty() {
            return;
        }
        if let [file] = self.positional_word_indices()[..] {
            let mut option = OsString::from("--replay=");
            option.push(&self.words[file]);
            self.words[file] = option;
        }
    }

    /// Which words are neither options nor their values.
    fn positional_word_indices(&self) -> Vec<usize> {
        let mut found = Vec::new();
        let mut is_value = false;
        for (at, word) in self.words.iter().enumerate() {
            let text = word.to_str().unwrap_or_default();
            if !text.starts_with('-') && !is_value {
                found.push(at);
            }
            let own = self.command.get_arguments().find(|own| {
                own.get_long().is_some_and(|long| text.strip_prefix("--") == Some(long))
                    || own.get_short().is_some_and(|short| text == format!("-{short}"))
            });
            is_value = own.is_some_and(takes_next_word_as_value);
        }
        found
    }
}

/// Whether the next word is its value.
fn takes_next_word_as_value(option: &Arg) -> bool {
    option.get_action().takes_values() && !option.is_require_equals_set()
}

/// Adds advice to an error for what other programs call otherwise. `words` are those that were translated.
pub(super) fn add_foreign_option_hint(
    mut error: clap::Error,
    command: &Command,
    words: &[OsString],
    translation: &Translation,
) -> clap::Error {
    let text: Vec<&str> = words.iter().skip(2).filter_map(|word| word.to_str()).collect();
    let wrong = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(wrong)) => wrong.clone(),
        Some(ContextValue::Strings(all)) => all.join(" "),
        _ => return error,
    };
    let target = target_kind(command.get_name(), &text);
    let own = command.get_arguments().find(|own| own.to_string() == wrong);
    let own = own.into_iter().flat_map(|own| {
        [own.get_short().map(|short| format!("-{short}")), own.get_long().map(|long| format!("--{long}"))]
    });
    let advice = |typed: &str| match find_foreign_option(command.get_name(), typed, target)
        .map(|foreign| &foreign.meaning)
    {
        Some(Meaning::Hint(hint)) => Some((*hint).to_owned()),
        _ => None,
    };
    let spellings = own.flatten().chain([wrong.clone()]);
    let hint = match error.kind() {
        ErrorKind::UnknownArgument => {
            let advice = advice(&wrong).or_else(|| translation.hint.clone());
            advice.or_else(|| unknown_word_advice(command.get_name(), &wrong, &text))
        }
        ErrorKind::MissingRequiredArgument => missing_argument_advice(command.get_name(), &wrong, &text),
        ErrorKind::ArgumentConflict | ErrorKind::ValueValidation => {
            spellings.into_iter().find_map(|typed| advice(&typed))
        }
        ErrorKind::InvalidValue => translation.hint.clone(),
        _ => None,
    };
    if let Some(hint) = hint {
        error.remove(ContextKind::SuggestedArg);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![hint.into()]));
    }
    error
}

/// Advice for a word that is no option.
fn unknown_word_advice(command: &str, wrong: &str, words: &[&str]) -> Option<String> {
    let is_port = wrong.parse::<u16>().is_ok();
    match command {
        _ if wrong.starts_with('-') => None,
        "send" => match first_capture_file(words) {
            Some(file) => Some(format!("the packets of a file are sent with --replay {file}")),
            None => is_port.then(|| format!("a host is tcp://HOST:{wrong} or udp://HOST:{wrong}")),
        },
        "recv" if is_port => Some(format!("write tcp://:{wrong} or udp://:{wrong}")),
        "recv" if wrong.contains(':') => Some(format!("write tcp://{wrong} or udp://{wrong}")),
        "stats" if is_port => Some(format!("use --interval {wrong}")),
        _ => None,
    }
}

/// Advice for what is missing.
fn missing_argument_advice(command: &str, missing: &str, words: &[&str]) -> Option<String> {
    match command {
        "record" if missing.contains("--output") => {
            first_capture_file(words).map(|file| format!("use --output {file}"))
        }
        "sniff" | "record" if missing.contains("INTERFACE") => {
            Some("'nocopy doctor' lists the interfaces".into())
        }
        _ => None,
    }
}

/// The first word that names a capture file.
fn first_capture_file<'a>(words: &[&'a str]) -> Option<&'a str> {
    words.iter().find(|word| [".pcap", ".pcapng", ".cap"].iter().any(|end| word.ends_with(end))).copied()
}

/// Adds advice to the error for a command that is none of ours.
pub(super) fn add_foreign_program_advice(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(name)) = error.get(ContextKind::InvalidSubcommand) else { return error };
    let found = PROGRAMS.iter().find(|(names, _)| names.split(' ').any(|known| known == name));
    if let Some((_, advice)) = found {
        error.remove(ContextKind::SuggestedSubcommand);
        error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![(*advice).into()]));
    }
    error
}

#[cfg(test)]
mod tests;
