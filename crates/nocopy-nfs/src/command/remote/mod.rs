//! `nocopy ls`, `cat` and `cp` of addresses `nfs://HOST/PATH`: files of a server without a mount.

mod arguments;
mod cat;
mod cp;
mod follow;
mod ls;

use nocopy::Pool;
use nocopy_report::capability;
use rustix::thread::{CapabilitySet, capabilities};

pub use arguments::{CatArguments, CpArguments, LsArguments};
pub use cat::run as cat;
pub use cp::run as cp;
pub use ls::run as ls;

use super::Failure;
use crate::client::{Client, FileInfo, Url};
use crate::wire::nfs3::FileType;
use arguments::ServerOptions;
use follow::{FinalLinkHandling, look_up_url};

/// Capabilities for copying as root, and for low ports, which some servers require.
const BASE_CAPABILITIES: CapabilitySet =
    CapabilitySet::DAC_OVERRIDE.union(CapabilitySet::DAC_READ_SEARCH).union(CapabilitySet::NET_BIND_SERVICE);

/// The most reads of a file in flight, and the bytes of each: enough for a fast network, with bounded memory.
const BUFFERS: u32 = 16;
const BUFFER_BYTES: usize = 1 << 20;

/// The most directories inside each other: a server can invent more without end.
pub(super) const DEPTH_MAX: usize = 256;

pub(super) use follow::LINKS_MAX;

struct RemoteFile {
    client: Client,
    info: FileInfo,
}

fn connect(
    url: &Url,
    options: &ServerOptions,
    pool: Option<&Pool>,
) -> Result<(Client, std::path::PathBuf), Failure> {
    let is_privileged =
        capabilities(None).is_ok_and(|held| held.effective.contains(CapabilitySet::NET_BIND_SERVICE));
    let mut builder = Client::builder()
        .connections(options.connections.into())
        .timeout(options.timeout)
        .give_up_after((!options.hard).then(|| options.timeout.saturating_mul(4)))
        .reserved_port(is_privileged);
    if let Some((user, group)) = options.user {
        builder = builder.user(user, group);
    }
    if let Some(pool) = pool {
        builder = builder.pool(pool.clone());
    }
    Ok(builder.connect(url)?)
}

/// Waits until no read is in flight, and drops their buffers: those behind the end of a file, or no longer
/// needed. After an error, reads that were given up return, too, so the next file gets only its own.
fn drain_reads(client: &mut Client) {
    while !matches!(client.receive(), Ok(None)) {}
}

fn narrow_capabilities(besides: CapabilitySet) -> Result<(), Failure> {
    Ok(capability::drop_all_but(BASE_CAPABILITIES.union(besides))?)
}

/// A type as `ls -l` and JSON name it.
fn type_name(file_type: FileType) -> (char, &'static str) {
    match file_type {
        FileType::Regular => ('-', "file"),
        FileType::Directory => ('d', "directory"),
        FileType::BlockDevice => ('b', "block-device"),
        FileType::CharacterDevice => ('c', "character-device"),
        FileType::SymbolicLink => ('l', "link"),
        FileType::Socket => ('s', "socket"),
        FileType::Fifo => ('p', "fifo"),
    }
}
