//! From a server into files of this host.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use super::super::{Failure, Reached, reach};
use super::batch::Batch;
use super::partial::Wanted;
use super::{Clients, Copying, is_part, local, url};
use crate::client::{Client, Found};

const OPEN_MAX: usize = 256;

pub(super) fn run(
    copying: &mut Copying<'_>,
    from: &[OsString],
    to: &Path,
    clients: &mut Clients,
) -> Result<(), Failure> {
    let is_directory = to.is_dir();
    if from.len() > 1 && !is_directory {
        return Err(Failure::NotDirectory { path: to.display().to_string() });
    }
    for source in from {
        let url = url(source)?;
        let Reached { client, found } = reach(&url, &copying.arguments.reach, Some(&copying.pool))?;
        clients.push(client);
        let client = clients.last_mut().expect("just put there");
        let target = match url.path.file_name() {
            Some(name) if is_directory => to.join(name),
            _ => to.to_owned(),
        };
        copy(copying, client, &found, target)?;
    }
    Ok(())
}

/// Copies a file, or a directory with its contents: iteratively, so that the server's depth does not matter.
fn copy(copying: &mut Copying<'_>, client: &mut Client, found: &Found, to: PathBuf) -> Result<(), Failure> {
    if !found.is_directory() {
        return copy_files(copying, client, vec![Wanted { found: *found, to }]);
    }
    if !copying.arguments.recursive {
        copying.counts.left_out += 1;
        return Ok(());
    }
    let mut left = vec![Wanted { found: *found, to }];
    while let Some(directory) = left.pop() {
        match enter(copying, client, &directory) {
            Ok((files, directories)) => {
                copy_files(copying, client, files)?;
                left.extend(directories.into_iter().rev());
            }
            Err(failure) => copying.fail(directory.name(), failure)?,
        }
    }
    Ok(())
}

fn copy_files(copying: &mut Copying<'_>, client: &mut Client, all: Vec<Wanted>) -> Result<(), Failure> {
    let is_wanted =
        |wanted: &Wanted| wanted.found.is_regular() && !wanted.to.file_name().is_some_and(is_part);
    let (files, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
    copying.counts.left_out += others.len() as u64;
    for wanted in &files {
        copying.counts.files_all += 1;
        copying.counts.bytes_all += wanted.found.attributes.size;
    }
    let mut files = files.into_iter().peekable();
    // Files to be compared are processed in groups, so that no more files are open than a process may have.
    let at_once = if copying.arguments.verify { OPEN_MAX } else { usize::MAX };
    while files.peek().is_some() {
        let some: Vec<_> = files.by_ref().take(at_once).collect();
        for partial in Batch::new(some).run(copying, client)? {
            let name = partial.name();
            let verified = partial.verify(copying, client);
            if let Err(failure) = verified.and_then(|()| partial.finish(copying)) {
                copying.fail(name, failure)?;
            }
        }
    }
    Ok(())
}

/// Makes a directory; returns the files and the directories that are to be copied into it.
fn enter(
    copying: &mut Copying<'_>,
    client: &mut Client,
    directory: &Wanted,
) -> Result<(Vec<Wanted>, Vec<Wanted>), Failure> {
    let Wanted { found, to } = directory;
    let entries = client.list(found.file)?;
    match fs::create_dir(to) {
        // Links are not copied: a link of this host could lead elsewhere.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && to.is_dir() => {}
        made => made.map_err(|error| local(to, error))?,
    }
    copying.counts.directories += 1;
    let wanted = entries
        .into_iter()
        .map(|entry| Wanted { found: entry.found, to: to.join(OsString::from_vec(entry.name)) });
    Ok(wanted.partition(|wanted| !wanted.found.is_directory()))
}
