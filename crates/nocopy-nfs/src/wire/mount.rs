//! MOUNT, version 3 (RFC 1813, appendix I): how a client gets the first handle.

use super::nfs3::FileHandle;
use super::xdr::{Reader, Xdr, XdrError, put_opaque, xdr_enum, xdr_fields, xdr_struct};

pub const PROGRAM: u32 = 100_005;
pub const VERSION: u32 = 3;

pub const PATH_BYTES_MAX: usize = 1024;
pub const NAME_BYTES_MAX: usize = 255;

/// More flavors of authentication than exist.
const FLAVORS_MAX: u32 = 64;

xdr_enum! {
    Procedure, "a procedure of MOUNT" {
        Null = 0,
        Mount = 1,
        Dump = 2,
        Unmount = 3,
        UnmountAll = 4,
        Export = 5,
    }
}

xdr_enum! {
    /// Why a path is not mounted.
    Status, "a status of MOUNT" {
        NotPermitted = 1,
        NoEntry = 2,
        Io = 5,
        Access = 13,
        NotDirectory = 20,
        Invalid = 22,
        NameTooLong = 63,
        NotSupported = 10_004,
        ServerFault = 10_006,
    }
}

/// A path or a name of at most `MAX` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Text<'a, const MAX: usize>(pub &'a [u8]);

pub type Path<'a> = Text<'a, PATH_BYTES_MAX>;
pub type Name<'a> = Text<'a, NAME_BYTES_MAX>;

impl<'a, const MAX: usize> Xdr<'a> for Text<'a, MAX> {
    fn encode(&self, out: &mut Vec<u8>) {
        put_opaque(out, self.0);
    }

    fn decode(input: &mut Reader<'a>) -> Result<Self, XdrError> {
        input.opaque(MAX).map(Self)
    }
}

/// The reply to a client that may mount.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSuccess {
    pub handle: FileHandle,
    /// The accepted flavors of authentication.
    pub flavors: Vec<u32>,
}

pub type MountReply = Result<MountSuccess, Status>;

impl Xdr<'_> for MountReply {
    fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Ok(MountSuccess { handle, flavors }) => {
                0_u32.encode(out);
                handle.encode(out);
                u32::try_from(flavors.len()).expect("there are few flavors").encode(out);
                flavors.iter().for_each(|flavor| flavor.encode(out));
            }
            Err(status) => status.encode(out),
        }
    }

    fn decode(input: &mut Reader<'_>) -> Result<Self, XdrError> {
        let mut status = input.clone();
        if status.read::<u32>()? != 0 {
            return input.read().map(Err);
        }
        *input = status;
        let (handle, count) = (input.read()?, input.read()?);
        if count > FLAVORS_MAX {
            return Err(XdrError::AboveLimit { bytes: count as usize, max: FLAVORS_MAX as usize });
        }
        let flavors = (0..count).map(|_| input.read()).collect::<Result<_, _>>()?;
        Ok(Ok(MountSuccess { handle, flavors }))
    }
}

xdr_struct! {
    /// A mounted path: an element of what DUMP returns.
    MountEntry<'a> {
        client: Name<'a>,
        path: Path<'a>,
    }
}

/// An exported directory, and the networks that may mount it (none: all): an element of what EXPORT returns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportEntry<'a> {
    pub path: Path<'a>,
    pub groups: Vec<Name<'a>>,
}

xdr_fields!(<'a> ExportEntry<'a> { path, groups, });
