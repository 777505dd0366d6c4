//! The procedures of NFS. Without `writable`, calls that change something are refused, with the present
//! attributes.

use std::sync::Arc;

use rustix::fs::Access;

use super::{
    Answer, CallOrigin, Core, ListCall, ReadCall, RefusalReply, decode_arguments, encode_read_reply,
    encode_success,
};
use crate::export::{Caller, FileSystemLimits, OpenFile};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    ARGUMENT_BYTES_MAX, AccessArguments, AccessResult, Attributes, FileHandle, FileSystemInformation,
    FileSystemStatus, FileType, LookupArguments, LookupResult, NfsResult, PathConfiguration, Procedure,
    ReadArguments, ReadDirArguments, ReadDirPlusArguments, ReadLinkResult, Refusal, Status, Time,
    WRITE_BYTES_MAX, WeakCacheConsistency,
};
use crate::wire::rpc::{Call, Reply};
use crate::wire::xdr::{Reader, XdrError};

/// The longest read: the most bytes of a pipe without privileges.
pub const READ_BYTES_MAX: u32 = 1 << 20;

/// The write size announced to clients if writing is refused: small ones cost less.
const REFUSED_WRITE_BYTES_MAX: u32 = 32 << 10;

/// The announced size of a part of a directory.
const DIRECTORY_BYTES: u32 = 64 << 10;

/// Results, or a status with attributes.
type Outcome<T> = NfsResult<T, Option<Attributes>>;

impl Core {
    pub(super) fn answer_nfs(&self, call: &Call<'_>, from: CallOrigin) -> Result<Answer, RefusalReply> {
        let procedure = Procedure::from_number(call.procedure).ok_or(Reply::ProcedureUnavailable)?;
        let caller = self.callers.map_credential(&call.credential, from.address).map_err(Reply::Denied)?;
        if self.is_writable && procedure.is_change() {
            return self.execute_change(call, procedure, &caller, from);
        }
        let xid = call.xid;
        Ok(Answer::Reply(match procedure {
            Procedure::Null => encode_success(xid, &()),
            Procedure::GetAttr => encode_success(xid, &self.get_attributes(&decode_arguments(call)?)),
            Procedure::Lookup => {
                let found = self.look_up(&caller, decode_arguments(call)?);
                self.save_index();
                encode_success(xid, &found)
            }
            Procedure::Access => encode_success(xid, &self.access(&caller, &decode_arguments(call)?)),
            Procedure::ReadLink => self.read_link(xid, &decode_arguments(call)?),
            Procedure::Read => {
                let ReadArguments { file, offset, bytes } = decode_arguments(call)?;
                let bytes = bytes.min(READ_BYTES_MAX) as usize;
                return Ok(Answer::Read(ReadCall { xid, caller, file, offset, bytes }));
            }
            Procedure::ReadDir => {
                let asked: ReadDirArguments = decode_arguments(call)?;
                return Ok(Answer::List(ListCall::for_readdir(xid, caller, &asked)));
            }
            Procedure::ReadDirPlus => {
                let asked: ReadDirPlusArguments = decode_arguments(call)?;
                return Ok(Answer::List(ListCall::for_readdirplus(xid, caller, &asked)));
            }
            Procedure::FsStat => encode_success(xid, &self.file_system_status(&decode_arguments(call)?)),
            Procedure::FsInfo => encode_success(xid, &self.file_system_information(&decode_arguments(call)?)),
            Procedure::PathConf => encode_success(xid, &self.path_configuration(&decode_arguments(call)?)),
            change => self.refuse_change(call, change).map_err(|_| Reply::GarbageArguments)?,
        }))
    }

    fn get_attributes(&self, file: &FileHandle) -> NfsResult<Attributes, ()> {
        let attributes = self.export.file_by_handle(file).and_then(|file| file.attributes());
        attributes.map_err(|status| Refusal { status, rest: () })
    }

    fn look_up(&self, caller: &Caller, asked: LookupArguments<'_>) -> Outcome<LookupResult> {
        let directory = self.export.file_by_handle(&asked.directory).map_err(refusal_without_attributes)?;
        let found = self.export.lookup(caller, &directory, asked.name.0);
        let directory_attributes = directory.attributes().ok();
        let found = found.map_err(|status| Refusal { status, rest: directory_attributes })?;
        Ok(LookupResult { file: found.handle, attributes: Some(found.attributes), directory_attributes })
    }

