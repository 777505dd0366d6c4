//! Names in the documents: each file, item, option and command that a document names exists.
//!
//! A name is `code` between backticks, a command in a block, or a file in a drawing. It exists if the sources
//! have it anywhere outside of their comments. So it finds names that were changed or removed, and not those
//! that now belong to something else.
//!
//! Names in the sources: words and bare types that say nothing to a reader are refused, except those listed
//! in `refused_names.txt`. The list only shrinks.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::gate::Outcome;
use crate::imports::{read_source, rust_files_below};
use crate::step::{Failed, files_with_ending, repository_root};
use crate::width::DIRECTORIES;

const SOURCES: [&str; 3] = ["crates", "fuzz", "xtask"];

/// This file, whose lists and examples are no sources.
const THIS: &str = "xtask/src/names.rs";

/// What is made by builds and tests.
const NOT_IN_GIT: [&str; 4] = ["target/", "fuzz/target/", "fuzz/corpus/", "fuzz/artifacts/"];

/// The documents besides `docs/*.md`.
const DOCUMENTS: [&str; 10] = [
    "README.md",
    "ARCHITECTURE.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "KNOWN_ISSUES.md",
    "RELEASE.md",
    "crates/nocopy-profile/bpf/README.md",
    "crates/nocopy-python/README.md",
    "crates/nocopy-vm/README.md",
    "fuzz/README.md",
];

const LIBRARY: &str = "crates/nocopy/";

/// The public items of the library, which `cargo xtask check` compares with the library.
const PUBLIC: &str = "docs/api.txt";

/// Names of other projects that no source has: of the kernel and the C library, of programs and their
/// settings.
const FOREIGN: [&str; 29] = [
    // Settings and functions of the kernel.
    "SCHED_INFO",
    "lib/",
    "ndo_start_xmit",
    "no_new_privs",
    "tcp_mem",
    "unprivileged_bpf_disabled",
    // Constants and functions of the C library, which crates have by other names.
    "CAP_DAC_OVERRIDE",
    "CAP_KILL",
    "CAP_SYS_PTRACE",
    "CLOCK_REALTIME",
    "MNT_DETACH",
    "MNT_FORCE",
    "O_DIRECT",
    "POSIX_FADV_DONTNEED",
    "PR_SET_PDEATHSIG",
    "RESOLVE_BENEATH",
    "RESOLVE_CACHED",
    "RWF_NOWAIT",
    "TCP_ULP",
    "TLS_RX",
    "TLS_TX",
    "cap_ipc_lock",
    "posix_fadvise",
    "setcontext",
    // Programs and their settings.
    "Cx",
    "Px",
    "aa-status",
    "dumb",
    "if_fcslen",
];

pub(crate) fn check_documents() -> Outcome {
    let check_all = || {
        let sources = RepositoryNames::read()?;
        let mut missing = Vec::new();
        for path in document_files()? {
            let name = path.strip_prefix(repository_root()).unwrap_or(&path).display().to_string();
            let found = sources.missing_names(&read_source(&path)?);
            missing.extend(found.into_iter().map(|(line, what)| format!("{name}:{line}: {what}")));
        }
        match missing.is_empty() {
            true => Ok(()),
            false => Err(Failed(format!(
                "documents name what does not exist; write the present name, or add a name of another project to FOREIGN in {THIS}:\n{}",
                missing.join("\n")
            ))),
        }
    };
    check_all().into()
}

/// Words that no function has in its name, and names that no type has: of which kind or state it is belongs
/// to the name.
const REFUSED_WORDS: [&str; 6] = ["home", "lies", "nobody", "said", "told", "who"];
const REFUSED_TYPES: [&str; 5] = ["Kind", "Place", "State", "Step", "Way"];

/// The refused names that exist, each after its file.
const REFUSED: &str = include_str!("refused_names.txt");

/// The message layer, whose types are not checked.
const MESSAGE_LAYER: [&str; 3] =
    ["crates/nocopy-proto/src/message/", "crates/nocopy/src/message/", "crates/nocopy/tests/messages/"];

