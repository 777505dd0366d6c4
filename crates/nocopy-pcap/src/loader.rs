//! What is asked of the loader: the system's libpcap, and that programs which open libpcap by its name get
//! this library.

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};

use nocopy_proto::distribution::libpcap_install_command;

use crate::environment;

/// What distributions call the file: Debian and those that build on it, others, and all where programs are
/// built.
const NAMES: [&CStr; 3] = [c"libpcap.so.0.8", c"libpcap.so.1", c"libpcap.so"];

/// The directories that loaders search, with Debian's directory of each architecture first (ld.so(8)).
const DIRECTORIES: [&str; 8] = [
    MULTIARCH[0],
    MULTIARCH[1],
    "/usr/lib64",
    "/lib64",
    "/usr/lib",
    "/lib",
    "/usr/local/lib64",
    "/usr/local/lib",
];

/// Debian's directories of the architecture.
const MULTIARCH: [&str; 2] = if cfg!(target_arch = "aarch64") {
    ["/usr/lib/aarch64-linux-gnu", "/lib/aarch64-linux-gnu"]
} else {
    ["/usr/lib/x86_64-linux-gnu", "/lib/x86_64-linux-gnu"]
};

/// The library's internal calls use its own functions, not those that programs find first: ours. musl has no
/// such flag, and a library that was loaded with the program is not changed: then the internal calls come
/// here, which does no harm. The address sanitizer does not allow the flag; its tests use a libpcap that was
/// linked so.
#[cfg(all(target_env = "gnu", not(nocopy_sanitizer)))]
const OWN_FUNCTIONS: c_int = libc::RTLD_DEEPBIND;
#[cfg(not(all(target_env = "gnu", not(nocopy_sanitizer))))]
const OWN_FUNCTIONS: c_int = 0;

/// A loaded library, which is never closed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LoadedLibrary(NonNull<c_void>);

impl LoadedLibrary {
    /// Opens the library that the environment names, or the first that is found: the one that the program was
    /// linked with, one in a usual directory, or one that the loader finds by its name.
    pub(crate) fn open() -> Result<Self, String> {
        if let Some(named) = environment::secure_getenv(environment::SYSTEM_LIBPCAP) {
            return Self::open_from_variable(&named);
        }
        let mut refusal = None;
        let found = NAMES
            .iter()
            .find_map(|name| open_library(name, libc::RTLD_NOLOAD).filter(|found| found.is_system_libpcap()));
        let found = found.or_else(|| {
            let ours = own_library_file();
            let is_other = |path: &PathBuf| path.exists() && path.canonicalize().ok() != ours;
            let open = |path: PathBuf| Self::open_path(&path).map_err(|reason| refusal = Some(reason)).ok();
            candidate_paths().filter(is_other).find_map(open)
        });
        let found = found.or_else(|| {
            NAMES.iter().find_map(|name| open_library(name, 0).filter(|found| found.is_system_libpcap()))
        });
        // What the loader said of names that are not there is not for the program to read.
        drop(loader_error());
        found.ok_or_else(|| refusal.unwrap_or_else(not_found_error))
    }

    fn open_from_variable(path: &OsString) -> Result<Self, String> {
        let path = Path::new(path);
        let variable = environment::SYSTEM_LIBPCAP;
        if path.canonicalize().ok().is_some_and(|file| Some(file) == own_library_file()) {
            let path = path.display();
            return Err(format!(
                "{path}: cannot be the system's libpcap; it is this library itself; name another in {variable}"
            ));
        }
        Self::open_path(path).map_err(|reason| format!("{reason}; name the system's libpcap in {variable}"))
    }

    fn open_path(path: &Path) -> Result<Self, String> {
        let file = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| format!("{}: cannot be loaded; its path has a zero byte", path.display()))?;
        open_library(&file, 0)
            .ok_or_else(|| format!("{}: cannot be loaded; {}", path.display(), loader_error()))
    }

    /// The address of a symbol of the library; the name ends with a zero byte.
    pub(crate) fn symbol(self, name: &str) -> Option<*mut c_void> {
        debug_assert!(name.ends_with('\0'));
        // SAFETY: the library is open, and stays so; the name ends with a zero.
        let found = unsafe { libc::dlsym(self.0.as_ptr(), name.as_ptr().cast()) };
        (!found.is_null()).then_some(found)
    }

    /// Whether it is libpcap, and not this library under that name.
    fn is_system_libpcap(self) -> bool {
        let file = self.symbol("pcap_create\0").and_then(library_name_of);
        file.is_some_and(|file| Some(file) != own_library_name())
    }
}