    /// The permissions of the caller, as the kernel decides.
    fn access(&self, caller: &Caller, asked: &AccessArguments) -> Outcome<AccessResult> {
        let (file, attributes) = self.file_and_attributes(&asked.file)?;
        let execute = match file.file_type() {
            FileType::Directory => AccessArguments::LOOKUP,
            _ => AccessArguments::EXECUTE,
        };
        let mut kinds = vec![(AccessArguments::READ, Access::READ_OK), (execute, Access::EXEC_OK)];
        if self.is_writable {
            let write = AccessArguments::MODIFY | AccessArguments::EXTEND;
            kinds.push(match file.file_type() {
                // Adding and removing names also requires that the directory can be searched.
                FileType::Directory => (write | AccessArguments::DELETE, Access::WRITE_OK | Access::EXEC_OK),
                _ => (write, Access::WRITE_OK),
            });
        }
        let allowed =
            |&(bits, access): &(u32, Access)| asked.access & bits != 0 && file.may_access(caller, access);
        let access =
            kinds.iter().filter(|kind| allowed(kind)).fold(0, |all, (bits, _)| all | bits & asked.access);
        Ok(AccessResult { attributes: Some(attributes), access })
    }

    fn read_link(&self, xid: u32, link: &FileHandle) -> Vec<u8> {
        let read = self.file_and_attributes(link).and_then(|(link, attributes)| {
            let path = self.export.read_link(&link);
            path.map(|path| (path, attributes)).map_err(|status| Refusal { status, rest: Some(attributes) })
        });
        let result: Outcome<ReadLinkResult<'_>> = match &read {
            Ok((path, attributes)) => Ok(ReadLinkResult { attributes: Some(*attributes), path: Text(path) }),
            Err(refusal) => Err(*refusal),
        };
        encode_success(xid, &result)
    }

    /// Opens a file that is to be read.
    ///
    /// # Errors
    /// The reply to a read that is refused.
    pub fn open_for_read(&self, call: &ReadCall) -> Result<Arc<OpenFile>, Vec<u8>> {
        let status = match self.export.readable_file(&call.caller, &call.file) {
            Ok(file) if file.file_type() == FileType::Directory => Status::IsDirectory,
            Ok(file) => return Ok(file),
            Err(status) => status,
        };
        let attributes = self.export.file_by_handle(&call.file).and_then(|file| file.attributes());
        Err(encode_read_reply(call.xid, Err(Refusal { status, rest: attributes.ok() })))
    }

    fn file_system_status(&self, asked: &FileHandle) -> Outcome<FileSystemStatus> {
        let (file, attributes) = self.file_and_attributes(asked)?;
        let status = self.export.file_system_sizes(&file);
        let status = status.map_err(|status| Refusal { status, rest: Some(attributes) })?;
        let bytes = |blocks: u64| blocks.saturating_mul(status.f_frsize);
        Ok(FileSystemStatus {
            attributes: Some(attributes),
            bytes: bytes(status.f_blocks),
            bytes_free: bytes(status.f_bfree),
            bytes_available: bytes(status.f_bavail),
            files: status.f_files,
            files_free: status.f_ffree,
            files_available: status.f_favail,
            seconds_unchanged: 0,
        })
    }

    fn file_system_information(&self, asked: &FileHandle) -> Outcome<FileSystemInformation> {
        let (attributes, limits) = self.file_limits(asked)?;
        let (mut properties, mut write_max) =
            (FileSystemInformation::IS_HOMOGENEOUS, REFUSED_WRITE_BYTES_MAX);
        if limits.links_max > 1 {
            properties |= FileSystemInformation::HAS_LINKS;
        }
        if limits.has_symbolic_links {
            properties |= FileSystemInformation::HAS_SYMBOLIC_LINKS;
        }
        if self.is_writable {
            properties |= FileSystemInformation::CAN_SET_TIMES;
            write_max = WRITE_BYTES_MAX as u32;
        }
        Ok(FileSystemInformation {
            attributes: Some(attributes),
            read_max: READ_BYTES_MAX,
            read_preferred: READ_BYTES_MAX,
            read_multiple: 4096,
            write_max,
            write_preferred: write_max,
            write_multiple: 4096,
            directory_preferred: DIRECTORY_BYTES,
            file_bytes_max: limits.file_bytes_max,
            time_step: Time {
                seconds: (limits.time_step_ns / 1_000_000_000) as u32,
                nanoseconds: (limits.time_step_ns % 1_000_000_000) as u32,
            },
            properties,
        })
    }

    fn path_configuration(&self, asked: &FileHandle) -> Outcome<PathConfiguration> {
        let (attributes, limits) = self.file_limits(asked)?;
        Ok(PathConfiguration {
            attributes: Some(attributes),
            links_max: limits.links_max,
            name_bytes_max: limits.name_bytes_max,
            no_truncation: !limits.cuts_names,
            // Linux lets only CAP_CHOWN give files away, on every file system.
            is_chown_restricted: true,
            ignores_case: limits.ignores_case,
            preserves_case: limits.preserves_case,
        })
    }

    fn file_limits(&self, asked: &FileHandle) -> Outcome<(Attributes, FileSystemLimits)> {
        let (file, attributes) = self.file_and_attributes(asked)?;
        let limits = self.export.limits(&file);
        limits.map(|limits| (attributes, limits)).map_err(|status| Refusal { status, rest: Some(attributes) })
    }

    fn file_and_attributes(&self, handle: &FileHandle) -> Outcome<(Arc<OpenFile>, Attributes)> {
        let file = self.export.file_by_handle(handle).map_err(refusal_without_attributes)?;
        let attributes = file.attributes().map_err(refusal_without_attributes)?;
        Ok((file, attributes))
    }

    /// Only the handles of the arguments are read, because the reply depends on nothing else.
    fn refuse_change(&self, call: &Call<'_>, procedure: Procedure) -> Result<Vec<u8>, XdrError> {
        let mut input = Reader::new(call.arguments);
        let (status, first) = self.refusal_attributes(&input.read()?);
        let refused = match procedure {
            Procedure::Rename => {
                input.opaque(ARGUMENT_BYTES_MAX)?;
                let (_, target) = self.refusal_attributes(&input.read()?);
                encode_success(call.xid, &refusal(status, (first, target)))
            }
            Procedure::Link => {
                let (_, directory) = self.refusal_attributes(&input.read()?);
                encode_success(call.xid, &refusal(status, (first.after, directory)))
            }
            _ => encode_success(call.xid, &refusal(status, first)),
        };
        Ok(refused)
    }

    fn refusal_attributes(&self, handle: &FileHandle) -> (Status, WeakCacheConsistency) {
        match self.export.file_by_handle(handle).and_then(|file| file.attributes()) {
            Ok(attributes) => (Status::ReadOnlyFileSystem, WeakCacheConsistency::unchanged(Some(attributes))),
            Err(status) => (status, WeakCacheConsistency::unchanged(None)),
        }
    }
}

