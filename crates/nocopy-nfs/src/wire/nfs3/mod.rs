//! NFS, version 3 (RFC 1813): procedures, statuses, handles and attributes.

mod arguments;
mod attributes;
mod changes;
mod results;

pub use arguments::{
    ARGUMENT_BYTES_MAX, AccessArguments, LookupArguments, Name, ReadArguments, ReadDirArguments,
    ReadDirPlusArguments,
};
pub use attributes::{Attributes, FileType, SizeAndTimes, Time, WeakCacheConsistency};
pub use changes::{
    CommitArguments, CommitResult, CreateArguments, CreateMode, CreateResult, Data, Entry, LinkArguments,
    LinkResult, MakeDirectoryArguments, MakeNodeArguments, NewAttributes, NewNode, NewPath, RenameArguments,
    RenameResult, SetAttributesArguments, SetTime, Stability, SymbolicLinkArguments, Verifier,
    WRITE_BYTES_MAX, WriteArguments, WriteHead, WriteResult,
};
pub use results::{
    AccessResult, DirectoryEntry, DirectoryPage, FileSystemInformation, FileSystemStatus, FullDirectoryEntry,
    LookupResult, NfsResult, PathConfiguration, PathText, ReadHead, ReadLinkResult, Refusal,
};

use super::xdr::{Reader, Xdr, XdrError, put_opaque, xdr_enum};

pub const PROGRAM: u32 = 100_003;
pub const VERSION: u32 = 3;

/// The port that clients expect.
pub const PORT: u16 = 2049;

pub const HANDLE_BYTES_MAX: usize = 64;

xdr_enum! {
    Procedure, "a procedure of NFS" {
        Null = 0,
        GetAttr = 1,
        SetAttr = 2,
        Lookup = 3,
        Access = 4,
        ReadLink = 5,
        Read = 6,
        Write = 7,
        Create = 8,
        MakeDirectory = 9,
        SymbolicLink = 10,
        MakeNode = 11,
        Remove = 12,
        RemoveDirectory = 13,
        Rename = 14,
        Link = 15,
        ReadDir = 16,
        ReadDirPlus = 17,
        FsStat = 18,
        FsInfo = 19,
        PathConf = 20,
        Commit = 21,
    }
}

impl Procedure {
    /// Whether it changes files, or commits changes.
    pub fn is_change(self) -> bool {
        use Procedure::{
            Commit, Create, Link, MakeDirectory, MakeNode, Remove, RemoveDirectory, Rename, SetAttr,
            SymbolicLink, Write,
        };
        matches!(
            self,
            SetAttr
                | Write
                | Create
                | MakeDirectory
                | SymbolicLink
                | MakeNode
                | Remove
                | RemoveDirectory
                | Rename
                | Link
                | Commit
        )
    }
}

xdr_enum! {
    /// Why a call failed.
    Status, "a status of NFS" {
        NotPermitted = 1,
        NoEntry = 2,
        Io = 5,
        NoDevice = 6,
        Access = 13,
        Exists = 17,
        CrossDevice = 18,
        NoSuchDevice = 19,
        NotDirectory = 20,
        IsDirectory = 21,
        Invalid = 22,
        FileTooBig = 27,
        NoSpace = 28,
        ReadOnlyFileSystem = 30,
        TooManyLinks = 31,
        NameTooLong = 63,
        NotEmpty = 66,
        QuotaExceeded = 69,
        Stale = 70,
        Remote = 71,
        BadHandle = 10_001,
        NotSynchronized = 10_002,
        BadCookie = 10_003,
        NotSupported = 10_004,
        TooSmall = 10_005,
        ServerFault = 10_006,
        BadType = 10_007,
        /// Ask again later.
        Jukebox = 10_008,
    }
}

/// The handle of a file, valid as long as it exists; only the server knows the meaning of the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FileHandle {
    bytes: [u8; HANDLE_BYTES_MAX],
    count: u8,
}

impl FileHandle {
    /// `None` if there are more bytes than a handle has.
    pub fn new(from: &[u8]) -> Option<Self> {
        let mut bytes = [0; HANDLE_BYTES_MAX];
        bytes.get_mut(..from.len())?.copy_from_slice(from);
        Some(Self { bytes, count: from.len() as u8 })
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.count)]
    }
}

impl std::fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl Xdr<'_> for FileHandle {
    fn encode(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.as_bytes());
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        let bytes = input.opaque(HANDLE_BYTES_MAX)?;
        Ok(Self::new(bytes).expect("it was read as no longer"))
    }
}