/// Compares the refused names that exist with the list of them.
pub(crate) fn check_refused_names() -> Outcome {
    let check_all = || {
        let mut found = BTreeSet::new();
        for path in DIRECTORIES.map(|directory| rust_files_below(&repository_root().join(directory))) {
            for path in path? {
                let name = path.strip_prefix(repository_root()).unwrap_or(&path).display().to_string();
                if name != THIS {
                    found.extend(refused_names_in(&name, &read_source(&path)?));
                }
            }
        }
        compare_refused(&found, REFUSED).map_err(Failed)
    };
    check_all().into()
}

/// The refused names of a file, as lines of the list.
fn refused_names_in(path: &str, text: &str) -> Vec<String> {
    let code = without_comments(text);
    let is_refused = |name: &str| name.split('_').any(|word| REFUSED_WORDS.contains(&word));
    let mut names: Vec<String> = names_declared_by(&code, &["fn "]).filter(|name| is_refused(name)).collect();
    if !MESSAGE_LAYER.iter().any(|directory| path.starts_with(directory)) {
        names.extend(types_declared_in(&code).filter(|name| REFUSED_TYPES.contains(&name.as_str())));
    }
    names.into_iter().map(|name| format!("{path}: {name}")).collect()
}

/// Errors: a name that is not in the list, or an entry of the list that no longer exists.
fn compare_refused(found: &BTreeSet<String>, list: &str) -> Result<(), String> {
    let listed: BTreeSet<String> =
        list.lines().filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect();
    let complaints = [
        ("these names say nothing to a reader; rename them", found - &listed),
        ("these names are gone; remove their lines from xtask/src/refused_names.txt", &listed - found),
    ];
    let complaints: Vec<String> = complaints
        .into_iter()
        .filter(|(_, names)| !names.is_empty())
        .map(|(complaint, names)| {
            format!("{complaint}:\n{}", names.into_iter().collect::<Vec<_>>().join("\n"))
        })
        .collect();
    if complaints.is_empty() { Ok(()) } else { Err(complaints.join("\n")) }
}

fn document_files() -> Result<Vec<PathBuf>, Failed> {
    let mut all = files_with_ending("docs", ".md")?;
    all.extend(DOCUMENTS.map(|name| repository_root().join(name)));
    Ok(all)
}

/// What the repository has.
#[derive(Debug, Default)]
struct RepositoryNames {
    /// Files and directories, from the root.
    paths: Vec<String>,
    /// Identifiers and words with hyphens.
    words: BTreeSet<String>,
    /// Options of commands, without the hyphens in front.
    options: BTreeSet<String>,
    commands: BTreeSet<String>,
    /// Each public type by its own name, with its parts and functions: several types may have one name.
    types: BTreeMap<String, BTreeSet<String>>,
    /// Types of other crates, of whose parts nothing is known.
    types_elsewhere: BTreeSet<String>,
}

impl RepositoryNames {
    fn read() -> Result<Self, Failed> {
        let mut sources = Self::default();
        sources.options.extend(["help", "version"].map(str::to_owned));
        sources.commands.insert("help".into());
        sources.add_directory(&repository_root(), "")?;
        sources.add_public_items(&read_source(&repository_root().join(PUBLIC))?);
        Ok(sources)
    }

    fn add_directory(&mut self, root: &Path, below: &str) -> Result<(), Failed> {
        let directory = root.join(below);
        let failed = |error| Failed(format!("{}: {error}", directory.display()));
        for entry in fs::read_dir(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let path = if below.is_empty() { name } else { format!("{below}/{name}") };
            if path == ".git" || NOT_IN_GIT.contains(&format!("{path}/").as_str()) {
                continue;
            }
            if entry.path().is_dir() {
                self.add_directory(root, &path)?;
            } else if is_source_file(&path) {
                self.add_source(&path, &read_source(&entry.path())?);
            }
            self.paths.push(path);
        }
        Ok(())
    }

