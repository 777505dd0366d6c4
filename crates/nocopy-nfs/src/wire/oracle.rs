//! Properties of arbitrary bytes: shared by the tests and the fuzz target.

use super::mount::{self, ExportEntry, MountEntry, MountReply};
use super::nfs3::{
    AccessArguments, AccessResult, Attributes, CommitArguments, CommitResult, CreateArguments, Created,
    DirectoryEntry, DirectoryPage, FileHandle, FileSystemInformation, FileSystemStatus, FullDirectoryEntry,
    LinkArguments, Linked, LookupArguments, LookupResult, MakeDirectoryArguments, NfsResult,
    PathConfiguration, ReadArguments, ReadDirArguments, ReadDirPlusArguments, ReadHead, ReadLinkResult,
    RenameArguments, Renamed, SetAttributesArguments, SymbolicLinkArguments, WeakCacheConsistency,
    WriteArguments, WriteResult,
};
use super::portmap::Mapping;
use super::record::Records;
use super::rpc::{Call, Reply};
use super::xdr::{self, Reader, Xdr};

/// Decoded values are encoded as they were, except that padding becomes zeros.
///
/// # Panics
/// The property does not hold, or decoding panics.
pub fn check(bytes: &[u8]) {
    check_records(bytes);
    let _ = Reply::decode(&mut Reader::new(bytes));
    if let Ok(call) = Call::parse(bytes) {
        let mut out = Vec::new();
        call.encode(&mut out);
        assert_eq!(Call::parse(&out), Ok(call));
    }
    both_ways::<FileHandle>(bytes);
    both_ways::<LookupArguments<'_>>(bytes);
    both_ways::<AccessArguments>(bytes);
    both_ways::<ReadArguments>(bytes);
    both_ways::<ReadDirArguments>(bytes);
    both_ways::<ReadDirPlusArguments>(bytes);
    both_ways::<NfsResult<Attributes, ()>>(bytes);
    both_ways::<NfsResult<LookupResult, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<AccessResult, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<ReadLinkResult<'_>, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<ReadHead, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<DirectoryPage<DirectoryEntry<'_>>, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<DirectoryPage<FullDirectoryEntry<'_>>, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<FileSystemStatus, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<FileSystemInformation, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<PathConfiguration, Option<Attributes>>>(bytes);
    both_ways::<NfsResult<(), WeakCacheConsistency>>(bytes);
    both_ways::<SetAttributesArguments>(bytes);
    both_ways::<WriteArguments<'_>>(bytes);
    both_ways::<CreateArguments<'_>>(bytes);
    both_ways::<MakeDirectoryArguments<'_>>(bytes);
    both_ways::<SymbolicLinkArguments<'_>>(bytes);
    both_ways::<RenameArguments<'_>>(bytes);
    both_ways::<LinkArguments<'_>>(bytes);
    both_ways::<CommitArguments>(bytes);
    both_ways::<NfsResult<WriteResult, WeakCacheConsistency>>(bytes);
    both_ways::<NfsResult<Created, WeakCacheConsistency>>(bytes);
    both_ways::<NfsResult<CommitResult, WeakCacheConsistency>>(bytes);
    both_ways::<NfsResult<Linked, Linked>>(bytes);
    both_ways::<NfsResult<Renamed, Renamed>>(bytes);
    both_ways::<mount::Path<'_>>(bytes);
    both_ways::<MountReply>(bytes);
    both_ways::<Vec<MountEntry<'_>>>(bytes);
    both_ways::<Vec<ExportEntry<'_>>>(bytes);
    both_ways::<Vec<Mapping>>(bytes);
}

fn both_ways<'a, T: Xdr<'a> + PartialEq + std::fmt::Debug>(bytes: &'a [u8]) {
    let Ok(value) = xdr::parse::<T>(bytes) else { return };
    let mut out = Vec::new();
    value.encode(&mut out);
    assert_eq!(out.len(), bytes.len(), "{value:?}");
}

fn check_records(bytes: &[u8]) {
    const BYTES_MAX: usize = 128;
    let mut records = Records::new(BYTES_MAX);
    for piece in bytes.chunks(7) {
        records.push(piece);
        loop {
            match records.take() {
                Ok(Some(record)) => assert!(record.len() <= BYTES_MAX),
                Ok(None) => break,
                Err(error) => return assert!(error.bytes > BYTES_MAX),
            }
        }
        assert!(records.held() <= BYTES_MAX + 4 + 7);
    }
}
