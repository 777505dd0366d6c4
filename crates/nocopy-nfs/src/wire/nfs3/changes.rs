//! Calls that change something, and their results.

use super::FileHandle;
use super::arguments::{ARGUMENT_BYTES_MAX, LookupArguments};
use super::attributes::{Attributes, FileType, Time, WeakCacheConsistency};
use crate::wire::mount::Text;
use crate::wire::xdr::{Reader, Xdr, XdrError, put_opaque, xdr_enum, xdr_struct};

/// The longest write that is read from a record.
pub const WRITE_BYTES_MAX: usize = 1 << 20;

/// A number that the server changes at each start.
pub type Verifier = [u8; 8];

/// The new value of a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    Keep,
    /// The time of the server.
    Now,
    To(Time),
}

impl Xdr<'_> for SetTime {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Self::Keep => 0_u32.encode(out),
            Self::Now => 1_u32.encode(out),
            Self::To(time) => {
                2_u32.encode(out);
                time.encode(out);
            }
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(match input.read()? {
            0 => Self::Keep,
            1 => Self::Now,
            2 => Self::To(input.read()?),
            value => return Err(XdrError::Value { what: "how a time is set", value }),
        })
    }
}

xdr_struct! {
    /// sattr3 of the RFC: the attributes to be changed.
    NewAttributes {
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        accessed: SetTime,
        modified: SetTime,
    }
}

impl NewAttributes {
    /// No change.
    pub const NONE: Self = Self {
        mode: None,
        user: None,
        group: None,
        size: None,
        accessed: SetTime::Keep,
        modified: SetTime::Keep,
    };
}

xdr_struct! {
    SetAttributesArguments {
        file: FileHandle,
        new: NewAttributes,
        /// If given, the call changes the file only if it was last changed at this time.
        guard: Option<Time>,
    }
}

xdr_enum! {
    /// How much of the written data, and of the file's attributes, has to be on the disk before the reply.
    Stability, "how stable a write is" {
        Unstable = 0,
        DataSync = 1,
        FileSync = 2,
    }
}

/// Bytes to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Data<'a>(pub &'a [u8]);

impl<'a> Xdr<'a> for Data<'a> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.0);
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        input.opaque(WRITE_BYTES_MAX).map(Self)
    }
}

xdr_struct! {
    WriteArguments<'a> {
        file: FileHandle,
        offset: u64,
        /// How many of the data's bytes are to be written.
        count: u32,
        stability: Stability,
        data: Data<'a>,
    }
}

xdr_struct! {
    /// The header before the bytes of a write.
    WriteHead {
        file: FileHandle,
        offset: u64,
        count: u32,
        stability: Stability,
        /// The length of the bytes, which follow with padding.
        data_bytes: u32,
    }
}

xdr_struct! {
    WriteResult {
        changed: WeakCacheConsistency,
        count: u32,
        /// How it was written, which may be more stable than requested.
        stability: Stability,
        verifier: Verifier,
    }
}

/// How a file is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CreateMode {
    /// An existing file gets the requested size.
    Unchecked(NewAttributes),
    /// The file must not exist.
    Guarded(NewAttributes),
    /// The file must not exist, unless the same call made it, which a client repeats if no reply arrived.
    Exclusive(Verifier),
}

impl Xdr<'_> for CreateMode {
    fn encode(&self, out: &mut Vec<u8>) {
        let (number, attributes): (u32, _) = match self {
            Self::Unchecked(attributes) => (0, Some(attributes)),
            Self::Guarded(attributes) => (1, Some(attributes)),
            Self::Exclusive(_) => (2, None),
        };
        number.encode(out);
        match (self, attributes) {
            (Self::Exclusive(verifier), _) => verifier.encode(out),
            (_, attributes) => attributes.iter().for_each(|attributes| attributes.encode(out)),
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        Ok(match input.read()? {
            0 => Self::Unchecked(input.read()?),
            1 => Self::Guarded(input.read()?),
            2 => Self::Exclusive(input.read()?),
            value => return Err(XdrError::Value { what: "how a file is made", value }),
        })
    }
}

/// A name in a directory: what is made, removed or renamed.
pub type Entry<'a> = LookupArguments<'a>;

xdr_struct! {
    CreateArguments<'a> {
        at: Entry<'a>,
        how: CreateMode,
    }
}

xdr_struct! {
    MakeDirectoryArguments<'a> {
        at: Entry<'a>,
        attributes: NewAttributes,
    }
}

/// The path of a new symbolic link. As names, longer ones than any file system has are decoded.
pub type NewPath<'a> = Text<'a, { ARGUMENT_BYTES_MAX }>;

xdr_struct! {
    SymbolicLinkArguments<'a> {
        at: Entry<'a>,
        attributes: NewAttributes,
        path: NewPath<'a>,
    }
}

/// A file that is none of bytes: mknoddata3 of the RFC. Types for which that has nothing are decoded, so that
/// they can be refused by their own status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewNode {
    pub file_type: FileType,
    pub attributes: NewAttributes,
    /// Of a device.
    pub major: u32,
    pub minor: u32,
}

impl Xdr<'_> for NewNode {
    fn encode(&self, out: &mut Vec<u8>) {
        self.file_type.encode(out);
        if matches!(self.file_type, FileType::Regular | FileType::Directory | FileType::SymbolicLink) {
            return;
        }
        self.attributes.encode(out);
        if matches!(self.file_type, FileType::CharacterDevice | FileType::BlockDevice) {
            (self.major, self.minor).encode(out);
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        let file_type = FileType::from_number(input.read()?).unwrap_or(FileType::Regular);
        let mut node = Self { file_type, attributes: NewAttributes::NONE, major: 0, minor: 0 };
        match file_type {
            FileType::CharacterDevice | FileType::BlockDevice => {
                (node.attributes, (node.major, node.minor)) = input.read()?;
            }
            FileType::Socket | FileType::Fifo => node.attributes = input.read()?,
            _ => drop(input.bytes(input.rest().len())?),
        }
        Ok(node)
    }
}

xdr_struct! {
    MakeNodeArguments<'a> {
        at: Entry<'a>,
        node: NewNode,
    }
}

xdr_struct! {
    RenameArguments<'a> {
        from: Entry<'a>,
        to: Entry<'a>,
    }
}

xdr_struct! {
    LinkArguments<'a> {
        file: FileHandle,
        at: Entry<'a>,
    }
}

xdr_struct! {
    CommitArguments {
        file: FileHandle,
        offset: u64,
        /// 0: up to the end.
        count: u32,
    }
}

xdr_struct! {
    CommitResult {
        changed: WeakCacheConsistency,
        verifier: Verifier,
    }
}

xdr_struct! {
    /// Results of CREATE, MKDIR and SYMLINK.
    CreateResult {
        file: Option<FileHandle>,
        attributes: Option<Attributes>,
        directory: WeakCacheConsistency,
    }
}

xdr_struct! {
    /// Results of LINK, successful or refused.
    LinkResult {
        attributes: Option<Attributes>,
        directory: WeakCacheConsistency,
    }
}

xdr_struct! {
    /// Results of RENAME, successful or refused.
    RenameResult {
        from: WeakCacheConsistency,
        to: WeakCacheConsistency,
    }
}
