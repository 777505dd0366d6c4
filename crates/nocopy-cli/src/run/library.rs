//! Where the library is that is preloaded.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use nocopy_lab::PreloadLibrary;
use nocopy_proto::errno::ErrorCause;

use super::Error;
use super::executable::{CLibrary, Executable};

/// Finds it: the one that was named, or the first of the usual places. Returns its absolute path.
pub(crate) fn find_library(which: PreloadLibrary, requested: Option<&Path>) -> Result<PathBuf, Error> {
    let path = match requested {
        Some(path) => path.to_owned(),
        None => which.find_library()?,
    };
    check_library(which, &path)?;
    Ok(path.canonicalize().unwrap_or(path))
}

/// The C library that it was built for.
pub(super) fn c_library_of(library: &Path) -> Option<CLibrary> {
    Executable::read_elf(library).ok().flatten()?.c_library()
}

/// The loader would only warn, and the program run without it.
fn check_library(which: PreloadLibrary, path: &Path) -> Result<(), Error> {
    let failed = |why: String| Error::InvalidLibrary { which, path: path.into(), why };
    let library = Executable::read_elf(path).map_err(|error| failed(ErrorCause(&error).to_string()))?;
    match library {
        None => Err(failed("; the file is not ELF".into())),
        Some(library) if !library.is_native() => Err(failed("; it is for another architecture".into())),
        Some(_) => Ok(()),
    }
}

/// `LD_PRELOAD` with the library first, before earlier ones.
pub(crate) fn preload_variable(library: &Path, earlier: Option<&OsStr>) -> OsString {
    let mut all = library.as_os_str().to_owned();
    if let Some(earlier) = earlier.filter(|earlier| !earlier.is_empty()) {
        all.push(":");
        all.push(earlier);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn earlier_preloads_are_kept() {
        let library = Path::new("/lib/x.so");
        assert_eq!(preload_variable(library, None), "/lib/x.so");
        assert_eq!(preload_variable(library, Some(OsStr::new(""))), "/lib/x.so");
        assert_eq!(preload_variable(library, Some(OsStr::new("a.so b.so"))), "/lib/x.so:a.so b.so");
    }

    #[test]
    fn invalid_libraries_are_refused() {
        let refused =
            |path: &str| find_library(PreloadLibrary::Pcap, Some(Path::new(path))).unwrap_err().to_string();
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
