//! Where the library is that is preloaded.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use nocopy_proto::errno::Why;

use super::Error;
use super::executable::{CLibrary, Executable};
use super::kind::Kind;

/// Directories relative to this program: the build's own, cargo's for dependencies, and installed ones.
const BESIDE: [&str; 5] = ["", "deps", "../lib/nocopy", "../lib64/nocopy", "../lib"];
const INSTALLED: [&str; 3] = ["/usr/local/lib/nocopy", "/usr/lib/nocopy", "/usr/lib64/nocopy"];

/// Finds it: the one that was named, or the first of the usual places. Returns its absolute path.
pub(crate) fn find(kind: Kind, named: Option<&Path>) -> Result<PathBuf, Error> {
    let path = match named {
        Some(path) => path.to_owned(),
        None => {
            let places = places(kind);
            let found = places.iter().find(|place| place.is_file()).cloned();
            found.ok_or(Error::NoLibrary { kind, places })?
        }
    };
    check(kind, &path)?;
    Ok(path.canonicalize().unwrap_or(path))
}

/// The C library that it was built for.
pub(super) fn c_library(library: &Path) -> Option<CLibrary> {
    Executable::read(library).ok().flatten()?.c_library()
}

/// Finds it in the usual places; returns its name in `LD_PRELOAD`.
pub(crate) fn preloadable(kind: Kind) -> Result<PathBuf, Error> {
    named(&find(kind, None)?)
}

/// The name of a library in `LD_PRELOAD`.
pub(super) fn named(library: &Path) -> Result<PathBuf, Error> {
    nocopy_lab::preloadable(library).map_err(|source| Error::LibraryPath { path: library.into(), source })
}

/// The loader would only warn, and the program run without it.
fn check(kind: Kind, path: &Path) -> Result<(), Error> {
    let failed = |why: String| Error::NotALibrary { kind, path: path.into(), why };
    let library = Executable::read(path).map_err(|error| failed(Why(&error).to_string()))?;
    match library {
        None => Err(failed("; the file is not ELF".into())),
        Some(library) if !library.is_native() => Err(failed("; it is for another architecture".into())),
        Some(_) => Ok(()),
    }
}

fn places(kind: Kind) -> Vec<PathBuf> {
    let own = std::env::current_exe().ok();
    let directory = own.as_deref().and_then(Path::parent);
    let beside = directory.into_iter().flat_map(|own| BESIDE.map(|place| own.join(place).join(kind.file())));
    beside.chain(INSTALLED.map(|place| Path::new(place).join(kind.file()))).collect()
}

/// `LD_PRELOAD` with the library first, before earlier ones.
pub(crate) fn preload(library: &Path, before: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        all.push(":");
        all.push(before);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_preloaded_before_still_is() {
        let library = Path::new("/lib/x.so");
        assert_eq!(preload(library, None), "/lib/x.so");
        assert_eq!(preload(library, Some(OsStr::new(""))), "/lib/x.so");
        assert_eq!(preload(library, Some(OsStr::new("a.so b.so"))), "/lib/x.so:a.so b.so");
    }

    #[test]
    fn what_is_no_library_is_refused() {
        let refused = |path: &str| find(Kind::Pcap, Some(Path::new(path))).unwrap_err().to_string();
        assert_eq!(
            refused("/nowhere/x.so"),
            "/nowhere/x.so: cannot be used as the library (ENOENT); no such file or directory; name libnocopy_pcap.so with --library"
        );
        let text = refused(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"));
        assert!(
            text.ends_with("as the library; the file is not ELF; name libnocopy_pcap.so with --library"),
            "{text}"
        );
    }
}
