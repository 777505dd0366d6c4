//! All files are made once more, from a clone in a directory whose path has another length: they are equal.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::{release_path, roots};
use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, repository_root};

const CLONE: &str = "made-once-more-in-a-directory-with-a-longer-path";

pub(super) fn build_twice() -> Outcome {
    let compared = || {
        let first = digests(&release_path(""))?;
        if first.is_empty() {
            return Err(Failed("no files were made; run 'cargo xtask release-files' first".to_owned()));
        }
        let clone = roots::empty_directory(CLONE)?;
        let shown = clone.display().to_string();
        CommandStep::new("clone", "git", &["clone", "--quiet", ".", &shown]).run()?;
        // The same tools, which are not built again.
        let (tools, link) = (repository_root().join("target/tools"), clone.join("target/tools"));
        let linked = fs::create_dir_all(clone.join("target")).and_then(|()| symlink(&tools, &link));
        linked.map_err(|error| Failed(format!("{}: {error}", link.display())))?;
        CommandStep::cargo("all files once more", &["xtask", "release-files"]).in_directory(&clone).run()?;
        let second = digests(&clone.join("target/release-files"))?;
        if first != second {
            return Err(Failed(format!("files that were made twice differ\n{first:#?}\n{second:#?}")));
        }
        // Some gigabytes, only useful after a failure.
        let _ = fs::remove_dir_all(&clone);
        Ok(Outcome::passed().with_remark(format!("{} files are equal; ", first.len())))
    };
    compared().unwrap_or_else(|failed: Failed| failed.into())
}

/// The SHA-256 of each archive, package and wheel of a directory, by its name.
fn digests(directory: &Path) -> Result<BTreeMap<String, String>, Failed> {
    let failed = |error| Failed(format!("{}: {error}", directory.display()));
    let mut digests = BTreeMap::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if [".tar.gz", ".deb", ".whl"].iter().any(|end| name.ends_with(end)) {
            let shown = path.display().to_string();
            let printed = CommandStep::new(&name, "sha256sum", &[&shown]).captured_output()?;
            digests.insert(name, printed.split(' ').next().unwrap_or_default().to_owned());
        }
    }
    Ok(digests)
}
