//! Reads from a program's file whether the loader would preload anything into it.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use object::elf::{
    DT_NEEDED, EM_386, EM_AARCH64, EM_ARM, EM_PPC64, EM_RISCV, EM_S390, EM_X86_64, FileHeader32,
    FileHeader64, PT_INTERP,
};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};

/// A library of the one cannot be loaded by the loader of the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CLibrary {
    Glibc,
    Musl,
}

impl CLibrary {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Glibc => "glibc",
            Self::Musl => "musl",
        }
    }
}

/// What the headers of an ELF file say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Executable {
    /// 32 or 64.
    bits: u32,
    machine: u16,
    /// The loader that it asks for; libraries and statically linked programs have none.
    pub(super) loader: Option<String>,
    /// The libraries it asks for itself.
    pub(super) libraries: Vec<String>,
}

impl Executable {
    /// `None`: the file is something else, such as a script.
    pub(super) fn read_elf(path: &Path) -> io::Result<Option<Self>> {
        Self::parse(open_regular_file(path)?)
    }

    fn parse(file: impl Read + Seek) -> io::Result<Option<Self>> {
        let file = ReadCache::new(file);
        let parsed = match FileKind::parse(&file) {
            Ok(FileKind::Elf64) => Self::parse_elf::<FileHeader64<Endianness>, _>(64, &file),
            Ok(FileKind::Elf32) => Self::parse_elf::<FileHeader32<Endianness>, _>(32, &file),
            _ => return Ok(None),
        };
        parsed.map(Some).map_err(io::Error::other)
    }

    fn parse_elf<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
        bits: u32,
        file: R,
    ) -> object::Result<Self> {
        let header = H::parse(file)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, file)?;
        let mut loaders = segments.iter().filter(|segment| segment.p_type(endian) == PT_INTERP);
        let loader = loaders.find_map(|segment| segment.data(endian, file).ok());
        let loader = loader.map(|path| String::from_utf8_lossy(path).trim_end_matches('\0').to_owned());
        let libraries = needed_libraries(header, endian, file)?;
        Ok(Self { bits, machine: header.e_machine(endian), loader, libraries })
    }

    /// What its processor is called.
    pub(super) fn processor_name(&self) -> &'static str {
        match (self.machine, self.bits) {
            (EM_X86_64, 64) => "x86-64",
            (EM_X86_64, _) => "x32",
            (EM_386, _) => "32-bit x86",
            (EM_AARCH64, _) => "AArch64",
            (EM_ARM, _) => "32-bit ARM",
            (EM_RISCV, _) => "RISC-V",
            (EM_PPC64, _) => "POWER",
            (EM_S390, _) => "s390x",
            _ => "another processor",
        }
    }

    /// The C library that it was built for, as far as that is recognised.
    pub(super) fn c_library(&self) -> Option<CLibrary> {
        let loader = self.loader.iter().filter_map(|path| path.rsplit('/').next());
        loader.chain(self.libraries.iter().map(String::as_str)).find_map(|name| match name {
            "libc.so.6" => Some(CLibrary::Glibc),
            "libc.so" => Some(CLibrary::Musl),
            _ if name.starts_with("ld-linux") || name.starts_with("ld64.so") => Some(CLibrary::Glibc),
            _ if name.starts_with("ld-musl-") || name.starts_with("libc.musl-") => Some(CLibrary::Musl),
            _ => None,
        })
    }

    /// Whether it is for the same kind of processor as this program, so that one process could load both.
    pub(super) fn is_native(&self) -> bool {
        let own = Self::read_elf(Path::new("/proc/self/exe")).ok().flatten();
        own.is_none_or(|own| (own.bits, own.machine) == (self.bits, self.machine))
    }

    pub(super) fn needs_libpcap(&self) -> bool {
        self.libraries.iter().any(|name| name.starts_with("libpcap.so"))
    }
}

/// Opens a regular file. A FIFO would be waited for, and a device may do something when it is opened.
pub(super) fn open_regular_file(path: &Path) -> io::Result<File> {
    if !path.metadata()?.is_file() {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // By now it may be another one.
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)
}

fn needed_libraries<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
    header: &H,
    endian: Endianness,
    file: R,
) -> object::Result<Vec<String>> {
    let sections = header.sections(endian, file)?;
    let Some((entries, link)) = sections.dynamic(endian, file)? else { return Ok(Vec::new()) };
    let strings = sections.strings(endian, file, link)?;
    let names = entries
        .iter()
        .filter(|entry| entry.tag(endian) == DT_NEEDED)
        .map(|entry| entry.string(endian, strings).map(|name| String::from_utf8_lossy(name).into_owned()));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dynamic_program_without_libpcap_is_recognised() {
        let own = Executable::read_elf(Path::new("/proc/self/exe")).unwrap().unwrap();
        assert!(own.loader.is_some() && own.is_native() && !own.needs_libpcap());
        assert!(own.libraries.iter().any(|name| name.starts_with("libc.so")), "{own:?}");
    }

    #[test]
    fn the_c_library_is_recognised_by_the_loader_or_the_libraries() {
        let of = |loader: Option<&str>, libraries: &[&str]| {
            let (loader, libraries) =
                (loader.map(str::to_owned), libraries.iter().map(|name| (*name).to_owned()).collect());
            Executable { bits: 64, machine: EM_X86_64, loader, libraries }.c_library()
        };
        assert_eq!(of(Some("/lib64/ld-linux-x86-64.so.2"), &["libc.so.6"]), Some(CLibrary::Glibc));
        assert_eq!(of(Some("/lib/ld-linux-aarch64.so.1"), &[]), Some(CLibrary::Glibc));
        assert_eq!(of(Some("/lib/ld-musl-x86_64.so.1"), &["libpcap.so.1"]), Some(CLibrary::Musl));
        assert_eq!(of(None, &["libm.so.6", "libc.so.6"]), Some(CLibrary::Glibc));
        assert_eq!(of(None, &["libc.musl-x86_64.so.1"]), Some(CLibrary::Musl));
        assert_eq!((of(None, &["libc.so"]), of(None, &[])), (Some(CLibrary::Musl), None));
    }

    #[test]
    fn elf_parser_distinguishes_scripts_damage_and_foreign_machines() {
        let parse = |bytes: &[u8]| Executable::parse(io::Cursor::new(bytes.to_vec()));
        assert_eq!(parse(b"#!/bin/sh\necho\n").unwrap(), None);
        assert_eq!(parse(b"").unwrap(), None);
        let own = std::fs::read("/proc/self/exe").unwrap();
        assert!(parse(&own[..20]).is_err() || parse(&own[..20]).unwrap().is_none());
        let mut foreign = own[..64].to_vec();
        (foreign[18], foreign[19]) = (0xff, 0x7f); // its machine
        foreign[32..64].fill(0); // no headers of segments and sections
        assert!(!parse(&foreign).unwrap().unwrap().is_native());
    }
}