    fn add_source(&mut self, path: &str, text: &str) {
        let code = without_comments(text);
        // Tests of the VM lab, for example, are named by their files.
        let name = path.rsplit('/').next().and_then(|name| name.split('.').next());
        self.words.extend(name.map(str::to_owned));
        if !path.starts_with(LIBRARY) {
            self.types_elsewhere.extend(types_declared_in(&code));
        }
        let identifiers = code.split(|c: char| !is_identifier_character(c));
        let hyphenated = code.split(|c: char| !is_identifier_character(c) && c != '-');
        let all = identifiers.chain(hyphenated).filter(|word| !word.is_empty());
        self.words.extend(all.map(str::to_owned));
        self.options.extend(clap_options_in(&code));
        self.commands.extend(clap_commands_in(&code));
    }

    /// Reads lines as `struct nocopy::tcp::Closed { is_complete }`, each followed by lines of its functions.
    fn add_public_items(&mut self, list: &str) {
        let mut of = String::new();
        for line in list.lines() {
            let words = || {
                line.split(|c: char| !is_identifier_character(c) && c != ':').filter(|word| !word.is_empty())
            };
            if line.starts_with(' ') {
                let function = words().find(|word| *word != "hidden");
                self.types.entry(of.clone()).or_default().extend(function.map(str::to_owned));
            } else if let Some(path) = words().nth(1) {
                of = path.rsplit(':').next().unwrap_or_default().to_owned();
                self.types.entry(of.clone()).or_default().extend(words().skip(2).map(str::to_owned));
            }
        }
    }

    /// The names of a document that do not exist, each with its line.
    fn missing_names(&self, document: &str) -> Vec<(usize, String)> {
        let named = code_spans(document).into_iter().flat_map(|(line, span)| {
            let names = if span.is_in_block { names_of_block_line(&span.text) } else { names_of(&span.text) };
            names.into_iter().map(move |name| (line, name))
        });
        named.filter_map(|(line, name)| Some((line, self.missing_name_message(&name)?))).collect()
    }

    /// Says what is missing, if the name does not exist.
    fn missing_name_message(&self, name: &DocumentedName) -> Option<String> {
        let (exists, what) = match name {
            DocumentedName::Path(path) => (self.has_path(path), format!("{path}: no file or directory")),
            DocumentedName::Option(option) => {
                (self.options.contains(option), format!("--{option}: no command has this option"))
            }
            DocumentedName::Command(command) => (
                self.commands.contains(command),
                format!("{command}: neither nocopy nor xtask has this command"),
            ),
            DocumentedName::Part { of, part } => {
                (self.has_type_part(of, part), format!("{of}::{part}: not in {PUBLIC}"))
            }
            DocumentedName::Word(word) => (self.has_word(word), format!("{word}: not in the sources")),
        };
        let is_foreign = matches!(name, DocumentedName::Path(text) | DocumentedName::Word(text) if FOREIGN.contains(&text.as_str()));
        (!exists && !is_foreign).then_some(what)
    }

    /// Whether the path, or the end of one, is that of a file or directory.
    fn has_path(&self, path: &str) -> bool {
        let wanted = path.trim_end_matches('/');
        let is_one = |path: &String| {
            path.strip_suffix(wanted).is_some_and(|front| front.is_empty() || front.ends_with('/'))
        };
        self.paths.iter().any(is_one)
    }

    /// Whether a public type of the library has this part or function, if only the library has a type of this
    /// name.
    fn has_type_part(&self, of: &str, part: &str) -> bool {
        self.types_elsewhere.contains(of) || self.types.get(of).is_none_or(|parts| parts.contains(part))
    }

    /// Whether it is a word of the sources, also as the identifier that it is made of there: `read-write` of
    /// `ReadWrite` or `read_write`.
    fn has_word(&self, word: &str) -> bool {
        let camel = || word.split('-').map(capitalised).collect::<String>();
        self.words.contains(word)
            || (word.contains('-')
                && (self.words.contains(&word.replace('-', "_")) || self.words.contains(&camel())))
    }
}

fn capitalised(word: &str) -> String {
    let mut characters = word.chars();
    characters.next().map_or(String::new(), |first| first.to_uppercase().chain(characters).collect())
}

