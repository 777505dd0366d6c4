//! From a server into files of this host.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};

use super::super::{DEPTH_MAX, Failure, Reached, reach};
use super::batch::Batch;
use super::directory::Directory;
use super::partial::{Partial, Wanted, finish};
use super::record::is_unfinished;
use super::{Clients, Copying, local, url};
use crate::client::{Client, Entry, Found};
use crate::wire::nfs3::FileHandle;

/// The most files that are open at a time, and of how many descriptors that this process may have one is used for them.
const OPEN_MAX: u64 = 256;
const DESCRIPTORS_PER_FILE: u64 = 4;

/// The most directories that wait to be copied.
const WAITING_MAX: usize = 1 << 20;

/// A directory that is to be copied.
struct Branch {
    wanted: Wanted,
    /// The server's directories that it is in.
    above: Rc<[FileHandle]>,
}

pub(super) fn run(
    copying: &mut Copying<'_>,
    from: &[OsString],
    to: &Path,
    clients: &mut Clients,
) -> Result<(), Failure> {
    let is_directory = to.is_dir();
    if to.metadata().is_ok_and(|about| !about.is_file() && !about.is_dir()) {
        return Err(Failure::Special { path: to.into() }); // a file would take its place
    }
    if from.len() > 1 && !is_directory {
        return Err(Failure::NotDirectory { path: to.display().to_string() });
    }
    for source in from {
        let url = url(source)?;
        let Reached { client, found } = reach(&url, &copying.arguments.reach, Some(&copying.pool))?;
        clients.push(client);
        let client = clients.last_mut().expect("just put there");
        let open = |path: &Path| Directory::open(path).map(Rc::new).map_err(|error| local(path, error));
        match (url.path.file_name(), to.file_name()) {
            (Some(name), _) if is_directory => {
                copy(copying, client, Wanted { found, directory: open(to)?, name: name.to_owned() })?;
            }
            // All of an export, into a directory that is there.
            (None, _) if is_directory && found.is_directory() => {
                copy_tree(copying, client, &found, open(to)?)?;
            }
            (_, Some(name)) => {
                let directory = open(to.parent().unwrap_or(Path::new("")))?;
                copy(copying, client, Wanted { found, directory, name: name.to_owned() })?;
            }
            (_, None) => open(to).map(drop)?,
        }
    }
    Ok(())
}

/// Copies a file, or a directory with its contents.
fn copy(copying: &mut Copying<'_>, client: &mut Client, wanted: Wanted) -> Result<(), Failure> {
    if !wanted.found.is_directory() {
        return copy_files(copying, client, vec![wanted]);
    }
    if !copying.arguments.recursive {
        copying.counts.left_out += 1;
        return Ok(());
    }
    copy_branches(copying, client, vec![Branch { wanted, above: Rc::new([]) }])
}

/// Copies what is in a directory into another.
fn copy_tree(
    copying: &mut Copying<'_>,
    client: &mut Client,
    found: &Found,
    directory: Rc<Directory>,
) -> Result<(), Failure> {
    if !copying.arguments.recursive {
        copying.counts.left_out += 1;
        return Ok(());
    }
    let entries = client.list(found.file)?;
    copying.counts.directories += 1;
    let (files, branches) = contents(entries, &directory, Rc::new([found.file]));
    copy_files(copying, client, files)?;
    copy_branches(copying, client, branches)
}

/// Iteratively, so that the server's depth does not matter.
fn copy_branches(
    copying: &mut Copying<'_>,
    client: &mut Client,
    mut left: Vec<Branch>,
) -> Result<(), Failure> {
    while let Some(Branch { wanted, above }) = left.pop() {
        match enter(copying, client, &wanted, &above) {
            Ok((files, branches)) => {
                copy_files(copying, client, files)?;
                left.extend(branches.into_iter().rev());
                if left.len() > WAITING_MAX {
                    return Err(Failure::Endless { path: wanted.name() });
                }
            }
            Err(failure) => copying.fail(wanted.name(), failure)?,
        }
    }
    Ok(())
}

fn copy_files(copying: &mut Copying<'_>, client: &mut Client, all: Vec<Wanted>) -> Result<(), Failure> {
    let is_wanted = |wanted: &Wanted| wanted.found.is_regular() && !is_unfinished(&wanted.name);
    let (files, others): (Vec<_>, Vec<_>) = all.into_iter().partition(is_wanted);
    copying.counts.left_out += others.len() as u64;
    for wanted in &files {
        copying.counts.files_all += 1;
        copying.counts.bytes_all += wanted.found.attributes.size;
    }
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open_max = (descriptors / DESCRIPTORS_PER_FILE).clamp(1, OPEN_MAX) as usize;
    let mut files = files.into_iter().peekable();
    while files.peek().is_some() {
        let some: Vec<_> = files.by_ref().take(open_max).collect();
        let (whole, done) = Batch::new(some).run(copying, client);
        let whole = match copying.arguments.verify {
            false => whole, // also after a failure, or when interrupted
            true if done.is_ok() => verified(copying, client, whole)?,
            true => Vec::new(),
        };
        finish(copying, &whole)?;
        done?;
    }
    Ok(())
}

/// Compares files with their originals, and returns those that are equal.
fn verified(
    copying: &mut Copying<'_>,
    client: &mut Client,
    all: Vec<Partial>,
) -> Result<Vec<Partial>, Failure> {
    let mut equal = Vec::new();
    for partial in all {
        match partial.verify(copying, client) {
            Ok(()) => equal.push(partial),
            Err(failure) => copying.fail(partial.name(), failure)?,
        }
    }
    Ok(equal)
}

/// Makes a directory; returns the files and the directories that are to be copied into it.
fn enter(
    copying: &mut Copying<'_>,
    client: &mut Client,
    Wanted { found, directory, name }: &Wanted,
    above: &[FileHandle],
) -> Result<(Vec<Wanted>, Vec<Branch>), Failure> {
    if above.contains(&found.file) || above.len() >= DEPTH_MAX {
        return Err(Failure::Endless { path: directory.path(name).display().to_string() });
    }
    let entries = client.list(found.file)?;
    let made = directory.make(name).map_err(|error| local(&directory.path(name), error))?;
    copying.counts.directories += 1;
    Ok(contents(entries, &Rc::new(made), [above, &[found.file]].concat().into()))
}

/// The files and the directories that are to be copied from one directory into another.
fn contents(entries: Vec<Entry>, to: &Rc<Directory>, above: Rc<[FileHandle]>) -> (Vec<Wanted>, Vec<Branch>) {
    let (mut files, mut branches) = (Vec::new(), Vec::new());
    for Entry { name, found } in entries {
        let wanted = Wanted { found, directory: Rc::clone(to), name: OsString::from_vec(name) };
        match found.is_directory() {
            true => branches.push(Branch { wanted, above: Rc::clone(&above) }),
            false => files.push(wanted),
        }
    }
    (files, branches)
}
