//! Looking up, making, removing and renaming files.

use std::path::Path;

use super::core::BadReply;
use super::url::escape_path;
use super::{Client, ClientError};
use crate::wire::mount::Text;
use crate::wire::nfs3::{
    Attributes, CreateArguments, CreateMode, CreateResult, Entry as At, FileHandle, FileType, LinkArguments,
    LinkResult, LookupResult, MakeDirectoryArguments, MakeNodeArguments, NewAttributes, NewNode, Procedure,
    ReadLinkResult, RenameArguments, RenameResult, SetAttributesArguments, SymbolicLinkArguments,
    WeakCacheConsistency,
};
use crate::wire::xdr;

/// The longest reply to READLINK: a path and attributes.
const LINK_REPLY_BYTES_MAX: usize = 8192;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileInfo {
    pub file: FileHandle,
    pub attributes: Attributes,
}

impl Client {
    /// The current attributes of a file.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn attributes(&mut self, file: FileHandle) -> Result<Attributes, ClientError> {
        self.call::<_, ()>(Procedure::GetAttr, &file, ("", "looked at"))
    }

    /// Looks up a name in a directory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn look_up(&mut self, directory: FileHandle, name: &[u8]) -> Result<FileInfo, ClientError> {
        let subject = escape_path(name);
        let asked = At { directory, name: Text(name) };
        let found: LookupResult =
            self.call::<_, Option<Attributes>>(Procedure::Lookup, &asked, (&subject, "found"))?;
        let attributes = match found.attributes {
            Some(attributes) => attributes,
            None => self.attributes(found.file)?,
        };
        Ok(FileInfo { file: found.file, attributes })
    }

    /// The file at a path below the mounted directory. Symbolic links are not followed.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn walk(&mut self, path: &Path) -> Result<FileInfo, ClientError> {
        use std::os::unix::ffi::OsStrExt;
        let root = self.root;
        let mut at = FileInfo { file: root, attributes: self.attributes(root)? };
        for part in path.components() {
            if let std::path::Component::Normal(name) = part {
                at = self.look_up(at.file, name.as_bytes())?;
            }
        }
        Ok(at)
    }

    /// The target of a symbolic link.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn read_link(&mut self, link: FileHandle) -> Result<Vec<u8>, ClientError> {
        let asked = super::CallDescription {
            procedure: Procedure::ReadLink.into(),
            bytes_max: LINK_REPLY_BYTES_MAX,
            subject: "",
            what: "read as a link",
        };
        self.call_and_parse::<_, Option<Attributes>>(&asked, &link, |results| {
            let read: crate::wire::nfs3::NfsResult<ReadLinkResult<'_>, _> = xdr::parse(results)?;
            Ok(read.map(|link| link.path.0.to_vec()))
        })
    }

    /// Makes a file. `how` decides what happens if the name exists.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn create(
        &mut self,
        directory: FileHandle,
        name: &[u8],
        how: CreateMode,
    ) -> Result<FileInfo, ClientError> {
        let at = At { directory, name: Text(name) };
        self.create_entry(Procedure::Create, at, &CreateArguments { at, how })
    }

    /// Makes a directory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn make_directory(
        &mut self,
        directory: FileHandle,
        name: &[u8],
        attributes: NewAttributes,
    ) -> Result<FileInfo, ClientError> {
        let at = At { directory, name: Text(name) };
        self.create_entry(Procedure::MakeDirectory, at, &MakeDirectoryArguments { at, attributes })
    }

    /// Makes a symbolic link with any target.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn make_link(
        &mut self,
        directory: FileHandle,
        name: &[u8],
        target: &[u8],
        attributes: NewAttributes,
    ) -> Result<FileInfo, ClientError> {
        let at = At { directory, name: Text(name) };
        let asked = SymbolicLinkArguments { at, attributes, path: Text(target) };
        self.create_entry(Procedure::SymbolicLink, at, &asked)
    }

    /// Makes a FIFO, a socket or a device.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn make_node(
        &mut self,
        directory: FileHandle,
        name: &[u8],
        node: NewNode,
    ) -> Result<FileInfo, ClientError> {
        let at = At { directory, name: Text(name) };
        self.create_entry(Procedure::MakeNode, at, &MakeNodeArguments { at, node })
    }

    /// Gives a file one more name (a hard link).
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn link(&mut self, file: FileHandle, directory: FileHandle, name: &[u8]) -> Result<(), ClientError> {
        let subject = escape_path(name);
        let asked = LinkArguments { file, at: At { directory, name: Text(name) } };
        self.call::<LinkResult, LinkResult>(Procedure::Link, &asked, (&subject, "linked")).map(drop)
    }

    fn create_entry<'a>(
        &mut self,
        procedure: Procedure,
        at: At<'_>,
        asked: &impl xdr::Xdr<'a>,
    ) -> Result<FileInfo, ClientError> {
        let subject = escape_path(at.name.0);
        let made = self.call::<CreateResult, WeakCacheConsistency>(procedure, asked, (&subject, "made"))?;
        match (made.file, made.attributes) {
            (Some(file), Some(attributes)) => Ok(FileInfo { file, attributes }),
            // The server may leave these out.
            _ => self.look_up(at.directory, at.name.0),
        }
    }

    /// Removes a file or symbolic link.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove(&mut self, directory: FileHandle, name: &[u8]) -> Result<(), ClientError> {
        self.remove_by_procedure(Procedure::Remove, directory, name)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn remove_directory(&mut self, directory: FileHandle, name: &[u8]) -> Result<(), ClientError> {
        self.remove_by_procedure(Procedure::RemoveDirectory, directory, name)
    }

    fn remove_by_procedure(
        &mut self,
        procedure: Procedure,
        directory: FileHandle,
        name: &[u8],
    ) -> Result<(), ClientError> {
        let subject = escape_path(name);
        let at = At { directory, name: Text(name) };
        self.call::<WeakCacheConsistency, WeakCacheConsistency>(procedure, &at, (&subject, "removed"))
            .map(drop)
    }

    /// Renames a file, also into another directory. An existing file of the new name is replaced.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn rename(
        &mut self,
        (from_directory, from): (FileHandle, &[u8]),
        (to_directory, to): (FileHandle, &[u8]),
    ) -> Result<(), ClientError> {
        let subject = escape_path(from);
        let asked = RenameArguments {
            from: At { directory: from_directory, name: Text(from) },
            to: At { directory: to_directory, name: Text(to) },
        };
        self.call::<RenameResult, RenameResult>(Procedure::Rename, &asked, (&subject, "renamed")).map(drop)
    }

    /// Changes permissions, owner, length or times. Returns the attributes after that, if the server reports
    /// them.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn set_attributes(
        &mut self,
        file: FileHandle,
        new: NewAttributes,
    ) -> Result<Option<Attributes>, ClientError> {
        let asked = SetAttributesArguments { file, new, guard: None };
        let changed: WeakCacheConsistency =
            self.call::<_, WeakCacheConsistency>(Procedure::SetAttr, &asked, ("", "changed"))?;
        Ok(changed.after)
    }
}

/// Checks that a name from the server has no slash, so that a program that makes such a file cannot make it
/// in another directory.
pub(super) fn check_name(name: &[u8]) -> Result<(), BadReply> {
    let is_elsewhere = name.is_empty() || name.contains(&b'/') || name.contains(&0);
    if is_elsewhere { Err(BadReply::Name) } else { Ok(()) }
}

impl FileInfo {
    pub fn is_regular(&self) -> bool {
        self.attributes.file_type == FileType::Regular
    }

    pub fn is_directory(&self) -> bool {
        self.attributes.file_type == FileType::Directory
    }
}
