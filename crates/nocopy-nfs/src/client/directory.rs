//! Listing a directory.

use super::core::{BadReply, ProcedureNumber};
use super::files::check_name;
use super::{CallDescription, Client, ClientError, FileInfo};
use crate::wire::nfs3::{
    Attributes, DirectoryEntry, DirectoryPage, FileHandle, FullDirectoryEntry, NfsResult, Procedure,
    ReadDirArguments, ReadDirPlusArguments, Status,
};
use crate::wire::xdr::{self, Xdr, XdrError};

/// Bytes of a directory per call, and the longest accepted reply: servers count differently.
const PAGE_BYTES: u32 = 64 << 10;
const REPLY_BYTES_MAX: usize = 4 * PAGE_BYTES as usize;

/// A directory whose entries take more memory is taken for endless.
pub(crate) const LISTING_BYTES_MAX: usize = 1 << 30;

/// A name in a directory, and the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub info: FileInfo,
}

/// An entry as received: servers may leave out the handle and the attributes.
struct RawEntry {
    name: Vec<u8>,
    cookie: u64,
    file: Option<FileHandle>,
    attributes: Option<Attributes>,
}

impl From<FullDirectoryEntry<'_>> for RawEntry {
    fn from(FullDirectoryEntry { name, cookie, file, attributes, .. }: FullDirectoryEntry<'_>) -> Self {
        Self { name: name.0.to_vec(), cookie, file, attributes }
    }
}

impl From<DirectoryEntry<'_>> for RawEntry {
    fn from(DirectoryEntry { name, cookie, .. }: DirectoryEntry<'_>) -> Self {
        Self { name: name.0.to_vec(), cookie, file: None, attributes: None }
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct Cursor {
    cookie: u64,
    verifier: [u8; 8],
}

struct EntryPage {
    entries: Vec<RawEntry>,
    verifier: [u8; 8],
    is_end: bool,
}

impl Client {
    /// All entries of a directory, in the server's order, without `.` and `..`. Entries that are removed
    /// meanwhile may be missing.
    ///
    /// # Errors
    /// As [`list_within`](Self::list_within), for entries of 1 GiB: some millions.
    pub fn list(&mut self, directory: FileHandle) -> Result<Vec<Entry>, ClientError> {
        self.list_within(directory, LISTING_BYTES_MAX)
    }

    /// As [`list`](Self::list), with at most so many bytes of memory.
    ///
    /// # Errors
    /// See [`ClientError`]. A directory whose entries take more memory is a [bad
    /// reply](BadReply::EndlessDirectory).
    pub fn list_within(
        &mut self,
        directory: FileHandle,
        bytes_max: usize,
    ) -> Result<Vec<Entry>, ClientError> {
        Ok(self.list_until_stopped(directory, bytes_max, || false)?.expect("never stopped"))
    }

    /// As [`list`](Self::list); `None` if it was stopped: that is asked before each entry.
    pub(crate) fn list_until_stopped(
        &mut self,
        directory: FileHandle,
        bytes_max: usize,
        is_stopped: impl Fn() -> bool,
    ) -> Result<Option<Vec<Entry>>, ClientError> {
        let (mut all, mut at, mut is_full) = (Vec::new(), Cursor::default(), true);
        let mut bytes = 0;
        loop {
            let page = match self.read_page(directory, at, is_full) {
                // Some servers do not support READDIRPLUS, or not for every directory.
                Err(error) if is_full && error.status() == Some(Status::NotSupported) => {
                    is_full = false;
                    continue;
                }
                page => page?,
            };
            let cookie = page.entries.last().map(|last| last.cookie);
            for raw in page.entries {
                if is_stopped() {
                    return Ok(None);
                }
                bytes += size_of::<Entry>() + raw.name.len();
                if !matches!(raw.name.as_slice(), b"." | b"..") {
                    check_name(&raw.name).map_err(bad_listing_error)?;
                    self.add_entry(directory, raw, &mut all)?;
                }
            }
            at = match cookie {
                _ if page.is_end => return Ok(Some(all)),
                Some(cookie) if cookie != at.cookie && bytes < bytes_max => {
                    Cursor { cookie, verifier: page.verifier }
                }
                _ => return Err(bad_listing_error(BadReply::EndlessDirectory)),
            };
        }
    }

    fn add_entry(
        &mut self,
        directory: FileHandle,
        raw: RawEntry,
        all: &mut Vec<Entry>,
    ) -> Result<(), ClientError> {
        let found = match (raw.file, raw.attributes) {
            (Some(file), Some(attributes)) => FileInfo { file, attributes },
            _ => match self.look_up(directory, &raw.name) {
                // Removed since.
                Err(error) if matches!(error.status(), Some(Status::NoEntry | Status::Stale)) => {
                    return Ok(());
                }
                found => found?,
            },
        };
        all.push(Entry { name: raw.name, info: found });
        Ok(())
    }

    fn read_page(
        &mut self,
        directory: FileHandle,
        at: Cursor,
        is_full: bool,
    ) -> Result<EntryPage, ClientError> {
        let procedure: ProcedureNumber =
            if is_full { Procedure::ReadDirPlus.into() } else { Procedure::ReadDir.into() };
        let asked = CallDescription { procedure, bytes_max: REPLY_BYTES_MAX, subject: "", what: "listed" };
        let Cursor { cookie, verifier } = at;
        if is_full {
            let (names_bytes_max, bytes_max) = (PAGE_BYTES / 4, PAGE_BYTES);
            let arguments = ReadDirPlusArguments { directory, cookie, verifier, names_bytes_max, bytes_max };
            return self
                .call_and_parse(&asked, &arguments, |results| parse_page::<FullDirectoryEntry<'_>>(results));
        }
        let arguments = ReadDirArguments { directory, cookie, verifier, bytes_max: PAGE_BYTES };
        self.call_and_parse(&asked, &arguments, |results| parse_page::<DirectoryEntry<'_>>(results))
    }
}

fn bad_listing_error(source: BadReply) -> ClientError {
    ClientError::BadReply { subject: "a directory".into(), what: "listed", source }
}

type PageResult = Result<NfsResult<EntryPage, Option<Attributes>>, XdrError>;

fn parse_page<'a, E: Xdr<'a> + Into<RawEntry>>(results: &'a [u8]) -> PageResult {
    let page: NfsResult<DirectoryPage<E>, _> = xdr::parse(results)?;
    Ok(page.map(|page| EntryPage {
        entries: page.entries.into_iter().map(Into::into).collect(),
        verifier: page.verifier,
        is_end: page.is_end,
    }))
}
