//! Arguments of calls. If a call has only a handle, that is its type.

use super::FileHandle;
use crate::wire::mount::Text;
use crate::wire::xdr::xdr_struct;

/// Longer than any call but a write may be: the RFC has no limit for names and paths, so they are refused by
/// their own status.
pub const ARGUMENT_BYTES_MAX: usize = 1 << 16;

/// The name of a file in its directory. Longer ones than any file system has are decoded, so that they can be
/// refused by their own status.
pub type Name<'a> = Text<'a, { ARGUMENT_BYTES_MAX }>;

xdr_struct! {
    LookupArguments<'a> {
        directory: FileHandle,
        name: Name<'a>,
    }
}

xdr_struct! {
    AccessArguments {
        file: FileHandle,
        /// A bit for each kind of access.
        access: u32,
    }
}

impl AccessArguments {
    pub const READ: u32 = 1;
    pub const LOOKUP: u32 = 2;
    pub const MODIFY: u32 = 4;
    pub const EXTEND: u32 = 8;
    pub const DELETE: u32 = 16;
    pub const EXECUTE: u32 = 32;
}

xdr_struct! {
    ReadArguments {
        file: FileHandle,
        offset: u64,
        bytes: u32,
    }
}

xdr_struct! {
    ReadDirArguments {
        directory: FileHandle,
        /// The cookie of the last entry that the client has; 0 at the beginning.
        cookie: u64,
        verifier: [u8; 8],
        /// The longest reply that the client accepts.
        bytes_max: u32,
    }
}

xdr_struct! {
    ReadDirPlusArguments {
        directory: FileHandle,
        cookie: u64,
        verifier: [u8; 8],
        /// The limit of names, numbers and cookies.
        names_bytes_max: u32,
        /// The longest reply that the client accepts.
        bytes_max: u32,
    }
}
