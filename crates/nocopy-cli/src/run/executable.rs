//! Reads from a program's file whether the loader would preload anything into it.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::Path;

use object::elf::{DT_NEEDED, FileHeader32, FileHeader64, PT_INTERP};
use object::read::elf::{Dyn, FileHeader, ProgramHeader};
use object::{Endianness, FileKind, ReadCache, ReadRef};

/// What the headers of an ELF file say.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Executable {
    /// 32 or 64.
    bits: u32,
    machine: u16,
    /// Whether it asks for a loader; libraries do not.
    pub(super) has_loader: bool,
    /// The libraries it asks for itself.
    pub(super) libraries: Vec<String>,
}

impl Executable {
    /// `None`: the file is something else, such as a script.
    pub(super) fn read(path: &Path) -> io::Result<Option<Self>> {
        Self::parse(File::open(path)?)
    }

    fn parse(file: impl Read + Seek) -> io::Result<Option<Self>> {
        let file = ReadCache::new(file);
        let parsed = match FileKind::parse(&file) {
            Ok(FileKind::Elf64) => Self::of::<FileHeader64<Endianness>, _>(64, &file),
            Ok(FileKind::Elf32) => Self::of::<FileHeader32<Endianness>, _>(32, &file),
            _ => return Ok(None),
        };
        parsed.map(Some).map_err(io::Error::other)
    }

    fn of<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
        bits: u32,
        file: R,
    ) -> object::Result<Self> {
        let header = H::parse(file)?;
        let endian = header.endian()?;
        let segments = header.program_headers(endian, file)?;
        let has_loader = segments.iter().any(|segment| segment.p_type(endian) == PT_INTERP);
        Ok(Self {
            bits,
            machine: header.e_machine(endian),
            has_loader,
            libraries: needed(header, endian, file)?,
        })
    }

    /// Whether it is for the same kind of processor as this program, so that one process could load both.
    pub(super) fn is_native(&self) -> bool {
        let own = Self::read(Path::new("/proc/self/exe")).ok().flatten();
        own.is_none_or(|own| (own.bits, own.machine) == (self.bits, self.machine))
    }

    pub(super) fn needs_libpcap(&self) -> bool {
        self.libraries.iter().any(|name| name.starts_with("libpcap.so"))
    }
}

fn needed<'a, H: FileHeader<Endian = Endianness>, R: ReadRef<'a>>(
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
    fn this_program_is_dynamic_and_does_not_need_libpcap() {
        let own = Executable::read(Path::new("/proc/self/exe")).unwrap().unwrap();
        assert!(own.has_loader && own.is_native() && !own.needs_libpcap());
        assert!(own.libraries.iter().any(|name| name.starts_with("libc.so")), "{own:?}");
    }

    #[test]
    fn non_programs_are_recognised_and_damaged_ones_are_errors() {
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