fn candidate_paths() -> impl Iterator<Item = PathBuf> {
    let names = |directory: &'static str| {
        NAMES.iter().map(move |name| Path::new(directory).join(OsStr::from_bytes(name.to_bytes())))
    };
    DIRECTORIES.into_iter().flat_map(names)
}

/// Why there is none, in the words of this distribution.
fn not_found_error() -> String {
    let directories = DIRECTORIES.join(", ");
    let install = libpcap_install_command(|path| std::fs::read_to_string(path).ok());
    format!(
        "libpcap: not found; the system's libpcap, which compiles filters and reads files, is in none of {directories}; \
         install it ({install}), or name its path in {}",
        environment::SYSTEM_LIBPCAP
    )
}

fn open_library(name: &CStr, flags: c_int) -> Option<LoadedLibrary> {
    let flags = libc::RTLD_NOW | libc::RTLD_LOCAL | OWN_FUNCTIONS | flags;
    // SAFETY: the C library's function, which has this type. Opening a library runs its initialisers; those
    // of libpcap and what it needs do nothing that matters here.
    let library = unsafe {
        let open = std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, c_int) -> *mut c_void>(
            real_dlopen_address(),
        );
        open(name.as_ptr(), flags)
    };
    NonNull::new(library).map(LoadedLibrary)
}

/// The address of the C library's dlopen(3): this library has a function of that name, too.
pub(crate) fn real_dlopen_address() -> *mut c_void {
    static FOUND: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
    let known = FOUND.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // The C library comes after this one, unless a program was linked with both in the other order: then it
    // is the first of all. SAFETY: the name ends with a zero.
    let lookup = |scope: *mut c_void| unsafe { libc::dlsym(scope, c"dlopen".as_ptr()) };
    let is_other = |found: &*mut c_void| !found.is_null() && library_name_of(*found) != own_library_name();
    let found = [libc::RTLD_NEXT, libc::RTLD_DEFAULT].map(lookup).into_iter().find(is_other);
    // A program without a C library that opens libraries does not get so far.
    let found = found.unwrap_or_else(|| std::process::abort());
    FOUND.store(found, Ordering::Relaxed);
    found
}

/// Whether a program that opens this file wants libpcap: a name, which the loader searches for, or a path.
pub(crate) fn is_libpcap_name(file: &CStr) -> bool {
    let name = file.to_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    name.strip_prefix(b"libpcap.so").is_some_and(|version| matches!(version.first(), None | Some(b'.')))
}

/// The name by which the loader knows this library; it stays valid.
pub(crate) fn own_library_name() -> Option<&'static CStr> {
    library_name_of(own_library_name as *mut c_void)
}

/// The name by which the loader knows the library of a function; it stays valid as long as the library is
/// loaded.
fn library_name_of(function: *mut c_void) -> Option<&'static CStr> {
    let mut found = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for; what is found is written to `found`.
    let is_found = unsafe { libc::dladdr(function, &raw mut found) } != 0;
    let name = NonNull::new(found.dli_fname.cast_mut()).filter(|_| is_found)?;
    // SAFETY: it ends with a zero, and stays as long as the library, which is not closed.
    Some(unsafe { CStr::from_ptr(name.as_ptr()) })
}

/// The file that contains this code.
fn own_library_file() -> Option<PathBuf> {
    Path::new(OsStr::from_bytes(own_library_name()?.to_bytes())).canonicalize().ok()
}

fn loader_error() -> String {
    // SAFETY: takes nothing; the text is this thread's, good until the loader is called again.
    let words = unsafe { libc::dlerror() };
    match NonNull::new(words) {
        // SAFETY: ends with a zero, and is copied at once.
        Some(words) => unsafe { CStr::from_ptr(words.as_ptr()) }.to_string_lossy().into_owned(),
        None => "the loader gives no reason".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libpcap_is_recognised_by_any_of_its_names() {
        for name in [
            c"libpcap.so",
            c"libpcap.so.1",
            c"libpcap.so.0.8",
            c"/usr/lib64/libpcap.so.1.10.4",
            c"./libpcap.so",
        ] {
            assert!(is_libpcap_name(name), "{name:?}");
        }
        for name in
            [c"", c"/", c"libpcap", c"libpcap.so/", c"libpcap.so2", c"libpcapnav.so.0", c"xlibpcap.so"]
        {
            assert!(!is_libpcap_name(name), "{name:?}");
        }
    }
}
