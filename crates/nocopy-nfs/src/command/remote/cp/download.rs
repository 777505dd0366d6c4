//! From a server into files of this host.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};

use super::super::follow::{FinalLink, look_up_url};
use super::super::{DEPTH_MAX, Failure, RemoteFile};
use super::attributes::{DIRECTORY, SPECIAL_FILE, UNFINISHED, changed_permissions};
use super::directory::Directory;
use super::download_batch::DownloadBatch;
use super::download_file::{DownloadFile, DownloadJob, finish, modification_time};
use super::hard_links::has_more_names;
use super::record::is_unfinished;
use super::special_files::{link_name, make_link, make_node};
use super::{Clients, CopyContext, is_same_directory, local_failure, url};
use crate::client::{Client, Entry, FileInfo, Url};
use crate::wire::nfs3::{FileHandle, FileType};

/// The most files that are open at a time, and of how many descriptors that this process may have one is used
/// for them.
const OPEN_MAX: u64 = 256;
const DESCRIPTORS_PER_FILE: u64 = 4;

/// The most directories and links that wait to be copied.
const QUEUED_MAX: usize = 1 << 22;

/// The directories that something is in: of the server, and the copies of these.
type Ancestors = Rc<[(FileHandle, Rc<Directory>)]>;

enum DownloadStep {
    /// Copy a directory.
    Directory(DownloadJob, Ancestors),
    /// Make a link in a directory in which everything else was made, so that nothing is ever written through
    /// it.
    Link(DownloadJob),
    /// Give a copied directory, which is complete, its permissions and time.
    Finish(DownloadJob, Rc<Directory>),
}

/// What is in a directory of the server.
#[derive(Default)]
struct DirectoryContents {
    files: Vec<DownloadJob>,
    links: Vec<DownloadJob>,
    directories: Vec<DownloadJob>,
}

pub(super) fn run(
    context: &mut CopyContext<'_>,
    from: &[OsString],
    to: &Path,
    clients: &mut Clients,
) -> Result<(), Failure> {
    let is_directory = to.is_dir();
    if to.metadata().is_ok_and(|attributes| !attributes.is_file() && !attributes.is_dir()) {
        return Err(Failure::Special { path: to.into() }); // a file would take its place
    }
    if from.len() > 1 && !is_directory {
        return Err(Failure::NotDirectory { path: super::local_path::to_text(to) });
    }
    let name = |word: &OsStr| Some(url(word).ok()?.path.file_name()?.to_owned());
    let mut server = None;
    for source in context.sources(from, name) {
        let url = url(&source)?;
        // Behind other ports is another server.
        let this = Url { path: "/".into(), ..url.clone() };
        if server.replace(this.clone()).is_some_and(|last| last != this) {
            context.hard_links.clear();
        }
        let RemoteFile { client, info: found } =
            match look_up_url(&url, &context.arguments.server, Some(&context.pool), FinalLink::Follow) {
                Err(failure) if from.len() > 1 || failure.is_of_one_file() => {
                    context.record_failure(url.to_string(), failure)?;
                    continue;
                }
                reached => reached?,
            };
        clients.push(client);
        let client = clients.last_mut().expect("just put there");
        let open =
            |path: &Path| Directory::open(path).map(Rc::new).map_err(|error| local_failure(path, error));
        match (url.path.file_name(), to.file_name()) {
            (Some(name), _) if is_directory => {
                copy_tree(context, client, DownloadJob::named(found, &url, open(to)?, name.to_owned()))?;
            }
            // All of an export, into a directory that is there.
            (None, _) if is_directory && found.is_directory() => {
                if let Err(failure) = copy_contents(context, client, &url, (&found, open(to)?)) {
                    context.record_failure(url.to_string(), failure)?;
                }
            }
            (_, Some(name)) => {
                let directory = open(to.parent().unwrap_or(Path::new("")))?;
                copy_tree(context, client, DownloadJob::named(found, &url, directory, name.to_owned()))?;
            }
            (_, None) => open(to).map(drop)?,
        }
    }
    Ok(())
}

