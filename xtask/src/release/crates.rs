//! The published crates: what crates.io shows of each, that a packed one is whole, and that the command
//! installed from the packed files works.
//!
//! ```text
//!   workspace ─▶ cargo package: each is packed, and built from its packed file
//!                      │ *.crate, and all other crates (cargo vendor)
//!                      ▼
//!             a registry in a directory ─▶ cargo install nocopy-cli ─▶ its output
//! ```

use std::env;
use std::fs;
use std::path::{Component, Path, PathBuf};

use super::files::{release_path, work_directory};
use crate::gate::Outcome;
use crate::imports::read_source;
use crate::step::{CommandStep, Failed, is_run_as_root, repository_root, write_file};
use crate::workspace::{Crate, Workspace};

const COMMAND: &str = "nocopy-cli";

/// The published crates whose API is promised, and the command. All others are parts of it, and say so first.
const NOT_PARTS: [&str; 3] = ["nocopy", "nocopy-proto", COMMAND];
const PART_IN_DESCRIPTION: &str = "Part of the nocopy command, without a promised API: ";
const PART_IN_DOCUMENTATION: &str = "//! Part of the `nocopy` command, without a promised API: ";

/// What comes before the path of another file in a source, up to its quotation mark.
const REFERENCES: [&str; 5] =
    ["#[path = \"", "include!(\"", "include_bytes!(\"", "include_bytes_aligned!(\"", "include_str!(\""];

/// Where the libraries of `nocopy run` are on a machine where it is installed by other means.
const INSTALLED: [&str; 3] = ["/usr/local/lib/nocopy", "/usr/lib/nocopy", "/usr/lib64/nocopy"];

/// Whether each published crate has what crates.io shows, and its packed sources refer to no file outside of
/// its directory.
pub(crate) fn check_crates() -> Outcome {
    let checked = || {
        let workspace = Workspace::read()?;
        let mut wrong = Vec::new();
        let mut count = 0;
        for member in workspace.published_crates() {
            count += 1;
            let missing = missing_fields(member);
            wrong.extend(missing.map(|field| format!("{}: Cargo.toml: {field}", member.name)));
            wrong.extend(references_to_outside(member)?);
        }
        if wrong.is_empty() {
            return Ok(Outcome { passed: count, ..Outcome::default() });
        }
        Err(Failed(format!(
            "published crates: they are not whole; crates.io has the files of each crate's directory alone, without \
             those that it excludes; move the files into the crate, or tests of documents into its 'tests'\n{}",
            wrong.join("\n")
        )))
    };
    checked().unwrap_or_else(|failed: Failed| failed.into())
}

/// What crates.io refuses to be without, or does not show.
fn missing_fields(member: &Crate) -> impl Iterator<Item = &'static str> {
    let shown = &member.shown;
    let description = shown.description.as_deref().unwrap_or_default();
    let is_part = !NOT_PARTS.contains(&member.name.as_str());
    let fields = [
        (!description.is_empty(), "no description"),
        (!is_part || description.starts_with(PART_IN_DESCRIPTION), "its description promises an API"),
        (!is_part || is_documented_as_part(member), "its documentation promises an API"),
        (shown.repository.is_some(), "no repository"),
        (shown.readme.is_some(), "no readme"),
        ((1..=5).contains(&shown.keywords.len()), "not one to five keywords"),
        (!shown.categories.is_empty(), "no categories"),
        (member.directory().join("LICENSE-MIT").is_file(), "no LICENSE-MIT beside it"),
        (member.directory().join("LICENSE-APACHE").is_file(), "no LICENSE-APACHE beside it"),
    ];
    fields.into_iter().filter(|(is_there, _)| !is_there).map(|(_, field)| field)
}

fn is_documented_as_part(member: &Crate) -> bool {
    let text = fs::read_to_string(member.directory().join("src/lib.rs"));
    text.is_ok_and(|text| text.starts_with(PART_IN_DOCUMENTATION))
}

