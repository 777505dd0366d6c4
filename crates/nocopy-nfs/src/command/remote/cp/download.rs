//! From a server into files of this host.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::rc::Rc;

use rustix::process::{Resource, getrlimit};

use super::super::follow::{Last, reach};
use super::super::{DEPTH_MAX, Failure, Reached};
use super::batch::Batch;
use super::directory::Directory;
use super::kinds::{DIRECTORY, NO_FILE, UNFINISHED, other_permissions};
use super::originals::has_more_names;
use super::others::{make_link, make_name, make_node};
use super::partial::{Partial, Wanted, finish, modified};
use super::record::is_unfinished;
use super::{Clients, Copying, is_same_directory, local, url};
use crate::client::{Client, Entry, Found, Url};
use crate::wire::nfs3::{FileHandle, FileType};

/// The most files that are open at a time, and of how many descriptors that this process may have one is used
/// for them.
const OPEN_MAX: u64 = 256;
const DESCRIPTORS_PER_FILE: u64 = 4;

/// The most directories and links that wait to be copied.
const WAITING_MAX: usize = 1 << 22;

/// The directories that something is in: of the server, and the copies of these.
type Above = Rc<[(FileHandle, Rc<Directory>)]>;

enum Step {
    /// Copy a directory.
    Enter(Wanted, Above),
    /// Make a link in a directory in which everything else was made, so that nothing is ever written through
    /// it.
    Link(Wanted),
    /// Give a copied directory, which is complete, its permissions and time.
    Leave(Wanted, Rc<Directory>),
}

/// What is in a directory of the server.
#[derive(Default)]
struct Contents {
    files: Vec<Wanted>,
    links: Vec<Wanted>,
    directories: Vec<Wanted>,
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
        return Err(Failure::NotDirectory { path: super::local_path::text(to) });
    }
    let name = |word: &OsStr| Some(url(word).ok()?.path.file_name()?.to_owned());
    let mut server = None;
    for source in copying.sources(from, name) {
        let url = url(&source)?;
        // Behind other ports is another server.
        let this = Url { path: "/".into(), ..url.clone() };
        if server.replace(this.clone()).is_some_and(|last| last != this) {
            copying.originals.forget();
        }
        let Reached { client, found } =
            match reach(&url, &copying.arguments.reach, Some(&copying.pool), Last::Follow) {
                Err(failure) if from.len() > 1 || failure.concerns_one() => {
                    copying.fail(url.to_string(), failure)?;
                    continue;
                }
                reached => reached?,
            };
        clients.push(client);
        let client = clients.last_mut().expect("just put there");
        let open = |path: &Path| Directory::open(path).map(Rc::new).map_err(|error| local(path, error));
        match (url.path.file_name(), to.file_name()) {
            (Some(name), _) if is_directory => {
                copy(copying, client, Wanted::named(found, &url, open(to)?, name.to_owned()))?;
            }
            // All of an export, into a directory that is there.
            (None, _) if is_directory && found.is_directory() => {
                if let Err(failure) = copy_all(copying, client, &url, (&found, open(to)?)) {
                    copying.fail(url.to_string(), failure)?;
                }
            }
            (_, Some(name)) => {
                let directory = open(to.parent().unwrap_or(Path::new("")))?;
                copy(copying, client, Wanted::named(found, &url, directory, name.to_owned()))?;
            }
            (_, None) => open(to).map(drop)?,
        }
    }
    Ok(())
}

/// Copies a file, or a directory with its contents.
fn copy(copying: &mut Copying<'_>, client: &mut Client, wanted: Wanted) -> Result<(), Failure> {
    let (root, is_recursive) = (Rc::clone(&wanted.directory), copying.arguments.recursive);
    let is_directory = wanted.found.is_directory();
    if is_directory && is_recursive {
        return copy_branches(copying, client, &root, vec![Step::Enter(wanted, Rc::new([]))]);
    }
    if is_recursive || wanted.found.is_regular() {
        return copy_files(copying, client, &root, vec![wanted]);
    }
    copying.leave_out(wanted.name(), if is_directory { DIRECTORY } else { NO_FILE });
    Ok(())
}

/// Copies what is in a directory into another.
fn copy_all(
    copying: &mut Copying<'_>,
    client: &mut Client,
    url: &Url,
    (found, directory): (&Found, Rc<Directory>),
) -> Result<(), Failure> {
    if !copying.arguments.recursive {
        copying.leave_out(url.to_string(), DIRECTORY);
        return Ok(());
    }
    let entries = copying.list(client, found.file)?;
    copying.counts.directories += 1;
    let mut contents = contents(copying, entries, &Rc::new(url.clone()), &directory);
    copy_files(copying, client, &directory, std::mem::take(&mut contents.files))?;
    let above: Above = Rc::new([(found.file, Rc::clone(&directory))]);
    copy_branches(copying, client, &directory, contents.steps(&above).collect())
}

impl Contents {
    /// What is done when its files are copied, the last step first.
    fn steps(self, above: &Above) -> impl Iterator<Item = Step> {
        let links = self.links.into_iter().rev().map(Step::Link);
        let directories = self.directories.into_iter().rev();
        links.chain(directories.map(|wanted| Step::Enter(wanted, Rc::clone(above))))
    }
}

