//! `nocopy cat`: files of a server on standard output.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::ops::Range;

use nocopy::{BufferMut, Pool};
use nocopy_report::Outcome;
use rustix::thread::CapabilitySet;

use super::{
    BUFFER_BYTES, BUFFERS, CatArguments, Failure, FinalLinkHandling, RemoteFile, drain_reads, look_up_url,
    narrow_capabilities,
};
use crate::client::{Client, ClientError, FilePosition};
use crate::wire::nfs3::{FileHandle, Status};

/// Prints files one after another.
///
/// # Errors
/// A server cannot be reached, a file cannot be read, or output fails.
pub fn run(arguments: &CatArguments) -> Result<Outcome, Failure> {
    narrow_capabilities(CapabilitySet::empty())?;
    let pool = Pool::new(BUFFERS, BUFFER_BYTES).map_err(Failure::Memory)?;
    let mut out = io::stdout().lock();
    for url in &arguments.urls {
        let RemoteFile { mut client, info: found } =
            look_up_url(url, &arguments.server, Some(&pool), FinalLinkHandling::Follow)?;
        if found.is_directory() {
            let (subject, status) = (url.to_string(), Status::IsDirectory);
            return Err(ClientError::Status { subject, what: "printed", status }.into());
        }
        let range = 0..found.attributes.size;
        read_to_end(&mut client, found.file, range, &pool, |buffer| {
            out.write_all(buffer).map_err(|error| nocopy_report::Failure::Print(error).into())
        })?;
    }
    out.flush().map_err(nocopy_report::Failure::Print)?;
    Ok(Outcome::Positive)
}

/// Reads a file from an offset to its end, with several reads in flight; pieces are passed on in order.
/// `range` ends at the probable end of the file: if the file has grown, reading continues. Returns the number
/// of bytes from the offset on. Errors: reading or passing on failed. Reads in flight are then waited for.
pub(super) fn read_to_end(
    client: &mut Client,
    file: FileHandle,
    range: Range<u64>,
    pool: &Pool,
    take: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let done = read_pieces(client, file, range, pool, take);
    drain_reads(client);
    done
}

fn read_pieces(
    client: &mut Client,
    file: FileHandle,
    range: Range<u64>,
    pool: &Pool,
    mut take: impl FnMut(&[u8]) -> Result<(), Failure>,
) -> Result<u64, Failure> {
    let (mut next, mut posted) = (range.start, range.start);
    let mut ahead: BTreeMap<u64, (BufferMut, bool)> = BTreeMap::new();
    loop {
        while posted < range.end.max(next + 1) {
            let Some(buffer) = pool.take() else { break };
            let bytes = buffer.capacity() as u64;
            let place = FilePosition { file, offset: posted };
            client.post(buffer, place).expect("fewer than the client takes");
            posted += bytes;
        }
        let filled = client.receive()?.expect("the next piece is posted");
        let offset = filled.place.offset;
        let (buffer, end) = filled.into_result()?;
        ahead.insert(offset, (buffer, end.is_end));
        while let Some((buffer, is_end)) = ahead.remove(&next) {
            take(&buffer)?;
            next += buffer.len() as u64;
            if is_end {
                return Ok(next - range.start);
            }
        }
    }
}