fn references_to_outside(member: &Crate) -> Result<Vec<String>, Failed> {
    let mut outside = Vec::new();
    let list = ["package", "--list", "--allow-dirty", "--offline", "--package", &member.name];
    let files = CommandStep::cargo(&format!("files of {}", member.name), &list).captured_output()?;
    for file in files.lines().filter(|file| file.ends_with(".rs")) {
        let text = read_source(&member.directory().join(file))?;
        outside.extend(
            outside_paths(Path::new(file), &text)
                .map(|path| format!("{}: {file} refers to {path}", member.name)),
        );
    }
    Ok(outside)
}

/// The paths in a source that leave the directory of its crate. `file` is its own path in there.
fn outside_paths<'a>(file: &'a Path, text: &'a str) -> impl Iterator<Item = &'a str> {
    let directory = file.parent().unwrap_or(Path::new(""));
    let named = REFERENCES.iter().flat_map(|start| text.split(start).skip(1));
    let relative = named.filter_map(|rest| rest.split('"').next());
    let relative = relative.filter(move |path| leaves_root(&directory.join(path)));
    // Paths that a test opens begin at the directory of the crate.
    let lines = text.lines().filter(|line| line.contains("CARGO_MANIFEST_DIR"));
    let joined = lines.flat_map(|line| line.split('"').skip(1).step_by(2));
    relative.chain(joined.filter(|path| leaves_root(Path::new(path.trim_start_matches('/')))))
}

/// Whether a relative path goes above where it begins.
fn leaves_root(path: &Path) -> bool {
    let mut depth = 0;
    path.components().any(|component| {
        depth += match component {
            Component::ParentDir => -1,
            Component::CurDir => 0,
            _ => 1,
        };
        depth < 0
    })
}

/// Packs all published crates, builds each from its packed file, installs the command from these, and reads
/// its output.
pub(super) fn pack_and_install(version: &str) -> Outcome {
    let installed = || {
        let workspace = Workspace::read()?;
        let archives = pack_all(&workspace, version)?;
        let registry = DirectoryRegistry::write(&work_directory(version).join("registry"), &archives)?;
        registry.install_command(version)
    };
    installed().map_or_else(Failed::into, |command| try_command(&command, version))
}

/// The packed crates, each built from its file.
fn pack_all(workspace: &Workspace, version: &str) -> Result<Vec<PathBuf>, Failed> {
    let names: Vec<&str> = workspace.published_crates().map(|member| member.name.as_str()).collect();
    let packages: Vec<&str> = names.iter().flat_map(|name| ["--package", *name]).collect();
    CommandStep::cargo("pack and build", &[&["package", "--locked"], &packages[..]].concat()).run()?;
    let target = env::var_os("CARGO_TARGET_DIR").map_or_else(|| repository_root().join("target"), Into::into);
    let archive = |name: &&str| {
        let file = format!("{name}-{version}.crate");
        let (packed, released) = (target.join("package").join(&file), release_path(&file));
        let bytes = fs::read(&packed).map_err(|error| Failed(format!("{}: {error}", packed.display())))?;
        write_file(&released, bytes)?;
        Ok(released)
    };
    names.iter().map(archive).collect()
}

/// A directory with the sources of all crates that the workspace is built from, which cargo takes for
/// crates.io; ours are from their packed files.
struct DirectoryRegistry {
    directory: PathBuf,
}

impl DirectoryRegistry {
    fn write(directory: &Path, archives: &[PathBuf]) -> Result<Self, Failed> {
        let shown = directory.display().to_string();
        let vendor = ["vendor", "--quiet", "--locked", "--versioned-dirs", &shown];
        CommandStep::cargo("sources of all crates", &vendor).captured_output()?;
        for archive in archives {
            let path = archive.display().to_string();
            let unpack = ["--extract", "--gzip", "--file", &path, "--directory", &shown];
            CommandStep::new(&format!("unpack {path}"), "tar", &unpack).run()?;
            let sum = CommandStep::new("checksum", "sha256sum", &[&path]).captured_output()?;
            let sum = sum.split(' ').next().unwrap_or_default();
            let name = archive.file_stem().expect("a file");
            let content = format!("{{\"files\":{{}},\"package\":\"{sum}\"}}");
            write_file(&directory.join(name).join(".cargo-checksum.json"), content)?;
        }
        Ok(Self { directory: directory.to_owned() })
    }

