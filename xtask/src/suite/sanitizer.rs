//! The environment of tests that are built with the address sanitizer.

use std::fs;
use std::path::PathBuf;

use crate::step::{CommandStep, Failed, repository_root, write_file};

/// The libpcap with which tests compare this project's.
const LIBPCAP: &str = "libpcap.so.0.8";

/// Entries of a dynamic section (ELF specification, "Dynamic Section"): the last one; search a library's own
/// symbols first.
const DT_NULL: u64 = 0;
const DT_SYMBOLIC: u64 = 16;

const PT_DYNAMIC: u64 = 2;

/// Files that programs are started with that were not built for the sanitizer.
#[derive(Debug)]
pub(crate) struct SanitizerFiles {
    /// The sanitizer's run-time library, from the C compiler.
    runtime: PathBuf,
    /// A copy of the system's libpcap.
    libpcap: PathBuf,
}

impl SanitizerFiles {
    /// The sanitizer forbids `RTLD_DEEPBIND`, by which nocopy-pcap makes the system's libpcap call itself and
    /// not this library. A copy of libpcap whose file asks for that has the same effect.
    pub(crate) fn prepare() -> Result<Self, Failed> {
        let runtime = find_sanitizer_runtime()?;
        let system = compiler_library_file(LIBPCAP)?;
        let failed = |error: &str| Failed(format!("{}: {error}", system.display()));
        let bytes = fs::read(&system).map_err(|error| failed(&error.to_string()))?;
        let bytes = with_symbolic_flag(bytes)
            .ok_or_else(|| failed("no ELF file with room in its dynamic section"))?;
        let libpcap = repository_root().join("target/sanitizer").join(LIBPCAP);
        write_file(&libpcap, bytes)?;
        Ok(Self { runtime, libpcap })
    }

    pub(crate) fn variables(&self) -> [(&'static str, String); 3] {
        // Much memory is kept until the end of a process on purpose, and addresses on the stack are compared.
        let options = "detect_leaks=0:detect_stack_use_after_return=0".to_owned();
        [
            ("NOCOPY_TEST_SANITIZER", self.runtime.display().to_string()),
            ("NOCOPY_SYSTEM_LIBPCAP", self.libpcap.display().to_string()),
            ("ASAN_OPTIONS", options),
        ]
    }
}

/// The sanitizer's run-time library, which programs need that were not built for it.
pub(crate) fn find_sanitizer_runtime() -> Result<PathBuf, Failed> {
    compiler_library_file("libasan.so")
}

/// A file in the C compiler's library path.
fn compiler_library_file(name: &str) -> Result<PathBuf, Failed> {
    let question = format!("-print-file-name={name}");
    let printed = CommandStep::new(name, "cc", &[&question]).captured_output()?;
    let path = PathBuf::from(printed.trim());
    if path.is_absolute() { Ok(path) } else { Err(Failed(format!("the C compiler knows no {name}"))) }
}

/// The library with `DT_SYMBOLIC` in the first place of its dynamic section that is free, if it is a 64-bit
/// one with such a place.
fn with_symbolic_flag(mut library: Vec<u8>) -> Option<Vec<u8>> {
    let number = |at: usize| Some(u64::from_le_bytes(library.get(at..at + 8)?.try_into().ok()?));
    let (headers, count) = (usize::try_from(number(32)?).ok()?, (number(56)? & 0xffff) as usize);
    let header = (0..count)
        .map(|i| headers + i * 56)
        .find(|&at| number(at).is_some_and(|kind| kind & 0xffff_ffff == PT_DYNAMIC))?;
    let (start, bytes) =
        (usize::try_from(number(header + 8)?).ok()?, usize::try_from(number(header + 32)?).ok()?);
    let entries = (start..start + bytes).step_by(16);
    let mut free = entries.filter(|&at| number(at) == Some(DT_NULL));
    // The last one stays unchanged.
    let (first, _) = (free.next()?, free.next()?);
    library[first..first + 8].copy_from_slice(&DT_SYMBOLIC.to_le_bytes());
    Some(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_asks_for_its_own_symbols_first() {
        let mut library = vec![0; 256];
        library[32] = 64; // program headers
        library[56] = 1;
        library[64..72].copy_from_slice(&PT_DYNAMIC.to_le_bytes());
        library[72] = 128;
        library[96] = 48;
        library[128] = 5; // a string table, then two that are free
        let changed = with_symbolic_flag(library.clone()).unwrap();
        library[144] = 16;
        assert_eq!(changed, library);
        assert!(with_symbolic_flag(changed).is_none(), "only the last is left");
        assert!(with_symbolic_flag(Vec::new()).is_none());
    }
}