/// Iteratively, so that the server's depth does not matter.
fn copy_branches(
    copying: &mut Copying<'_>,
    client: &mut Client,
    root: &Directory,
    mut left: Vec<Step>,
) -> Result<(), Failure> {
    while let Some(step) = left.pop() {
        copying.count(0)?;
        let (wanted, above) = match step {
            Step::Enter(wanted, above) => (wanted, above),
            Step::Link(wanted) => {
                link(copying, client, root, &wanted)?;
                continue;
            }
            Step::Leave(wanted, directory) => {
                leave(copying, &wanted, &directory)?;
                continue;
            }
        };
        let name = wanted.name();
        match enter(copying, client, &wanted, &above) {
            Ok((mut contents, directory)) => {
                copy_files(copying, client, root, std::mem::take(&mut contents.files))?;
                let above: Above = [&*above, &[(wanted.found.file, Rc::clone(&directory))]].concat().into();
                left.push(Step::Leave(wanted, directory));
                left.extend(contents.steps(&above));
                if left.len() > WAITING_MAX {
                    return Err(Failure::Endless { path: name });
                }
            }
            Err(failure) => copying.fail(name, failure)?,
        }
    }
    Ok(())
}

/// Makes a directory; returns what is to be copied into it.
fn enter(
    copying: &mut Copying<'_>,
    client: &mut Client,
    wanted: &Wanted,
    above: &[(FileHandle, Rc<Directory>)],
) -> Result<(Contents, Rc<Directory>), Failure> {
    let Wanted { found, directory, name, .. } = wanted;
    if above.iter().any(|(theirs, _)| *theirs == found.file) || above.len() >= DEPTH_MAX {
        return Err(Failure::Endless { path: wanted.name() });
    }
    for (_, ours) in above {
        if is_same_directory(ours, client, found)? {
            return Err(Failure::IntoItself { path: wanted.name() });
        }
    }
    let entries = copying.list(client, found.file)?;
    let made = directory.make(name, found.attributes.mode);
    let made = Rc::new(made.map_err(|error| local(&directory.path(name), error))?);
    if is_same_directory(&made, client, found)? {
        return Err(Failure::IntoItself { path: wanted.name() });
    }
    copying.counts.directories += 1;
    Ok((contents(copying, entries, &Rc::new(wanted.url()), &made), made))
}

fn link(
    copying: &mut Copying<'_>,
    client: &mut Client,
    root: &Directory,
    wanted: &Wanted,
) -> Result<(), Failure> {
    if !may_be_made(copying, wanted) || make_name(copying, root, wanted)? {
        return Ok(());
    }
    make_link(copying, client, wanted).or_else(|failure| copying.fail(wanted.name(), failure))
}

fn leave(copying: &mut Copying<'_>, wanted: &Wanted, directory: &Directory) -> Result<(), Failure> {
    let mode = wanted.found.attributes.mode & 0o7777;
    match directory.settle(mode, modified(&wanted.found.attributes)) {
        Ok(now) => {
            other_permissions(mode, now).into_iter().for_each(|what| copying.note(wanted.name(), what));
            Ok(())
        }
        Err(error) => copying.fail(wanted.name(), local(directory.own_path(), error)),
    }
}

/// Whether the name of a copy is free; if not, that is noted.
fn may_be_made(copying: &mut Copying<'_>, wanted: &Wanted) -> bool {
    if is_unfinished(&wanted.name) {
        copying.leave_out(wanted.name(), UNFINISHED);
        return false;
    }
    copying.claim(|| wanted.path().into_os_string().into_vec(), || wanted.name())
}

/// Copies files, FIFOs, sockets and devices into directories below `root`.
fn copy_files(
    copying: &mut Copying<'_>,
    client: &mut Client,
    root: &Directory,
    all: Vec<Wanted>,
) -> Result<(), Failure> {
    let (mut files, mut again, mut seen) = (Vec::new(), Vec::new(), HashSet::new());
    for wanted in all {
        let about = wanted.found.attributes;
        if !may_be_made(copying, &wanted) {
            // It is noted.
        } else if has_more_names(&about) && !seen.insert((about.file_system, about.file_id)) {
            again.push(wanted);
        } else if make_name(copying, root, &wanted)? {
            // It is complete.
        } else if wanted.found.is_regular() {
            files.push(wanted);
        } else if let Err(failure) = make_node(copying, &wanted) {
            copying.fail(wanted.name(), failure)?;
        }
    }
    copy_regular(copying, client, files)?;
    for wanted in again {
        if make_name(copying, root, &wanted)? {
            continue;
        }
        // The first was not copied, or has as many names as it may have.
        if wanted.found.is_regular() {
            copy_regular(copying, client, vec![wanted])?;
        } else if let Err(failure) = make_node(copying, &wanted) {
            copying.fail(wanted.name(), failure)?;
        }
    }
    Ok(())
}

fn copy_regular(copying: &mut Copying<'_>, client: &mut Client, files: Vec<Wanted>) -> Result<(), Failure> {
    files.iter().for_each(|wanted| copying.counts.expect(wanted.found.attributes.size));
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

/// What is to be copied from one directory into another. A name that the server lists twice is copied once.
fn contents(copying: &mut Copying<'_>, entries: Vec<Entry>, from: &Rc<Url>, to: &Rc<Directory>) -> Contents {
    let mut contents = Contents::default();
    let mut names: HashSet<&[u8]> = HashSet::new();
    let is_first: Vec<bool> = entries.iter().map(|entry| names.insert(&entry.name)).collect();
    for (Entry { name, found }, is_first) in entries.into_iter().zip(is_first) {
        let (from, directory) = (Rc::clone(from), Rc::clone(to));
        let wanted = Wanted { found, from, source: None, directory, name: OsString::from_vec(name) };
        if !is_first {
            copying.note(
                wanted.name(),
                "not copied; the server lists this name twice; look at the directory there",
            );
            continue;
        }
        match found.attributes.file_type {
            FileType::Directory => contents.directories.push(wanted),
            FileType::SymbolicLink => contents.links.push(wanted),
            _ => contents.files.push(wanted),
        }
    }
    contents
}
