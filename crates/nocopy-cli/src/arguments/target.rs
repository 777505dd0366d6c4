//! The target of `send` and `recv`: for clap, `udp://…` and `tcp://…` are options, so that it checks which
//! other options go with them.

use std::ffi::{OsStr, OsString};

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command};

/// `udp://HOST:PORT` as `--udp=HOST:PORT`, for a command that has this option.
pub(super) fn target_url_as_option(word: &OsStr, command: &Command) -> OsString {
    let parts = word.to_str().and_then(|text| text.split_once("://"));
    match parts {
        Some((scheme @ ("udp" | "tcp"), place))
            if command.get_arguments().any(|option| option.get_long() == Some(scheme)) =>
        {
            format!("--{scheme}={}", nocopy_report::address::host_port_of_url(place)).into()
        }
        _ => word.into(),
    }
}

const TARGETS: [&str; 3] = ["target", "udp", "tcp"];

/// Adds advice for an option that does not work with the target.
pub(super) fn add_target_tip(mut error: clap::Error, command: &Command, words: &[OsString]) -> clap::Error {
    let named = [ContextKind::InvalidArg, ContextKind::PriorArg]
        .map(|kind| argument_names_in_context(error.get(kind)))
        .concat();
    let is_named = |argument: &&Arg| {
        let name = argument.to_string();
        named.contains(&format!("<{name}>")) || named.contains(&name)
    };
    let named_arguments = command.get_arguments().filter(is_named);
    let (targets, options): (Vec<&Arg>, Vec<&Arg>) =
        named_arguments.partition(|argument| TARGETS.contains(&argument.get_id().as_str()));
    let Some(target) = targets.first() else { return error };
    let tip = match error.kind() {
        ErrorKind::ArgumentConflict => {
            // Clap names all options that the target excludes, or this option first.
            let Some(option) = options.iter().find(|option| is_option_typed(option, words)) else {
                return error;
            };
            error.insert(ContextKind::InvalidArg, ContextValue::String(option.to_string()));
            error.insert(ContextKind::PriorArg, ContextValue::String(target.to_string()));
            let heading = option.get_help_heading().unwrap_or("another target").to_lowercase();
            format!("leave it out: it is for {heading}")
        }
        // Only values of --method require one kind of host.
        ErrorKind::MissingRequiredArgument if !target.is_positional() => {
            "leave out '--method', or give one that works with the target: see '--help'".into()
        }
        _ => return error,
    };
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

fn argument_names_in_context(value: Option<&ContextValue>) -> Vec<String> {
    match value {
        Some(ContextValue::String(name)) => vec![name.clone()],
        Some(ContextValue::Strings(names)) => names.clone(),
        _ => Vec::new(),
    }
}

fn is_option_typed(option: &Arg, words: &[OsString]) -> bool {
    let long = option.get_long().map(|long| format!("--{long}"));
    let short = option.get_short().map(|short| format!("-{short}"));
    words.iter().filter_map(|word| word.to_str()).any(|word| {
        long.as_deref() == Some(word.split_once('=').map_or(word, |(name, _)| name))
            || short.as_deref().is_some_and(|short| word.starts_with(short))
    })
}
