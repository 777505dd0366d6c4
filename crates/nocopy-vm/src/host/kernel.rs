//! Stock kernels of Debian, unpacked into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::packages::{PackageArchive, PackageSuite, run_command};
use super::{Error, LockedCache};
use crate::topology::{Architecture, Kernel};

/// A kernel with its modules, as in the root directory of a machine.
#[derive(Debug, Clone)]
pub(crate) struct KernelTree {
    /// The output of `uname -r`.
    pub(crate) version: String,
    /// The bootable image; its modules are beside it, where virtme-ng finds them.
    pub(crate) image: PathBuf,
    pub(crate) modules: PathBuf,
}

/// The suite a kernel is taken from, whatever version it has now.
const fn suite_of_kernel(kernel: Kernel) -> &'static str {
    match kernel {
        Kernel::Newest | Kernel::Arm64 => "trixie-backports",
        Kernel::Stable => "trixie",
        Kernel::Older => "bookworm",
    }
}

impl KernelTree {
    /// The kernel in the cache, fetched if it is not there. One that is there is kept: delete its directory
    /// for a newer.
    pub(crate) fn prepare(cache: &LockedCache, kernel: Kernel) -> Result<Self, Error> {
        let (suite, architecture) = (suite_of_kernel(kernel), kernel.architecture());
        let name = match architecture {
            Architecture::Amd64 => format!("kernel-{suite}"),
            Architecture::Arm64 => format!("arm64-kernel-{suite}"),
        };
        let place = cache.filled_directory(&name, |place| fetch_kernel(suite, architecture, place))?;
        Self::find_in_tree(&place)?.ok_or(Error::NoImage { package: place.display().to_string() })
    }

    /// Kernels before 7.1 keep the image in `/boot`, later ones beside their modules.
    fn find_in_tree(root: &Path) -> Result<Option<Self>, Error> {
        let modules = modules_directory(root);
        for entry in fs::read_dir(&modules).map_err(Error::for_file(&modules))? {
            let entry = entry.map_err(Error::for_file(&modules))?;
            let version = entry.file_name().to_string_lossy().into_owned();
            let images = [entry.path().join("vmlinuz"), root.join(format!("boot/vmlinuz-{version}"))];
            if let Some(image) = images.into_iter().find(|image| image.exists()) {
                return Ok(Some(Self { version, image, modules: entry.path() }));
            }
        }
        Ok(None)
    }
}

/// The directory of modules of a tree: in `/lib`, or, since Debian merged the two, in `/usr/lib`.
fn modules_directory(root: &Path) -> PathBuf {
    [root.join("usr/lib/modules"), root.join("lib/modules")]
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| root.join("lib/modules"))
}

fn fetch_kernel(suite: &str, architecture: Architecture, place: &Path) -> Result<(), Error> {
    let lists = tempfile::tempdir().map_err(Error::for_file(std::env::temp_dir()))?;
    let archive = PackageSuite::fetch(PackageArchive::Debian, suite, None, architecture, lists.path())?;
    // The package that depends on the suite's current kernel.
    let newest = format!("linux-image-{}", architecture.name());
    let image = archive.dependencies(&newest)?.into_iter().find(|name| name.starts_with("linux-image-"));
    let image =
        image.ok_or_else(|| Error::NoPackage { package: "linux-image-*".into(), suite: suite.into() })?;
    // In newer suites image and modules are packages of their own, with the same version in the name.
    let version = image.trim_start_matches("linux-image-").to_owned();
    let mut packages = archive.dependencies(&image)?;
    packages.retain(|name| name.starts_with("linux-") && name.ends_with(&version));
    packages.push(image.clone());
    archive.unpack(&packages, place)?;
    let tree = KernelTree::find_in_tree(place)?.ok_or(Error::NoImage { package: image })?;
    let base = if place.join("usr/lib/modules").exists() { place.join("usr") } else { place.to_owned() };
    run_command("listing what modules need", Command::new("depmod").arg("-b").arg(base).arg(&tree.version))
        .map(drop)
}
