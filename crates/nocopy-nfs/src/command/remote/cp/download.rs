//! From a server into files of this host.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};

use super::super::follow::{FinalLinkHandling, look_up_url};
use super::super::{DEPTH_MAX, Failure, RemoteFile};
use super::attributes::{DIRECTORY, SPECIAL_FILE, UNFINISHED, changed_permissions_message};
use super::directory::OpenDirectory;
use super::download_batch::DownloadBatch;
use super::download_file::{DownloadFile, DownloadJob, modification_time, sync_and_rename};
use super::hard_links::has_several_names;
use super::record::is_unfinished_copy_name;
use super::special_files::{link_to_existing_copy, make_link, make_node};
use super::{Clients, CopyContext, is_same_directory, local_failure, parse_url};
use crate::client::{Client, Entry, FileInfo, Url};
use crate::wire::nfs3::{FileHandle, FileType};

/// The most files that are open at a time, and of how many descriptors that this process may have one is used
/// for them.
const OPEN_MAX: u64 = 256;
const DESCRIPTORS_PER_FILE: u64 = 4;

/// The most directories and links that wait to be copied.
const QUEUED_MAX: usize = 1 << 22;

/// The directories that something is in: of the server, and the copies of these.
type Ancestors = Rc<[(FileHandle, Rc<OpenDirectory>)]>;

