//! What users install, as files in `target/release-files`: archives with a static binary, Debian packages,
//! an image's root, wheels of the Python module. The nightly suite `release` tries each in clean roots;
//! `wheel` the wheels.

mod command;
pub(crate) mod crates;
mod debian;
mod files;
mod image;
#[cfg(test)]
mod old_recordings;
mod publish;
mod reproducible;
mod roots;
mod tarball;
mod tools;
mod units;
mod wheel_trials;
mod wheels;

use std::env::consts::ARCH;
use std::fs;

pub(crate) use command::{ReleaseArguments, run_command};
use files::{FILES, release_path};
pub(crate) use publish::{PublishArguments, run_command as run_publish_command};
pub(crate) use wheel_trials::{build_and_try_wheels, try_built_wheels};

use crate::gate::Outcome;
use crate::git::Git;
use crate::step::{Failed, repository_root};

/// An architecture that is released.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    pub(crate) const ALL: [Self; 2] = [Self::X86_64, Self::Aarch64];

    /// As in Rust's targets and the kernel's `uname -m`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::X86_64 => "x86_64",
            Self::Aarch64 => "aarch64",
        }
    }

    /// As in Debian packages and images.
    pub(crate) fn debian_name(self) -> &'static str {
        match self {
            Self::X86_64 => "amd64",
            Self::Aarch64 => "arm64",
        }
    }

    /// The target of the static binary.
    pub(crate) fn static_target(self) -> String {
        format!("{}-unknown-linux-musl", self.name())
    }

    /// The target of what is linked with glibc.
    pub(crate) fn glibc_target(self) -> String {
        format!("{}-unknown-linux-gnu", self.name())
    }

    /// The user-mode emulator of its programs.
    pub(crate) fn emulator(self) -> String {
        format!("qemu-{}-static", self.name())
    }

    /// Whether its programs run on this machine.
    pub(crate) fn is_native(self) -> bool {
        self.name() == ARCH
    }

    /// The one of this machine. Errors: it is not released.
    pub(crate) fn native() -> Result<Self, Failed> {
        let found = Self::ALL.into_iter().find(|each| each.is_native());
        found.ok_or_else(|| {
            Failed(format!("release: {ARCH} is not an architecture that is released; use one that is"))
        })
    }
}

/// One release: its version, where its files are made, and the time that they carry.
#[derive(Debug)]
pub(crate) struct Release {
    pub(crate) version: String,
    /// Seconds since 1970 of the last commit: `SOURCE_DATE_EPOCH`.
    pub(crate) epoch: String,
}

impl Release {
    pub(crate) fn of_this_commit() -> Result<Self, Failed> {
        // All crates have one version.
        let version = env!("CARGO_PKG_VERSION").to_owned();
        let epoch = Git::at(&repository_root()).command_output(&["log", "-1", "--format=%ct"])?;
        Ok(Self { version, epoch })
    }
}

/// Makes all files, once.
pub(crate) fn build_files() -> Outcome {
    let files = || {
        let release = Release::of_this_commit()?;
        tools::install_all()?;
        // Files of another version would be taken for ones of this.
        let _ = fs::remove_dir_all(release_path(""));
        tarball::build_all(&release)?;
        debian::build_all(&release)?;
        wheels::build_all(&release)?;
        image::pack_roots(&release)
    };
    roots::install_programs().then(|| files().into())
}

/// The nightly suite `release`: the files are made and tried in clean roots, and made again elsewhere.
pub(crate) fn build_and_try() -> Outcome {
    build_files().then(|| {
        match Release::of_this_commit().and_then(|release| Ok((release, roots::CleanRoots::prepare()?))) {
            Ok((release, roots)) => [
                tarball::try_in_clean_roots(&release, &roots),
                debian::try_in_clean_roots(&release, &roots),
                image::try_in_empty_root(),
                units::try_in_clean_roots(&release, &roots),
                reproducible::build_twice(),
            ]
            .into_iter()
            .fold(Outcome::default(), Outcome::merged_with),
            Err(failed) => failed.into(),
        }
    })
}
