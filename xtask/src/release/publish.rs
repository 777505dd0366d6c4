//! `cargo xtask publish`: uploads the crates that crates.io does not have. RELEASE.md says when.

use std::fs;
use std::path::Path;

use clap::Args;

use crate::git::Git;
use crate::imports::read_source;
use crate::step::{CommandStep, Failed, repository_root};
use crate::workspace::{Crate, Workspace};

#[derive(Debug, Args)]
pub(crate) struct PublishArguments {
    /// Upload nothing: only build each from its packed file, and check what would be uploaded.
    #[arg(long)]
    dry_run: bool,
}

/// Stands in the repository's address for an account.
const NO_OWNER: &str = "/OWNER/";

/// The sources of this program: they have that word to look for it, and are not published.
const OWN_SOURCES: &str = "xtask/";

const README: &str = "README.md";

/// Uploads each crate after those that it depends on. Those that are there in this version are left out, so a
/// call that stopped in the middle can be repeated. Errors: an address has no owner.
pub(crate) fn run_command(PublishArguments { dry_run }: &PublishArguments) -> Result<(), Failed> {
    if !dry_run {
        check_addresses()?;
    }
    let workspace = Workspace::read()?;
    let (there, missing): (Vec<&Crate>, _) =
        workspace.published_crates().partition(|each| is_published(each));
    let names = |crates: &[&Crate]| crates.iter().map(|each| each.name.clone()).collect::<Vec<_>>();
    let (there, missing): (Vec<String>, Vec<String>) = (names(&there), names(&missing));
    println!("crates.io has {}, and lacks {}", list_or_none(&there), list_or_none(&missing));
    if missing.is_empty() {
        return Ok(());
    }
    CommandStep::cargo("publish", &cargo_arguments(&there, *dry_run)).run()
}

fn list_or_none(names: &[String]) -> String {
    if names.is_empty() { "none".into() } else { names.join(", ") }
}

/// cargo refuses to begin if a crate is there that it is to upload.
fn cargo_arguments(there: &[String], dry_run: bool) -> Vec<&str> {
    let excluded = there.iter().flat_map(|name| ["--exclude", name.as_str()]);
    let dry_run = dry_run.then_some("--dry-run");
    ["publish", "--workspace", "--locked"].into_iter().chain(dry_run).chain(excluded).collect()
}

/// Whether crates.io has this version. If it cannot be asked, uploading fails, too.
fn is_published(member: &Crate) -> bool {
    let version = format!("{}@{}", member.name, member.version);
    let ask = ["info", "--quiet", "--registry", "crates-io", &version];
    CommandStep::cargo(&version, &ask).succeeds_quietly()
}

/// Whether all addresses in this repository have an owner, and README names the image of the repository.
pub(super) fn check_addresses() -> Result<(), Failed> {
    let root = repository_root();
    let mut wrong = files_without_owner(&root)?;
    let workspace = Workspace::read()?;
    let repository = workspace.published_crates().find_map(|each| each.shown.repository.as_deref());
    let image = image_name(repository.unwrap_or_default());
    if !read_source(&root.join(README))?.contains(&image) {
        wrong.push(format!("{README}: does not name the image {image}"));
    }
    if wrong.is_empty() {
        return Ok(());
    }
    Err(Failed(format!(
        "addresses: the account is not named everywhere; RELEASE.md has the command\n{}",
        wrong.join("\n")
    )))
}

fn files_without_owner(repository: &Path) -> Result<Vec<String>, Failed> {
    let mut found = Vec::new();
    let tracked = Git::at(repository).command_output(&["ls-files", "-z"])?;
    for path in tracked.split('\0').filter(|path| !path.is_empty() && !path.starts_with(OWN_SOURCES)) {
        let bytes = fs::read(repository.join(path)).map_err(|error| Failed(format!("{path}: {error}")))?;
        if String::from_utf8_lossy(&bytes).contains(NO_OWNER) {
            found.push(format!("{path}: has '{NO_OWNER}'"));
        }
    }
    Ok(found)
}

/// The image that the release workflow pushes, whose name has no capital letters.
fn image_name(repository: &str) -> String {
    let path = repository.trim_start_matches("https://github.com/").to_lowercase();
    format!("ghcr.io/{path} ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::git::tests::TemporaryRepository;

    #[test]
    fn published_crates_are_excluded() {
        let there = ["nocopy-proto", "nocopy"].map(str::to_owned);
        assert_eq!(
            cargo_arguments(&there, false).join(" "),
            "publish --workspace --locked --exclude nocopy-proto --exclude nocopy"
        );
        assert_eq!(cargo_arguments(&[], true).join(" "), "publish --workspace --locked --dry-run");
    }

    #[test]
    fn the_image_is_named_after_the_repository() {
        assert_eq!(image_name("https://github.com/Some-One/nocopy"), "ghcr.io/some-one/nocopy ");
    }

    #[test]
    fn every_tracked_file_without_an_owner_is_named() {
        let Some(repository) = TemporaryRepository::new_or_skip() else { return };
        repository.write("docs/a.md", "ghcr.io/OWNER/nocopy\n");
        repository.write("docs/b.md", "an OWNER, and ghcr.io/someone/nocopy\n");
        repository.write("xtask/src/c.rs", "/OWNER/\n");
        repository.commit_change("README.md");
        repository.write("untracked", "/OWNER/\n");
        assert_eq!(files_without_owner(repository.path()).unwrap(), ["docs/a.md: has '/OWNER/'"]);
    }
}