enum DownloadStep {
    /// Copy a directory.
    Directory(DownloadJob, Ancestors),
    /// Make a link in a directory in which everything else was made, so that nothing is ever written through
    /// it.
    Link(DownloadJob),
    /// Give a copied directory, which is complete, its permissions and time.
    Finish(DownloadJob, Rc<OpenDirectory>),
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
    let name = |word: &OsStr| Some(parse_url(word).ok()?.path.file_name()?.to_owned());
    let mut server = None;
    for source in context.unique_sources(from, name) {
        let url = parse_url(&source)?;
        // Behind other ports is another server.
        let this = Url { path: "/".into(), ..url.clone() };
        if server.replace(this.clone()).is_some_and(|last| last != this) {
            context.hard_links.clear();
        }
        let RemoteFile { client, info: found } = match look_up_url(
            &url,
            &context.arguments.server,
            Some(&context.pool),
            FinalLinkHandling::Follow,
        ) {
            Err(failure) if from.len() > 1 || failure.affects_one_file() => {
                context.record_failure(url.to_string(), failure)?;
                continue;
            }
            reached => reached?,
        };
        clients.push(client);
        let client = clients.last_mut().expect("just put there");
        let open =
            |path: &Path| OpenDirectory::open(path).map(Rc::new).map_err(|error| local_failure(path, error));
        match (url.path.file_name(), to.file_name()) {
            (Some(name), _) if is_directory => {
                copy_tree(
                    context,
                    client,
                    DownloadJob::from_source_url(found, &url, open(to)?, name.to_owned()),
                )?;
            }
            // All of an export, into a directory that is there.
            (None, _) if is_directory && found.is_directory() => {
                if let Err(failure) = copy_contents(context, client, &url, (&found, open(to)?)) {
                    context.record_failure(url.to_string(), failure)?;
                }
            }
            (_, Some(name)) => {
                let directory = open(to.parent().unwrap_or(Path::new("")))?;
                copy_tree(
                    context,
                    client,
                    DownloadJob::from_source_url(found, &url, directory, name.to_owned()),
                )?;
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
        return copy_directories_and_links(
            context,
            client,
            &root,
            vec![DownloadStep::Directory(job, Rc::new([]))],
        );
    }
    if is_recursive || job.info.is_regular() {
        return copy_files(context, client, &root, vec![job]);
    }
    context.record_skip(job.display_name(), if is_directory { DIRECTORY } else { SPECIAL_FILE });
    Ok(())
}

/// Copies what is in a directory into another.
fn copy_contents(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    url: &Url,
    (found, directory): (&FileInfo, Rc<OpenDirectory>),
) -> Result<(), Failure> {
    if !context.arguments.recursive {
        context.record_skip(url.to_string(), DIRECTORY);
        return Ok(());
    }
    let entries = context.list_directory(client, found.file)?;
    context.counts.directories += 1;
    let mut contents = directory_contents(context, entries, &Rc::new(url.clone()), &directory);
    copy_files(context, client, &directory, std::mem::take(&mut contents.files))?;
    let above: Ancestors = Rc::new([(found.file, Rc::clone(&directory))]);
    copy_directories_and_links(context, client, &directory, contents.into_steps(&above).collect())
}

impl DirectoryContents {
    /// What is done when its files are copied, the last step first.
    fn into_steps(self, above: &Ancestors) -> impl Iterator<Item = DownloadStep> {
        let links = self.links.into_iter().rev().map(DownloadStep::Link);
        let directories = self.directories.into_iter().rev();
        links.chain(directories.map(|job| DownloadStep::Directory(job, Rc::clone(above))))
    }
}

/// Iteratively, so that the server's depth does not matter.
fn copy_directories_and_links(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    root: &OpenDirectory,
    mut left: Vec<DownloadStep>,
) -> Result<(), Failure> {
    while let Some(step) = left.pop() {
        context.count_progress(0)?;
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
        let name = job.display_name();
        match enter_directory(context, client, &job, &above) {
            Ok((mut contents, directory)) => {
                copy_files(context, client, root, std::mem::take(&mut contents.files))?;
                let above: Ancestors = [&*above, &[(job.info.file, Rc::clone(&directory))]].concat().into();
                left.push(DownloadStep::Finish(job, directory));
                left.extend(contents.into_steps(&above));
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
    above: &[(FileHandle, Rc<OpenDirectory>)],
) -> Result<(DirectoryContents, Rc<OpenDirectory>), Failure> {
    let DownloadJob { info: found, directory, name, .. } = job;
    if above.iter().any(|(theirs, _)| *theirs == found.file) || above.len() >= DEPTH_MAX {
        return Err(Failure::Endless { path: job.display_name() });
    }
    for (_, ours) in above {
        if is_same_directory(ours, client, found)? {
            return Err(Failure::IntoItself { path: job.display_name() });
        }
    }
    let entries = context.list_directory(client, found.file)?;
    let made = directory.make_or_open(name, found.attributes.mode);
    let made = Rc::new(made.map_err(|error| local_failure(&directory.entry_path(name), error))?);
    if is_same_directory(&made, client, found)? {
        return Err(Failure::IntoItself { path: job.display_name() });
    }
    context.counts.directories += 1;
    Ok((directory_contents(context, entries, &Rc::new(job.source_url()), &made), made))
}

fn copy_link(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    root: &OpenDirectory,
    job: &DownloadJob,
) -> Result<(), Failure> {
    if !claim_name(context, job) || link_to_existing_copy(context, root, job)? {
        return Ok(());
    }
    make_link(context, client, job).or_else(|failure| context.record_failure(job.display_name(), failure))
}

fn finish_directory(
    context: &mut CopyContext<'_>,
    job: &DownloadJob,
    directory: &OpenDirectory,
) -> Result<(), Failure> {
    let mode = job.info.attributes.mode & 0o7777;
    match directory.set_mode_and_time(mode, modification_time(&job.info.attributes)) {
        Ok(now) => {
            changed_permissions_message(mode, now)
                .into_iter()
                .for_each(|what| context.add_failure(job.display_name(), what));
            Ok(())
        }
        Err(error) => context.record_failure(job.display_name(), local_failure(directory.own_path(), error)),
    }
}

/// Whether the name of a copy is free; if not, that is noted.
fn claim_name(context: &mut CopyContext<'_>, job: &DownloadJob) -> bool {
    if is_unfinished_copy_name(&job.name) {
        context.record_skip(job.display_name(), UNFINISHED);
        return false;
    }
    context.claim_place(|| job.copy_path().into_os_string().into_vec(), || job.display_name())
}

/// Copies files, FIFOs, sockets and devices into directories below `root`.
fn copy_files(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    root: &OpenDirectory,
    all: Vec<DownloadJob>,
) -> Result<(), Failure> {
    let (mut files, mut again, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for job in all {
        let attributes = job.info.attributes;
        if !claim_name(context, &job) {
            // It is noted.
        } else if has_several_names(&attributes) && !seen.insert((attributes.file_system, attributes.file_id))
        {
            again.push(job);
        } else if link_to_existing_copy(context, root, &job)? {
            // It is complete.
        } else if job.info.is_regular() {
            files.push(job);
        } else if let Err(failure) = make_node(context, &job) {
            context.record_failure(job.display_name(), failure)?;
        }
    }
    copy_regular_files(context, client, files)?;
    for job in again {
        if link_to_existing_copy(context, root, &job)? {
            continue;
        }
        // The first was not copied, or has as many names as it may have.
        if job.info.is_regular() {
            copy_regular_files(context, client, vec![job])?;
        } else if let Err(failure) = make_node(context, &job) {
            context.record_failure(job.display_name(), failure)?;
        }
    }
    Ok(())
}

fn copy_regular_files(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    files: Vec<DownloadJob>,
) -> Result<(), Failure> {
    files.iter().for_each(|job| context.counts.count_expected(job.info.attributes.size));
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let open_max = (descriptors / DESCRIPTORS_PER_FILE).clamp(1, OPEN_MAX) as usize;
    let mut files = files.into_iter().peekable();
    while files.peek().is_some() {
        let some: Vec<_> = files.by_ref().take(open_max).collect();
        let (complete, done) = DownloadBatch::new(some).copy_files(context, client);
        let complete = match context.arguments.verify {
            false => complete, // also after a failure, or when interrupted
            true if done.is_ok() => verify_copies(context, client, complete)?,
            true => Vec::new(),
        };
        sync_and_rename(context, &complete)?;
        done?;
    }
    Ok(())
}

/// Compares files with their originals, and returns those that are equal.
fn verify_copies(
    context: &mut CopyContext<'_>,
    client: &mut Client,
    all: Vec<DownloadFile>,
) -> Result<Vec<DownloadFile>, Failure> {
    let mut equal = Vec::new();
    for partial in all {
        match partial.verify_copy(context, client) {
            Ok(()) => equal.push(partial),
            Err(failure) => context.record_failure(partial.display_name(), failure)?,
        }
    }
    Ok(equal)
}

/// What is to be copied from one directory into another. A name that the server lists twice is copied once.
fn directory_contents(
    context: &mut CopyContext<'_>,
    entries: Vec<Entry>,
    from: &Rc<Url>,
    to: &Rc<OpenDirectory>,
) -> DirectoryContents {
    let mut contents = DirectoryContents::default();
    let mut names: HashSet<&[u8]> = HashSet::new();
    let is_first: Vec<bool> = entries.iter().map(|entry| names.insert(&entry.name)).collect();
    for (Entry { name, info: found }, is_first) in entries.into_iter().zip(is_first) {
        let (from, directory) = (Rc::clone(from), Rc::clone(to));
        let job = DownloadJob { info: found, from, source: None, directory, name: OsString::from_vec(name) };
        if !is_first {
            context.add_failure(
                job.display_name(),
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
