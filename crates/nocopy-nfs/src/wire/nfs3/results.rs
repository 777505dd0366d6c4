//! Results of calls.

use super::attributes::{Attributes, Time};
use super::{FileHandle, Status};
use crate::wire::mount::Text;
use crate::wire::xdr::{Reader, Xdr, XdrError, xdr_fields, xdr_struct};

/// Results, or a status with the results of a refused call.
pub type NfsResult<T, R> = Result<T, Refusal<R>>;

/// A refused call: the status, and the rest of its reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refusal<R> {
    pub status: Status,
    pub rest: R,
}

impl<'a, T: Xdr<'a>, R: Xdr<'a>> Xdr<'a> for NfsResult<T, R> {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Ok(value) => {
                0_u32.encode(out);
                value.encode(out);
            }
            Err(Refusal { status, rest }) => {
                status.encode(out);
                rest.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        let mut status = input.clone();
        if status.read::<u32>()? == 0 {
            *input = status;
            return Ok(Ok(input.read()?));
        }
        Ok(Err(Refusal { status: input.read()?, rest: input.read()? }))
    }
}

xdr_struct! {
    LookupResult {
        file: FileHandle,
        attributes: Option<Attributes>,
        directory_attributes: Option<Attributes>,
    }
}

xdr_struct! {
    AccessResult {
        attributes: Option<Attributes>,
        /// The allowed part of it.
        access: u32,
    }
}

/// The name of a file in a listed directory.
pub(super) type ListedName<'a> = Text<'a, 1024>;

/// The target of a symbolic link.
pub type PathText<'a> = Text<'a, 4096>;

xdr_struct! {
    ReadLinkResult<'a> {
        attributes: Option<Attributes>,
        path: PathText<'a>,
    }
}

xdr_struct! {
    /// The header before the bytes that were read, which follow with padding.
    ReadHead {
        attributes: Option<Attributes>,
        count: u32,
        is_end: bool,
        /// The length of the bytes; the same as `count`.
        data_bytes: u32,
    }
}

xdr_struct! {
    DirectoryEntry<'a> {
        file_id: u64,
        name: ListedName<'a>,
        cookie: u64,
    }
}

impl DirectoryEntry<'_> {
    /// The length of its representation in a list, without the name.
    pub const BYTES: usize = 4 + 8 + 4 + 8;
}

xdr_struct! {
    /// Entry with attributes and handle.
    FullDirectoryEntry<'a> {
        file_id: u64,
        name: ListedName<'a>,
        cookie: u64,
        attributes: Option<Attributes>,
        file: Option<FileHandle>,
    }
}

/// A part of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirectoryPage<E> {
    pub attributes: Option<Attributes>,
    pub verifier: [u8; 8],
    pub entries: Vec<E>,
    /// No entry follows.
    pub is_end: bool,
}

xdr_fields!(<'a, E> DirectoryPage<E> { attributes, verifier, entries, is_end, });

xdr_struct! {
    /// Results of FSSTAT.
    FileSystemStatus {
        attributes: Option<Attributes>,
        bytes: u64,
        bytes_free: u64,
        /// Free for a user without privileges.
        bytes_available: u64,
        files: u64,
        files_free: u64,
        files_available: u64,
        /// How long this will probably not change.
        seconds_unchanged: u32,
    }
}

xdr_struct! {
    /// Results of FSINFO: the longest calls, in bytes.
    FileSystemInformation {
        attributes: Option<Attributes>,
        read_max: u32,
        read_preferred: u32,
        read_multiple: u32,
        write_max: u32,
        write_preferred: u32,
        write_multiple: u32,
        directory_preferred: u32,
        file_bytes_max: u64,
        time_step: Time,
        properties: u32,
    }
}

impl FileSystemInformation {
    pub const HAS_LINKS: u32 = 1;
    pub const HAS_SYMBOLIC_LINKS: u32 = 2;
    pub const IS_HOMOGENEOUS: u32 = 8;
    pub const CAN_SET_TIMES: u32 = 16;
}

xdr_struct! {
    /// Results of PATHCONF.
    PathConfiguration {
        attributes: Option<Attributes>,
        links_max: u32,
        name_bytes_max: u32,
        /// Longer names are refused, not cut.
        no_truncation: bool,
        is_chown_restricted: bool,
        ignores_case: bool,
        preserves_case: bool,
    }
}