/// Copies a file, or a directory with its contents.
fn copy_tree(context: &mut CopyContext<'_>, client: &mut Client, job: DownloadJob) -> Result<(), Failure> {
    let (root, is_recursive) = (Rc::clone(&job.directory), context.arguments.recursive);
    let is_directory = job.info.is_directory();
    if is_directory && is_recursive {
        return copy_branches(context, client, &root, vec![DownloadStep::Directory(job, Rc::new([]))]);
    }
    if is_recursive || job.info.is_regular() {
        return copy_files(context, client, &root, vec![job]);
    }
    context.skip(job.name(), if is_directory { DIRECTORY } else { SPECIAL_FILE });
    Ok(())
}

/// Copies what is in a directory into another.
fn copy_contents(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    url: &Url,
    (found, directory): (&FileInfo, Rc<Directory>),
) -> Result<(), Failure> {
    if !context.arguments.recursive {
        context.skip(url.to_string(), DIRECTORY);
        return Ok(());
    }
    let entries = context.list(client, found.file)?;
    context.counts.directories += 1;
    let mut contents = contents(context, entries, &Rc::new(url.clone()), &directory);
    copy_files(context, client, &directory, std::mem::take(&mut contents.files))?;
    let above: Ancestors = Rc::new([(found.file, Rc::clone(&directory))]);
    copy_branches(context, client, &directory, contents.steps(&above).collect())
}

impl DirectoryContents {
    /// What is done when its files are copied, the last step first.
    fn steps(self, above: &Ancestors) -> impl Iterator<Item = DownloadStep> {
        let links = self.links.into_iter().rev().map(DownloadStep::Link);
        let directories = self.directories.into_iter().rev();
        links.chain(directories.map(|job| DownloadStep::Directory(job, Rc::clone(above))))
    }
}

/// Iteratively, so that the server's depth does not matter.
fn copy_branches(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    root: &Directory,
    mut left: Vec<DownloadStep>,
) -> Result<(), Failure> {
    while let Some(step) = left.pop() {
        context.count_bytes(0)?;
        let (job, above) = match step {
            DownloadStep::Directory(job, above) => (job, above),
            DownloadStep::Link(job) => {
                copy_link(context, client, root, &job)?;
                continue;
            }
            DownloadStep::Finish(job, directory) => {
                finish_directory(context, &job, &directory)?;
                continue;
            }
        };
        let name = job.name();
        match enter_directory(context, client, &job, &above) {
            Ok((mut contents, directory)) => {
                copy_files(context, client, root, std::mem::take(&mut contents.files))?;
                let above: Ancestors = [&*above, &[(job.info.file, Rc::clone(&directory))]].concat().into();
                left.push(DownloadStep::Finish(job, directory));
                left.extend(contents.steps(&above));
                if left.len() > QUEUED_MAX {
                    return Err(Failure::Endless { path: name });
                }
            }
            Err(failure) => context.record_failure(name, failure)?,
        }
    }
    Ok(())
}

/// Makes a directory; returns what is to be copied into it.
fn enter_directory(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    job: &DownloadJob,
    above: &[(FileHandle, Rc<Directory>)],
) -> Result<(DirectoryContents, Rc<Directory>), Failure> {
    let DownloadJob { info: found, directory, name, .. } = job;
    if above.iter().any(|(theirs, _)| *theirs == found.file) || above.len() >= DEPTH_MAX {
        return Err(Failure::Endless { path: job.name() });
    }
    for (_, ours) in above {
        if is_same_directory(ours, client, found)? {
            return Err(Failure::IntoItself { path: job.name() });
        }
    }
    let entries = context.list(client, found.file)?;
    let made = directory.make(name, found.attributes.mode);
    let made = Rc::new(made.map_err(|error| local_failure(&directory.path(name), error))?);
    if is_same_directory(&made, client, found)? {
        return Err(Failure::IntoItself { path: job.name() });
    }
    context.counts.directories += 1;
    Ok((contents(context, entries, &Rc::new(job.url()), &made), made))
}

fn copy_link(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    root: &Directory,
    job: &DownloadJob,
) -> Result<(), Failure> {
    if !claim_name(context, job) || link_name(context, root, job)? {
        return Ok(());
    }
    make_link(context, client, job).or_else(|failure| context.record_failure(job.name(), failure))
}

