//! Parts of directories.

use rustix::fs::Access;

use super::{Core, encode_success};
use crate::export::{Caller, FileInfo, ListingEntry};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    Attributes, DirectoryEntry, DirectoryPage, FileHandle, FullDirectoryEntry, NfsResult, ReadDirArguments,
    ReadDirPlusArguments, Refusal, Status,
};
use crate::wire::xdr::{Xdr, padding};

/// The longest part of a directory in a reply, whatever was requested.
const PAGE_BYTES_MAX: usize = 64 << 10;

/// Bytes of a part without entries: attributes, verifier, and the two final words.
const PAGE_BYTES: usize = 4 + Attributes::BYTES + 8 + 4 + 4;

/// Bytes of an entry after its cookie: attributes, and a handle.
const FULL_BYTES: usize = 4 + Attributes::BYTES + 4 + 4 + 40;

/// A part of a directory that is to be listed.
#[derive(Debug, Clone, Copy)]
pub struct ListCall {
    xid: u32,
    caller: Caller,
    directory: FileHandle,
    cookie: u64,
    /// The limit of names, numbers and cookies; `None`: only names are requested.
    names_bytes_max: Option<usize>,
    bytes_max: usize,
}

impl ListCall {
    pub(super) fn for_readdir(xid: u32, caller: Caller, asked: &ReadDirArguments) -> Self {
        Self {
            xid,
            caller,
            directory: asked.directory,
            cookie: asked.cookie,
            names_bytes_max: None,
            bytes_max: (asked.bytes_max as usize).min(PAGE_BYTES_MAX),
        }
    }

    pub(super) fn for_readdirplus(xid: u32, caller: Caller, asked: &ReadDirPlusArguments) -> Self {
        Self {
            xid,
            caller,
            directory: asked.directory,
            cookie: asked.cookie,
            names_bytes_max: Some(asked.names_bytes_max as usize),
            bytes_max: (asked.bytes_max as usize).min(PAGE_BYTES_MAX),
        }
    }

    /// How many of the names fit into the reply. The first may exceed the limit of names: a client with a low
    /// limit could not continue otherwise.
    fn fitting_count(&self, names: &[ListingEntry]) -> usize {
        let (mut names_bytes, mut bytes) = (0, PAGE_BYTES);
        let full_bytes = self.names_bytes_max.map_or(0, |_| FULL_BYTES);
        let names_bytes_max = self.names_bytes_max.unwrap_or(usize::MAX);
        let mut count = 0;
        for name in names {
            let entry = DirectoryEntry::BYTES + name.bytes.len() + padding(name.bytes.len());
            names_bytes += entry;
            bytes += entry + full_bytes;
            if bytes > self.bytes_max || (names_bytes > names_bytes_max && count > 0) {
                break;
            }
            count += 1;
        }
        count
    }
}

impl Core {
    /// The whole reply.
    pub fn answer_list(&self, call: &ListCall) -> Vec<u8> {
        let is_full = call.names_bytes_max.is_some();
        let page = self.export.file_by_handle(&call.directory).and_then(|directory| {
            let listing = self.export.list(&call.caller, &directory, call.cookie)?;
            Ok((directory, listing))
        });
        let (directory, listing) = match page {
            Ok(found) => found,
            Err(status) => return refusal_reply(call.xid, status, None),
        };
        let attributes = directory.attributes().ok();
        let names = listing.entries_after(call.cookie);
        let count = call.fitting_count(names);
        if count == 0 && !names.is_empty() {
            return refusal_reply(call.xid, Status::TooSmall, attributes);
        }
        let (taken, is_end) = (&names[..count], count == names.len() && !listing.is_truncated());
        if !is_full {
            let entries = taken.iter().map(directory_entry).collect();
            return page_reply(call.xid, attributes, entries, is_end);
        }
        let may_search = directory.may_access(&call.caller, Access::EXEC_OK);
        let found =
            |name| may_search.then(|| self.export.listed_file_info(&directory, &listing, name)).flatten();
        let full = |name| full_entry(name, found(name));
        let reply = page_reply(call.xid, attributes, taken.iter().map(full).collect(), is_end);
        self.save_index();
        reply
    }
}

/// An entry with attributes and handle; without them, if the file no longer exists, or the look-up would be
/// refused.
fn full_entry(name: &ListingEntry, found: Option<FileInfo>) -> FullDirectoryEntry<'_> {
    FullDirectoryEntry {
        file_id: name.file_id,
        name: Text(&name.bytes),
        cookie: name.cookie,
        attributes: found.map(|found| found.attributes),
        file: found.map(|found| found.handle),
    }
}

fn directory_entry(name: &ListingEntry) -> DirectoryEntry<'_> {
    DirectoryEntry { file_id: name.file_id, name: Text(&name.bytes), cookie: name.cookie }
}

fn page_reply<'a, E: Xdr<'a>>(
    xid: u32,
    attributes: Option<Attributes>,
    entries: Vec<E>,
    is_end: bool,
) -> Vec<u8> {
    let page = DirectoryPage { attributes, verifier: [0; 8], entries, is_end };
    encode_success(xid, &NfsResult::<_, Option<Attributes>>::Ok(page))
}

fn refusal_reply(xid: u32, status: Status, rest: Option<Attributes>) -> Vec<u8> {
    encode_success(xid, &NfsResult::<(), _>::Err(Refusal { status, rest }))
}
