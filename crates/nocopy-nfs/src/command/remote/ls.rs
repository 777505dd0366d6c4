//! `nocopy ls`: lists directories of a server. Its JSON is the schema `nocopy.ls/1` (docs/nfs-client.md).

use nocopy_report::table::Table;
use nocopy_report::{Outcome, print, wall_clock};
use rustix::thread::CapabilitySet;
use serde::Serialize;

use super::{
    Failure, FinalLinkHandling, LsArguments, RemoteFile, look_up_url, narrow_capabilities, type_name,
};
use crate::client::{FileInfo, Url, escape_path};
use crate::wire::nfs3::FileType;

#[derive(Debug, Serialize)]
struct Summary {
    directories: Vec<DirectoryListing>,
    #[serde(skip)]
    is_long: bool,
    /// Only one was asked for.
    #[serde(skip)]
    is_one: bool,
}

#[derive(Debug, Serialize)]
struct DirectoryListing {
    url: String,
    entries: Vec<ListEntry>,
}

#[derive(Debug, Serialize)]
struct ListEntry {
    /// As text: bytes that are none are replaced.
    name: String,
    /// As in a URL: exact, and on one line.
    escaped: String,
    #[serde(rename = "type")]
    file_type: &'static str,
    #[serde(skip)]
    letter: char,
    mode: u32,
    links: u32,
    user: u32,
    group: u32,
    bytes: u64,
    /// Seconds since 1970.
    modified: f64,
}

impl ListEntry {
    fn new(name: &[u8], found: &FileInfo) -> Self {
        let attributes = &found.attributes;
        let (letter, file_type) = type_name(attributes.file_type);
        let time = attributes.modified;
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            escaped: escape_path(name),
            file_type,
            letter,
            mode: attributes.mode & 0o7777,
            links: attributes.links,
            user: attributes.user,
            group: attributes.group,
            bytes: attributes.size,
            modified: f64::from(time.seconds) + f64::from(time.nanoseconds) / 1e9,
        }
    }
}

/// Lists directories and files.
///
/// # Errors
/// The last of those, after all others were listed: a server cannot be reached, or has no such file.
pub fn run(arguments: &LsArguments) -> Result<Outcome, Failure> {
    narrow_capabilities(CapabilitySet::empty())?;
    let (mut directories, mut failed) = (Vec::new(), None);
    for url in &arguments.urls {
        match list_url(url, arguments) {
            Ok(listed) => directories.push(listed),
            Err(failure) => {
                if let Some(earlier) = failed.replace(failure) {
                    print::print_status(format_args!("nocopy: {earlier}"));
                }
            }
        }
    }
    let is_one = arguments.urls.len() == 1;
    let summary = Summary { directories, is_long: arguments.long, is_one };
    match summary.directories.is_empty() {
        true => failed.map_or(Ok(Outcome::Positive), Err),
        false => print::print_summary(&summary, arguments.json, failed),
    }
}

fn list_url(url: &Url, arguments: &LsArguments) -> Result<DirectoryListing, Failure> {
    let RemoteFile { mut client, info: found } = look_up_listed(url, arguments)?;
    let mut entries: Vec<_> = match found.is_directory() {
        true => {
            client.list(found.file)?.iter().map(|entry| ListEntry::new(&entry.name, &entry.info)).collect()
        }
        false => {
            let name = url.path.file_name().unwrap_or_default();
            vec![ListEntry::new(name.as_encoded_bytes(), &found)]
        }
    };
    entries.sort_by(|one, other| one.name.cmp(&other.name).then_with(|| one.escaped.cmp(&other.escaped)));
    Ok(DirectoryListing { url: url.to_string(), entries })
}

/// As `ls` does it, what a link to a directory leads to, unless its own attributes are wanted; of another
/// link, itself.
fn look_up_listed(url: &Url, arguments: &LsArguments) -> Result<RemoteFile, Failure> {
    let itself = look_up_url(url, &arguments.server, None, FinalLinkHandling::Keep)?;
    if itself.info.attributes.file_type == FileType::SymbolicLink
        && !arguments.long
        && let Ok(behind) = look_up_url(url, &arguments.server, None, FinalLinkHandling::Follow)
        && behind.info.is_directory()
    {
        return Ok(behind);
    }
    Ok(itself)
}

impl nocopy_report::Summary for Summary {
    const SCHEMA: &'static str = "nocopy.ls/1";

    fn table(&self) -> Table {
        Table::default()
    }

    fn details(&self) -> String {
        let blocks = self.directories.iter().map(|listed| {
            let head = if self.is_one { String::new() } else { format!("{}:\n", listed.url) };
            head + &if self.is_long { long_listing(&listed.entries) } else { short_listing(&listed.entries) }
        });
        blocks.collect::<Vec<_>>().join("\n")
    }

    fn outcome(&self) -> Outcome {
        Outcome::Positive
    }
}

fn short_listing(entries: &[ListEntry]) -> String {
    entries.iter().map(|entry| format!("{}\n", entry.escaped)).collect()
}

fn long_listing(entries: &[ListEntry]) -> String {
    let row = |entry: &ListEntry| {
        vec![
            permission_text(entry.letter, entry.mode),
            entry.links.to_string(),
            entry.user.to_string(),
            entry.group.to_string(),
            entry.bytes.to_string(),
            wall_clock::text_at_seconds(entry.modified as i64),
            entry.escaped.clone(),
        ]
    };
    let text = Table::new(&[], 1..5, entries.iter().map(row).collect()).text();
    text.lines().map(|line| format!("{}\n", line.trim_start())).collect()
}

/// `-rwxr-x---`, without setuid, setgid and sticky.
fn permission_text(letter: char, mode: u32) -> String {
    let bits = (0..9).rev().zip("rwxrwxrwx".chars());
    let bits = bits.map(|(bit, letter)| if mode & 1 << bit != 0 { letter } else { '-' });
    std::iter::once(letter).chain(bits).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_formatted_as_by_ls() {
        assert_eq!(permission_text('-', 0o644), "-rw-r--r--");
        assert_eq!(permission_text('d', 0o2751), "drwxr-x--x");
    }
}