fn is_source_file(path: &str) -> bool {
    const ENDS: [&str; 7] = [".rs", ".c", ".h", ".sh", ".py", ".toml", "exports.txt"];
    path != THIS
        && SOURCES.iter().any(|directory| path.starts_with(directory))
        && ENDS.iter().any(|end| path.ends_with(end))
}

fn is_identifier_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || character == '_'
}

/// Each line up to `//`, unless that is a part of an address, as in `udp://`.
fn without_comments(text: &str) -> String {
    let code = |line: &str| -> String {
        let comment = line.match_indices("//").find(|(at, _)| !line[..*at].ends_with(':'));
        line[..comment.map_or(line.len(), |(at, _)| at)].to_owned() + "\n"
    };
    text.lines().map(code).collect()
}

/// The long options that code declares for clap: `#[arg(long)] name`, or `#[arg(long = "name")]`.
fn clap_options_in(code: &str) -> Vec<String> {
    let attributes = code.split("#[arg(").skip(1);
    attributes
        .filter_map(|text| {
            let (settings, field) = text.split_once(")]")?;
            let at = settings.find("long")?;
            let behind = settings[at + "long".len()..].trim_start();
            match behind.strip_prefix('=') {
                Some(name) => name.split('"').nth(1).map(str::to_owned),
                None => {
                    let before = field.split(':').next()?;
                    Some(before.split_whitespace().last()?.replace('_', "-"))
                }
            }
        })
        .collect()
}

fn types_declared_in(code: &str) -> impl Iterator<Item = String> {
    names_declared_by(code, &["struct ", "enum ", "trait "])
}

/// The names that code declares with one of these keywords.
fn names_declared_by(code: &str, keywords: &[&str]) -> impl Iterator<Item = String> {
    let found = keywords.iter().flat_map(|keyword| code.match_indices(keyword));
    let declared = found.filter(|(at, _)| !code[..*at].ends_with(is_identifier_character));
    let names = declared
        .filter_map(|(at, keyword)| code[at + keyword.len()..].split(|c| !is_identifier_character(c)).next());
    names.map(str::to_owned)
}

/// The commands that code declares for clap: the variants of an enum with `Subcommand`.
fn clap_commands_in(code: &str) -> Vec<String> {
    let enums = code.split("#[derive(").skip(1).filter_map(|text| {
        let (derived, rest) = text.split_once(")]")?;
        let (head, body) = rest.split_once('{')?;
        let is_one = derived.contains("Subcommand") && head.contains("enum ");
        is_one.then(|| body.split("\n}").next().unwrap_or_default())
    });
    // A variant is indented once, its fields twice.
    let names = enums.flat_map(str::lines).filter_map(|line| line.strip_prefix("    "));
    let variants = names.filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase()));
    variants
        .map(|name| kebab_case(name.split(|c: char| !is_identifier_character(c)).next().unwrap_or_default()))
        .collect()
}

fn kebab_case(camel: &str) -> String {
    let mut kebab = String::new();
    for character in camel.chars() {
        if character.is_ascii_uppercase() && !kebab.is_empty() {
            kebab.push('-');
        }
        kebab.push(character.to_ascii_lowercase());
    }
    kebab
}

/// What a document claims to exist.
#[derive(Debug, Clone, PartialEq, Eq)]
enum DocumentedName {
    Path(String),
    /// Without hyphens in front.
    Option(String),
    Command(String),
    /// `Type::part`.
    Part {
        of: String,
        part: String,
    },
    /// An identifier, or a word with hyphens.
    Word(String),
}

/// Code of a document.
#[derive(Debug, PartialEq, Eq)]
struct CodeSpan {
    text: String,
    /// A line of a block between ```, or else text between backticks.
    is_in_block: bool,
}

/// All code of a document, each with its line.
fn code_spans(document: &str) -> Vec<(usize, CodeSpan)> {
    let (mut spans, mut is_in_block, mut paragraph) = (Vec::new(), false, (1, String::new()));
    for (line, text) in (1..).zip(document.lines()) {
        let is_fence = text.trim_start().starts_with("```");
        if is_fence || is_in_block || text.trim().is_empty() {
            spans.extend(code_spans_of_paragraph(&std::mem::take(&mut paragraph)));
        }
        match (is_fence, is_in_block) {
            (true, _) => is_in_block = !is_in_block,
            (false, true) => spans.push((line, CodeSpan { text: text.to_owned(), is_in_block })),
            (false, false) => {
                if paragraph.1.is_empty() {
                    paragraph.0 = line;
                }
                paragraph.1 += text;
                paragraph.1.push('\n');
            }
        }
    }
    spans.extend(code_spans_of_paragraph(&paragraph));
    spans
}