pub(super) fn is_change_call(call: &Call<'_>) -> bool {
    Procedure::from_number(call.procedure).is_some_and(Procedure::is_change)
}

/// Whether a refused change is answered with the attributes of a second file, too.
pub(super) fn returns_two_files(call: &Call<'_>) -> bool {
    matches!(Procedure::from_number(call.procedure), Some(Procedure::Rename | Procedure::Link))
}

/// The file of a call, and a name in it; `None` if there is none, or it is found later.
pub(super) fn file_and_name<'a>(call: &Call<'a>) -> Option<(FileHandle, Option<&'a [u8]>)> {
    let mut input = Reader::new(call.arguments);
    match Procedure::from_number(call.procedure)? {
        Procedure::Null | Procedure::Read | Procedure::ReadDir | Procedure::ReadDirPlus => None,
        Procedure::Lookup => {
            input.read().ok().map(|LookupArguments { directory, name }| (directory, Some(name.0)))
        }
        _ => input.read().ok().map(|file| (file, None)),
    }
}

/// A refusal without a file whose attributes could be returned.
fn refusal_without_attributes(status: Status) -> Refusal<Option<Attributes>> {
    Refusal { status, rest: None }
}

fn refusal<R>(status: Status, rest: R) -> NfsResult<(), R> {
    Err(Refusal { status, rest })
}