fn finish_directory(
    context: &mut CopyContext<'_>,
    job: &DownloadJob,
    directory: &Directory,
) -> Result<(), Failure> {
    let mode = job.info.attributes.mode & 0o7777;
    match directory.finish(mode, modification_time(&job.info.attributes)) {
        Ok(now) => {
            changed_permissions(mode, now).into_iter().for_each(|what| context.add_failure(job.name(), what));
            Ok(())
        }
        Err(error) => context.record_failure(job.name(), local_failure(directory.own_path(), error)),
    }
}

/// Whether the name of a copy is free; if not, that is noted.
fn claim_name(context: &mut CopyContext<'_>, job: &DownloadJob) -> bool {
    if is_unfinished(&job.name) {
        context.skip(job.name(), UNFINISHED);
        return false;
    }
    context.claim(|| job.path().into_os_string().into_vec(), || job.name())
}

/// Copies files, FIFOs, sockets and devices into directories below `root`.
fn copy_files(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    root: &Directory,
    all: Vec<DownloadJob>,
) -> Result<(), Failure> {
    let (mut files, mut again, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for job in all {
        let attributes = job.info.attributes;
        if !claim_name(context, &job) {
            // It is noted.
        } else if has_more_names(&attributes) && !seen.insert((attributes.file_system, attributes.file_id)) {
            again.push(job);
        } else if link_name(context, root, &job)? {
            // It is complete.
        } else if job.info.is_regular() {
            files.push(job);
        } else if let Err(failure) = make_node(context, &job) {
            context.record_failure(job.name(), failure)?;
        }
    }
    copy_regular(context, client, files)?;
    for job in again {
        if link_name(context, root, &job)? {
            continue;
        }
        // The first was not copied, or has as many names as it may have.
        if job.info.is_regular() {
            copy_regular(context, client, vec![job])?;
        } else if let Err(failure) = make_node(context, &job) {
            context.record_failure(job.name(), failure)?;
        }
    }
    Ok(())
}

fn copy_regular(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    files: Vec<DownloadJob>,
) -> Result<(), Failure> {
    files.iter().for_each(|job| context.counts.expect(job.info.attributes.size));
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open_max = (descriptors / DESCRIPTORS_PER_FILE).clamp(1, OPEN_MAX) as usize;
    let mut files = files.into_iter().peekable();
    while files.peek().is_some() {
        let some: Vec<_> = files.by_ref().take(open_max).collect();
        let (complete, done) = DownloadBatch::new(some).run(context, client);
        let complete = match context.arguments.verify {
            false => complete, // also after a failure, or when interrupted
            true if done.is_ok() => verify_all(context, client, complete)?,
            true => Vec::new(),
        };
        finish(context, &complete)?;
        done?;
    }
    Ok(())
}

/// Compares files with their originals, and returns those that are equal.
fn verify_all(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    all: Vec<DownloadFile>,
) -> Result<Vec<DownloadFile>, Failure> {
    let mut equal = Vec::new();
    for partial in all {
        match partial.verify(context, client) {
            Ok(()) => equal.push(partial),
            Err(failure) => context.record_failure(partial.name(), failure)?,
        }
    }
    Ok(equal)
}

/// What is to be copied from one directory into another. A name that the server lists twice is copied once.
fn contents(
    context: &mut CopyContext<'_>,
    entries: Vec<Entry>,
    from: &Rc<Url>,
    to: &Rc<Directory>,
) -> DirectoryContents {
    let mut contents = DirectoryContents::default();
    let mut names: HashSet<&[u8]> = HashSet::new();
    let is_first: Vec<bool> = entries.iter().map(|entry| names.insert(&entry.name)).collect();
    for (Entry { name, info: found }, is_first) in entries.into_iter().zip(is_first) {
        let (from, directory) = (Rc::clone(from), Rc::clone(to));
        let job = DownloadJob { info: found, from, source: None, directory, name: OsString::from_vec(name) };
        if !is_first {
            context.add_failure(
                job.name(),
                "not copied; the server lists this name twice; look at the directory there",
            );
            continue;
        }
        match found.attributes.file_type {
            FileType::Directory => contents.directories.push(job),
            FileType::SymbolicLink => contents.links.push(job),
            _ => contents.files.push(job),
        }
    }
    contents
}