/// The text between backticks, which may go over the end of a line, but not of a paragraph.
fn code_spans_of_paragraph((first_line, text): &(usize, String)) -> Vec<(usize, CodeSpan)> {
    let (mut spans, mut line) = (Vec::new(), *first_line);
    for (part, text) in text.split('`').enumerate() {
        if part % 2 == 1 && !text.is_empty() {
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            spans.push((line, CodeSpan { text, is_in_block: false }));
        }
        line += text.matches('\n').count();
    }
    spans
}

/// The names in code between backticks.
fn names_of(code: &str) -> Vec<DocumentedName> {
    if let Some(names) = names_of_command(code) {
        return names;
    }
    match code_kind(code) {
        CodeKind::Own => vec![DocumentedName::Path(code.to_owned())],
        CodeKind::Other => Vec::new(),
        CodeKind::NoPath => names_of_item(code),
    }
}

/// The names in `item`, `a::b`, `a.b()`, `f(a, b)`, `A<T>`, `a[].b`; none if the code is something else.
fn names_of_item(code: &str) -> Vec<DocumentedName> {
    let without = |code: &str, open, close| match code.split_once(open) {
        Some((front, rest)) if rest.ends_with(close) => front.to_owned(),
        _ => code.to_owned(),
    };
    let chain = without(&without(code, '(', ")"), '<', ">");
    let words: Vec<&str> =
        chain.split("::").flat_map(|part| part.split('.')).map(|part| part.trim_end_matches("[]")).collect();
    if !words.iter().all(|word| is_name(word)) {
        return Vec::new();
    }
    let part = chain.rsplit_once("::").map(|(front, part)| DocumentedName::Part {
        of: front.rsplit(':').next().unwrap_or_default().to_owned(),
        part: part.to_owned(),
    });
    words.into_iter().map(|word| DocumentedName::Word(word.to_owned())).chain(part).collect()
}

/// Whether a word is an identifier, or several with hyphens; not a template, as `rx_COUNTER_total`.
fn is_name(word: &str) -> bool {
    let is_letter = |c: char| c.is_ascii_alphabetic() || c == '_';
    let has_capitals = |part: &str| part.len() > 1 && part.chars().all(|c| c.is_ascii_uppercase());
    let is_template = word.split('_').any(has_capitals) && word.contains(|c: char| c.is_ascii_lowercase());
    word.starts_with(is_letter)
        && word.chars().all(|c| is_identifier_character(c) || c == '-')
        && !word.ends_with('-')
        && !is_template
}

#[derive(Debug, PartialEq, Eq)]
enum CodeKind {
    /// A path of this repository.
    Own,
    /// Of the machine, of a program's output, or something else with a slash.
    Other,
    NoPath,
}

fn code_kind(code: &str) -> CodeKind {
    let ends_with = |ends: &[&str]| ends.iter().any(|end| code.ends_with(end));
    let is_source = ends_with(&[".rs", ".md"]);
    if !code.contains('/') && !is_source {
        return if ends_with(&[".pcapng", ".json", ".jsonl", ".html"]) {
            CodeKind::Other
        } else {
            CodeKind::NoPath
        };
    }
    let is_own = code.starts_with(|c: char| c.is_ascii_lowercase()) || is_source;
    let is_elsewhere = NOT_IN_GIT.iter().chain(&["/", ".", "nocopy."]).any(|start| code.starts_with(start));
    let is_path =
        code.chars().all(|c| is_identifier_character(c) || "./-".contains(c)) && !code.contains("NAME");
    if is_own && is_path && !is_elsewhere { CodeKind::Own } else { CodeKind::Other }
}

