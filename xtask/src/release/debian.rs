//! Debian packages: the command linked with glibc, its libraries, man pages, completions, units, documents.
//! `[package.metadata.deb]` of `crates/nocopy-cli/Cargo.toml` lists the files.

use std::fs;
use std::path::{Path, PathBuf};

use super::roots::{self, CleanRoots};
use super::tarball::{PROFILE, copy};
use super::{Architecture, Release, release_path, tools};
use crate::gate::Outcome;
use crate::step::{CommandStep, Failed, write_file};

/// Of the packaging, not of what is packed.
const REVISION: &str = "1";

/// A version below all others, to upgrade from.
const LOWER_VERSION: &str = "0.0.1-1";

pub(super) fn package_path(release: &Release, architecture: Architecture) -> PathBuf {
    release_path(format!("nocopy_{}-{REVISION}_{}.deb", release.version, architecture.debian_name()))
}

/// Packs what [`tarball::build_all`](super::tarball::build_all) has built.
pub(super) fn build_all(release: &Release) -> Result<(), Failed> {
    write_changelog(release)?;
    for architecture in Architecture::ALL {
        let (target, output) = (architecture.glibc_target(), package_path(release, architecture));
        let output = output.display().to_string();
        let what = [
            "deb",
            "--quiet",
            "--no-build",
            "--no-strip",
            "--locked",
            "--profile",
            PROFILE,
            "--package",
            "nocopy-cli",
        ];
        let what =
            [&what[..], &["--target", &target, "--deb-revision", REVISION, "--output", &output]].concat();
        CommandStep::cargo(&format!("package for {}", architecture.debian_name()), &what)
            .with_variable("PATH", &tools::path_variable())
            .with_variable("SOURCE_DATE_EPOCH", &release.epoch)
            .run()?;
    }
    Ok(())
}

/// The changes in Debian's form; what changed for users is in CHANGELOG.md.
fn write_changelog(release: &Release) -> Result<(), Failed> {
    let time = format!("--date=@{}", release.epoch);
    let date = CommandStep::new("date", "date", &["--utc", "--rfc-email", &time])
        .with_variable("LC_ALL", "C")
        .captured_output()?;
    let text = format!(
        "nocopy ({}-{REVISION}) unstable; urgency=medium\n\n  * CHANGELOG.md of this version lists what changed.\n\n \
         -- The authors of nocopy <nocopy@users.noreply.github.com>  {}\n",
        release.version,
        date.trim()
    );
    write_file(&release_path("debian/changelog"), text)
}

/// Installed, used, upgraded and purged in roots of Debian; and judged by lintian.
pub(super) fn try_in_clean_roots(release: &Release, roots: &CleanRoots) -> Outcome {
    let packages = Architecture::ALL.map(|architecture| package_path(release, architecture));
    let outcome =
        packages.iter().map(|package| judge_package(package)).fold(Outcome::default(), Outcome::merged_with);
    let repository =
        Architecture::native().and_then(|native| make_repository(&package_path(release, native)));
    match repository {
        Ok(repository) => roots.debian.iter().fold(outcome, |outcome, debian| {
            outcome.merged_with(debian.with_files(&repository).run_script("package.sh"))
        }),
        Err(failed) => outcome.merged_with(failed.into()),
    }
}

/// Errors and warnings of lintian are failures; overrides have their reasons in `packaging/debian`. (Its exit
/// status counts overridden ones, too.)
fn judge_package(package: &Path) -> Outcome {
    let shown = package.display().to_string();
    let what = ["--allow-root", "--show-overrides", "--tag-display-limit", "0", &shown];
    let judged = CommandStep::new(&format!("lintian {shown}"), "lintian", &what).run_for_status();
    let is_refused = |text: &str| text.lines().any(|line| line.starts_with("E: ") || line.starts_with("W: "));
    match judged {
        Ok((Some(0 | 2), text)) if !is_refused(&text) => Outcome::passed(),
        Ok((_, text)) => Outcome::failed(format!("lintian {shown}"), text),
        Err(failed) => failed.into(),
    }
}

/// A repository of the package and the same one with a lower version.
fn make_repository(package: &Path) -> Result<PathBuf, Failed> {
    let (repository, lower) = (roots::empty_directory("repository")?, roots::empty_directory("lower")?);
    let name = package.file_name().expect("a package has a name");
    copy(package, &repository.join(name))?;
    let [shown, unpacked] = [package, &lower].map(|path| path.display().to_string());
    CommandStep::new("unpack the package", "dpkg-deb", &["--raw-extract", &shown, &unpacked]).run()?;
    let control = lower.join("DEBIAN/control");
    let text =
        fs::read_to_string(&control).map_err(|error| Failed(format!("{}: {error}", control.display())))?;
    let lines = text.lines().map(|line| match line.strip_prefix("Version: ") {
        Some(_) => format!("Version: {LOWER_VERSION}\n"),
        None => format!("{line}\n"),
    });
    write_file(&control, lines.collect::<String>())?;
    let lower_package = repository.join("nocopy-lower.deb").display().to_string();
    CommandStep::new(
        "pack a lower version",
        "dpkg-deb",
        &["--root-owner-group", "--build", &unpacked, &lower_package],
    )
    .run()?;
    let list = CommandStep::new("list of the repository", "dpkg-scanpackages", &["--multiversion", "."])
        .in_directory(&repository)
        .captured_output()?;
    write_file(&repository.join("Packages"), list)?;
    Ok(repository)
}
