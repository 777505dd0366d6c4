//! Properties of arbitrary bytes: shared by the tests and the fuzz target.

use super::mount::{self, ExportEntry, MountEntry, MountReply};
use super::nfs3::{
    AccessArguments, AccessResult, Attributes, CommitArguments, CommitResult, CreateArguments, CreateResult,
    DirectoryEntry, DirectoryPage, FileHandle, FileSystemInformation, FileSystemStatus, FullDirectoryEntry,
    LinkArguments, LinkResult, LookupArguments, LookupResult, MakeDirectoryArguments, NfsResult,
    PathConfiguration, ReadArguments, ReadDirArguments, ReadDirPlusArguments, ReadHead, ReadLinkResult,
    RenameArguments, RenameResult, SetAttributesArguments, SymbolicLinkArguments, WeakCacheConsistency,
    WriteArguments, WriteResult,
};
use super::portmap::Mapping;
use super::record::RecordAssembler;
use super::rpc::{Call, Reply};
use super::xdr::{self, Reader, Xdr};

/// Decoded values are encoded as they were, except that padding becomes zeros.
///
/// # Panics
/// The property does not hold, or decoding panics.
pub fn check_wire_formats(bytes: &[u8]) {
    check_records(bytes);
    let _ = Reply::decode(&mut Reader::new(bytes));
    if let Ok(call) = Call::parse(bytes) {
        let mut out = Vec::new();
        call.encode(&mut out);
        assert_eq!(Call::parse(&out), Ok(call));
    }
    check_round_trip::<FileHandle>(bytes);
    check_round_trip::<LookupArguments<'_>>(bytes);
    check_round_trip::<AccessArguments>(bytes);
    check_round_trip::<ReadArguments>(bytes);
    check_round_trip::<ReadDirArguments>(bytes);
    check_round_trip::<ReadDirPlusArguments>(bytes);
    check_round_trip::<NfsResult<Attributes, ()>>(bytes);
    check_round_trip::<NfsResult<LookupResult, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<AccessResult, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<ReadLinkResult<'_>, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<ReadHead, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<DirectoryPage<DirectoryEntry<'_>>, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<DirectoryPage<FullDirectoryEntry<'_>>, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<FileSystemStatus, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<FileSystemInformation, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<PathConfiguration, Option<Attributes>>>(bytes);
    check_round_trip::<NfsResult<(), WeakCacheConsistency>>(bytes);
    check_round_trip::<SetAttributesArguments>(bytes);
    check_round_trip::<WriteArguments<'_>>(bytes);
    check_round_trip::<CreateArguments<'_>>(bytes);
    check_round_trip::<MakeDirectoryArguments<'_>>(bytes);
    check_round_trip::<SymbolicLinkArguments<'_>>(bytes);
    check_round_trip::<RenameArguments<'_>>(bytes);
    check_round_trip::<LinkArguments<'_>>(bytes);
    check_round_trip::<CommitArguments>(bytes);
    check_round_trip::<NfsResult<WriteResult, WeakCacheConsistency>>(bytes);
    check_round_trip::<NfsResult<CreateResult, WeakCacheConsistency>>(bytes);
    check_round_trip::<NfsResult<CommitResult, WeakCacheConsistency>>(bytes);
    check_round_trip::<NfsResult<LinkResult, LinkResult>>(bytes);
    check_round_trip::<NfsResult<RenameResult, RenameResult>>(bytes);
    check_round_trip::<mount::Path<'_>>(bytes);
    check_round_trip::<MountReply>(bytes);
    check_round_trip::<Vec<MountEntry<'_>>>(bytes);
    check_round_trip::<Vec<ExportEntry<'_>>>(bytes);
    check_round_trip::<Vec<Mapping>>(bytes);
}

fn check_round_trip<'a, T: Xdr<'a> + PartialEq + std::fmt::Debug>(bytes: &'a [u8]) {
    let Ok(value) = xdr::parse::<T>(bytes) else { return };
    let mut out = Vec::new();
    value.encode(&mut out);
    assert_eq!(out.len(), bytes.len(), "{value:?}");
}

fn check_records(bytes: &[u8]) {
    const BYTES_MAX: usize = 128;
    let mut records = RecordAssembler::new(BYTES_MAX);
    for piece in bytes.chunks(7) {
        records.push(piece);
        loop {
            match records.take() {
                Ok(Some(record)) => assert!(record.len() <= BYTES_MAX),
                Ok(None) => break,
                Err(error) => return assert!(error.bytes > BYTES_MAX),
            }
        }
        assert!(records.buffered_bytes() <= BYTES_MAX + 4 + 7);
    }
}
