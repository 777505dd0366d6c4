//! Packages of Debian that a nightly suite looks into, unpacked below `target`: nothing is installed, and no
//! service starts.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use crate::step::{CommandStep, Failed, files_with_ending, repository_root};

/// The unpacked contents of packages.
#[derive(Debug)]
pub(crate) struct UnpackedPackages {
    root: PathBuf,
}

impl UnpackedPackages {
    /// Fetches packages and those of their dependencies that this system does not have.
    pub(crate) fn fetch<'a>(
        suite: &str,
        packages: impl IntoIterator<Item = &'a str>,
    ) -> Result<Self, Failed> {
        let place = format!("target/{suite}");
        let (archives, root) = (format!("{place}/archives"), repository_root().join(&place).join("root"));
        let failed = |error: std::io::Error| Failed(format!("{place}: {error}"));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(self::repository_root().join(&archives).join("partial")).map_err(failed)?;
        fs::create_dir_all(&root).map_err(failed)?;
        let cache = format!("Dir::Cache::archives={}", self::repository_root().join(&archives).display());
        let what = ["install", "-y", "-qq", "--no-install-recommends", "--download-only", "--reinstall"];
        CommandStep::new("list packages", "apt-get", &["update", "-qq"]).run()?;
        let packages: BTreeSet<&str> = packages.into_iter().collect();
        let all: Vec<&str> = what.into_iter().chain(["-o", &cache]).chain(packages).collect();
        CommandStep::new("fetch packages", "apt-get", &all).run()?;
        for archive in files_with_ending(&archives, ".deb")? {
            let (archive, root) = (archive.display().to_string(), root.display().to_string());
            CommandStep::new(&format!("unpack {archive}"), "dpkg-deb", &["-x", &archive, &root])
                .captured_output()?;
        }
        Ok(Self { root })
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    pub(crate) fn library_directory(&self) -> PathBuf {
        self.path(&format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH))
    }

    /// Environment variables with which the unpacked programs find each other and their libraries.
    pub(crate) fn environment_variables(&self) -> Vec<(&'static str, String)> {
        let libraries = self.library_directory();
        let joined = |paths: &[PathBuf]| {
            let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
            names.join(":")
        };
        // The directories below it are alternatives of Debian.
        let mut places: Vec<PathBuf> =
            ["", "lapack", "blas", "pulseaudio"].iter().map(|name| libraries.join(name)).collect();
        places.push(self.path(&format!("lib/{}-linux-gnu", std::env::consts::ARCH)));
        let found = [self.path("usr/bin"), self.path("usr/sbin")];
        let usual = std::env::var("PATH").unwrap_or_default();
        vec![
            ("LD_LIBRARY_PATH", joined(&places)),
            ("PATH", format!("{}:{usual}", joined(&found))),
            ("PYTHONHOME", self.path("usr").display().to_string()),
        ]
    }

    pub(crate) fn package_version(&self, package: &str) -> Result<String, Failed> {
        let archives = self.root.with_file_name("archives");
        let is_its = |path: &&PathBuf| {
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            name.split_once('_').is_some_and(|(first, _)| first == package)
        };
        let all = files_with_ending(archives.to_str().unwrap_or_default(), ".deb")?;
        let archive = all.iter().find(is_its).ok_or_else(|| Failed(format!("{package}: was not fetched")))?;
        archive_version(archive)
    }
}

fn archive_version(archive: &Path) -> Result<String, Failed> {
    let archive = archive.display().to_string();
    let field =
        CommandStep::new("version", "dpkg-deb", &["--field", &archive, "Version"]).captured_output()?;
    Ok(field.trim().to_owned())
}