    /// What a user gets by `cargo install nocopy-cli`.
    fn install_command(&self, version: &str) -> Result<PathBuf, Failed> {
        let installed = self.directory.with_file_name("installed");
        let [root, target] = [&installed, &self.directory.with_file_name("install-target")]
            .map(|path| path.display().to_string());
        let source = format!("source.packed.directory='{}'", self.directory.display());
        let settings = ["--config", "source.crates-io.replace-with='packed'", "--config", &source];
        let what = ["install", COMMAND, "--version", version, "--locked", "--offline", "--force"];
        let where_to = ["--root", &root, "--target-dir", &target];
        // Outside of the repository, whose settings a user has not.
        CommandStep::cargo("install the command", &[&what[..], &where_to, &settings].concat())
            .in_directory(Path::new("/"))
            .run()?;
        Ok(installed.join("bin/nocopy"))
    }
}

/// The version, a short bench, and how `nocopy run` asks for its libraries, which cargo does not install.
fn try_command(command: &Path, version: &str) -> Outcome {
    let printed = output_of(command, &["--version"], 0, &[&format!("nocopy {version}")]);
    let bench = || {
        if !is_run_as_root() {
            return Outcome::unavailable("bench of the installed command", "root, for a private network");
        }
        let words = ["bench", "packet-send", "--quick", "--rounds", "1"];
        output_of(command, &words, 0, &["packet-send", "AF_XDP"])
    };
    let run = || {
        if let Some(place) = INSTALLED.iter().find(|place| Path::new(place).exists()) {
            let needs = format!("a machine without the libraries of 'nocopy run', which are in {place}");
            return Outcome::unavailable("what 'nocopy run' says without them", needs);
        }
        let expected = ["libnocopy_pcap.so: not found", "install the release's package nocopy (.deb)"];
        output_of(command, &["run", "--", "true"], 125, &expected)
    };
    printed.merged_with(bench()).merged_with(run())
}

/// Whether a call ends with this exit code, and prints all these words.
fn output_of(command: &Path, arguments: &[&str], expected: i32, words: &[&str]) -> Outcome {
    let name = format!("nocopy {}", arguments.join(" "));
    let path = command.display().to_string();
    let ran = CommandStep::new(&name, &path, arguments).run_for_status();
    match ran {
        Ok((Some(code), text)) if code == expected && words.iter().all(|word| text.contains(word)) => {
            Outcome::passed()
        }
        Ok((code, text)) => Outcome::failed(
            format!("installed from the packed crates: {name}"),
            format!(
                "'{path} {}': ended with {code:?} instead of {expected}, or lacks one of {words:?}\n{text}",
                arguments.join(" ")
            ),
        ),
        Err(failed) => failed.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_leave_the_crate_are_found() {
        let text = "#[path = \"../../tests/common/calls.rs\"]\n#[path = \"../../../other/src/a.rs\"]\n\
                    let a = include_str!(\"b.txt\"); include_bytes!(\"../../../docs/a.md\")\n\
                    Path::new(env!(\"CARGO_MANIFEST_DIR\")).join(\"tests/programs\")\n\
                    Path::new(env!(\"CARGO_MANIFEST_DIR\")).join(\"../..\")\n\
                    concat!(env!(\"CARGO_MANIFEST_DIR\"), \"/../docs/api.txt\")\n";
        let found: Vec<&str> = outside_paths(Path::new("src/engine/mod.rs"), text).collect();
        let expected = ["../../../other/src/a.rs", "../../../docs/a.md", "../..", "/../docs/api.txt"];
        assert_eq!(found, expected);
    }

    #[test]
    fn the_workspace_publishes_two_libraries_the_command_and_its_parts() {
        let workspace = Workspace::read().unwrap();
        let names: Vec<&str> = workspace.published_crates().map(|member| member.name.as_str()).collect();
        assert!(NOT_PARTS.iter().all(|name| names.contains(name)), "{names:?}");
        // They could not be installed by cargo, or are for this repository only.
        for name in ["nocopy-pcap", "nocopy-python", "nocopy-sockets", "nocopy-vm", "xtask"] {
            assert!(!names.contains(&name), "{names:?}");
        }
    }
}