/// The names in a line of a block: of a command, or the sources of a drawing.
fn names_of_block_line(line: &str) -> Vec<DocumentedName> {
    let command = line.split(" #").next().unwrap_or_default().trim();
    names_of_command(command).unwrap_or_else(|| {
        let words = line.split(|c: char| c.is_whitespace() || "(),:".contains(c));
        let files = words.filter(|word| word.ends_with(".rs") && code_kind(word) == CodeKind::Own);
        files.map(|word| DocumentedName::Path(word.to_owned())).collect()
    })
}

/// How commands of this project are written.
const COMMANDS: [&str; 3] = ["nocopy ", "cargo xtask ", "cargo run --release -- "];

/// The names in a command of this project, or in options alone; `None`: it is neither.
fn names_of_command(code: &str) -> Option<Vec<DocumentedName>> {
    let code = code.strip_prefix("sudo ").unwrap_or(code);
    let own = COMMANDS.iter().find_map(|start| code.strip_prefix(start));
    let words = own.or_else(|| code.starts_with("--").then_some(code))?;
    // What another program gets, or does with the output.
    let words = words.split(" -- ").next()?.split(['|', '>', ';', '&']).next()?;
    let (mut names, mut is_value) = (Vec::new(), false);
    for (place, word) in words.split_whitespace().enumerate() {
        let bare = word.trim_matches(['[', ']']);
        let is_word = bare.chars().all(|c| c.is_ascii_lowercase() || c == '-') && !bare.starts_with('-');
        if let Some(option) = bare.strip_prefix("--") {
            let name = option.split(|c: char| !c.is_ascii_lowercase() && c != '-').next();
            names.extend(name.map(|name| DocumentedName::Option(name.to_owned())));
        } else if own.is_some() && is_word && !is_value {
            let word = bare.to_owned();
            names.push(if place == 0 { DocumentedName::Command(word) } else { DocumentedName::Word(word) });
        }
        is_value = bare.starts_with('-');
    }
    Some(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: &str = r#"
/// nocopy never_existed
pub(crate) enum SendMode { ReadWrite } // gone
fn receive_timeout() { open("udp://host", "uring-zerocopy"); }
#[derive(Debug, Args)]
struct SendArguments {
    #[arg(long, value_name = "TIME")]
    pub max_gap: Option<Duration>,
    #[arg(short = 'o', long = "output")]
    file: PathBuf,
    #[arg(value_name = "TARGET")]
    target: String,
}
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(hide = true)]
    BenchChild {
        Task: String,
    },
    Send(SendArguments),
}
"#;

    const API: &str = "9 types\n\nstruct nocopy::message::Endpoint { kind }\n    post(self, buffer)\n    (hidden) look(self)\n\nenum nocopy::SendMode\n";

    fn example_names() -> RepositoryNames {
        let mut sources = RepositoryNames::default();
        sources.paths.extend(
            ["crates/nocopy/src/udp/sender.rs", "crates/nocopy/src/udp", "README.md"].map(str::to_owned),
        );
        sources.add_source("crates/other/src/stem.rs", CODE);
        sources.add_public_items(API);
        sources
    }

    fn missing_names_in(document: &str) -> Vec<String> {
        example_names()
            .missing_names(document)
            .into_iter()
            .map(|(line, what)| format!("{line}: {what}"))
            .collect()
    }

    #[test]
    fn names_that_exist_are_found() {
        for code in [
            "udp/sender.rs",
            "crates/nocopy/src/udp",
            "udp/",
            "sender.rs",
            "README.md",
            "SendMode",
            "SendMode::ReadWrite",
            "receive_timeout()",
            "receive_timeout(Duration)",
            "SendArguments<T>",
            "read-write",
            "uring-zerocopy",
            "stem",
            "--max-gap TIME",
            "--output=FILE",
            "nocopy send",
            "nocopy bench-child",
            "sudo nocopy send --max-gap 1s udp://x",
        ] {
            assert_eq!(missing_names_in(&format!("A `{code}`.")), [""; 0]);
        }
    }

    #[test]
    fn names_that_do_not_exist_are_found_with_their_lines() {
        for (code, what) in [
            ("udp/gone.rs", "udp/gone.rs: no file or directory"),
            ("p/sender.rs", "p/sender.rs: no file or directory"),
            ("SendMode::never_existed", "never_existed: not in the sources"),
            ("gone", "gone: not in the sources"),
            ("--target", "--target: no command has this option"),
            ("nocopy read-write", "read-write: neither nocopy nor xtask has this command"),
            ("nocopy send --file x", "--file: no command has this option"),
        ] {
            assert_eq!(
                missing_names_in(&format!("# A title\n\ntext `SendMode`\nand `{code}`")),
                [format!("4: {what}")]
            );
        }
    }

    #[test]
    fn parts_of_public_types_are_those_of_the_list() {
        assert_eq!(
            missing_names_in("`SendMode` `Endpoint::send`"),
            [
                "1: Endpoint: not in the sources",
                "1: send: not in the sources",
                "1: Endpoint::send: not in docs/api.txt"
            ]
        );
        let of_a_type = names_of("message::Endpoint::post(buffer)");
        assert!(
            of_a_type.contains(&DocumentedName::Part { of: "Endpoint".into(), part: "post".into() }),
            "{of_a_type:?}"
        );
        let sources = example_names();
        assert!(["post", "look", "kind"].iter().all(|part| sources.has_type_part("Endpoint", part)));
        // Another crate has a type of that name, too.
        assert!(!sources.has_type_part("Endpoint", "self") && sources.has_type_part("SendMode", "anything"));
    }

    #[test]
    fn blocks_have_commands_and_drawings() {
        let block = "```\nnocopy send --gone x # --never\ncard ──▶ udp/gone.rs  kernel, udp/sender.rs\nother --option\n```\n`never_existed`";
        assert_eq!(
            missing_names_in(block),
            [
                "2: --gone: no command has this option",
                "3: udp/gone.rs: no file or directory",
                "6: never_existed: not in the sources",
            ]
        );
    }

    #[test]
    fn foreign_code_is_ignored() {
        for code in [
            "/etc/gone",
            "~/gone",
            "target/gone/",
            "tests/NAME.rs",
            "B/A",
            "nocopy.gone/2",
            "a-file.json",
            "udp://HOST",
            "subject: what",
            "tcpdump --gone",
            "rx_COUNTER_total",
            "tx_…",
            "message-*",
            "100 us",
            "nocopy send -- program --gone",
            "nocopy send X | program --gone",
            "O_DIRECT",
            "lib/",
            "--output [--max-gap=TIME]",
        ] {
            assert_eq!(missing_names_in(&format!("`{code}`")), [""; 0]);
        }
    }

    #[test]
    fn code_may_go_over_the_end_of_a_line() {
        assert_eq!(
            missing_names_in("The `nocopy\nsend --gone` and `SendMode`.\n\nAn odd ` mark.\n\n`gone`"),
            ["1: --gone: no command has this option", "6: gone: not in the sources",]
        );
    }

    #[test]
    fn refused_names_are_found_in_functions_and_types() {
        let code = "enum Way {} // fn told() {}\nstruct Ways;\nfn who_lies<T>() {}\nfn whole() {}\nlet confn = fn_told;\n";
        assert_eq!(
            refused_names_in("crates/a/src/b.rs", code),
            ["crates/a/src/b.rs: who_lies", "crates/a/src/b.rs: Way"]
        );
        let path = "crates/nocopy/src/message/b.rs";
        assert_eq!(refused_names_in(path, code), [format!("{path}: who_lies")]);
    }

    #[test]
    fn new_and_outdated_refused_names_fail() {
        let found = BTreeSet::from(["a.rs: told".to_owned(), "b.rs: Way".to_owned()]);
        assert_eq!(compare_refused(&found, "# A title\n\na.rs: told\nb.rs: Way\n"), Ok(()));
        let error = compare_refused(&found, "a.rs: told\nc.rs: Kind\n").unwrap_err();
        assert!(
            error.contains("rename them:\nb.rs: Way") && error.ends_with("names.txt:\nc.rs: Kind"),
            "{error}"
        );
    }
}
