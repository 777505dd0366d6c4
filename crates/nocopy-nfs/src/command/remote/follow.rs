//! The file at a URL, through the server's symbolic links.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Component, Path, PathBuf};

use nocopy::Pool;

use super::arguments::ServerOptions;
use super::{Failure, RemoteFile, connect};
use crate::client::{Client, FileInfo, Url};
use crate::wire::nfs3::{FileHandle, FileType, Status};

/// The most symbolic links on the way to a file, as in Linux.
pub(in super::super) const LINKS_MAX: u32 = 40;

/// What to do with a symbolic link at the end of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FinalLinkHandling {
    Follow,
    Keep,
}

/// Where a path leads.
enum WalkResult {
    File(FileInfo),
    /// Out of this export, to a path from the server's root.
    Outside(PathBuf),
}

/// Connects to the server, and looks up the path, through symbolic links. Reads use buffers of the pool.
pub(super) fn look_up_url(
    url: &Url,
    options: &ServerOptions,
    pool: Option<&Pool>,
    last: FinalLinkHandling,
) -> Result<RemoteFile, Failure> {
    let (mut at, mut links) = (url.clone(), 0);
    loop {
        let (mut client, below) = connect(&at, options, pool)?;
        let export = at.path.ancestors().nth(below.components().count()).unwrap_or(Path::new("/"));
        match walk_path(&mut client, export, &below, last, &mut links)? {
            Some(WalkResult::File(found)) => return Ok(RemoteFile { client, info: found }),
            Some(WalkResult::Outside(path)) => at.path = path,
            None => return Err(Failure::Links { path: url.to_string() }),
        }
    }
}

/// A directory in which copies are made: that of the URL, or the one above it, with the name of the copy.
pub(super) fn open_destination(
    url: &Url,
    options: &ServerOptions,
    pool: &Pool,
) -> Result<(Client, FileHandle, Option<OsString>), Failure> {
    let is_absent = |failure: &Failure| match failure {
        Failure::Client(error) => error.status() == Some(Status::NoEntry),
        failure => matches!(failure, Failure::Links { .. }),
    };
    match look_up_url(url, options, Some(pool), FinalLinkHandling::Follow) {
        Ok(RemoteFile { client, info: found }) if found.is_directory() => {
            return Ok((client, found.file, None));
        }
        Err(failure) if !is_absent(&failure) => return Err(failure),
        // A link to a file, or to nothing, is replaced, as everything with the name of a copy.
        _ => {}
    }
    let above = Url { path: url.path.parent().unwrap_or(Path::new("/")).to_owned(), ..url.clone() };
    let RemoteFile { client, info: found } =
        look_up_url(&above, options, Some(pool), FinalLinkHandling::Follow)?;
    Ok((client, found.file, url.path.file_name().map(OsStr::to_owned)))
}

/// Looks up one name after another; `None`: too many links.
fn walk_path(
    client: &mut Client,
    export: &Path,
    below: &Path,
    last: FinalLinkHandling,
    links: &mut u32,
) -> Result<Option<WalkResult>, Failure> {
    let root = client.root();
    let mut visited = vec![FileInfo { file: root, attributes: client.attributes(root)? }];
    let mut left = PathBuf::from(below);
    loop {
        let mut parts = left.components();
        let Some(part) = parts.next() else { break };
        let rest = parts.as_path().to_owned();
        match part {
            Component::Normal(name) => {
                let above = visited.last().expect("the root stays").file;
                let found = client.look_up(above, name.as_bytes())?;
                let is_last = rest.as_os_str().is_empty();
                if found.attributes.file_type != FileType::SymbolicLink
                    || is_last && last == FinalLinkHandling::Keep
                {
                    visited.push(found);
                    left = rest;
                    continue;
                }
                *links += 1;
                if *links > LINKS_MAX {
                    return Ok(None);
                }
                left = Path::new(&OsString::from_vec(client.read_link(found.file)?)).join(rest);
            }
            Component::ParentDir if visited.len() == 1 => {
                let above = export.parent().unwrap_or(Path::new("/"));
                return Ok(Some(WalkResult::Outside(normalized_path(&above.join(rest)))));
            }
            Component::ParentDir => {
                visited.pop();
                left = rest;
            }
            Component::RootDir => return Ok(Some(WalkResult::Outside(normalized_path(&left)))),
            Component::CurDir | Component::Prefix(_) => left = rest,
        }
    }
    Ok(visited.pop().map(WalkResult::File))
}

/// A path from the root without `.` and `..`.
fn normalized_path(path: &Path) -> PathBuf {
    let mut plain = PathBuf::from("/");
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir => drop(plain.pop()),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_from_the_root_have_no_dots() {
        for (path, expected) in
            [("/a/../b/./c", "/b/c"), ("/../..", "/"), ("/a/b/../..", "/"), ("/a//b/", "/a/b")]
        {
            assert_eq!(normalized_path(Path::new(path)), Path::new(expected));
        }
    }
}
