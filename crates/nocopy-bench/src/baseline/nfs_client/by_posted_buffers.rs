//! Reads with this library's client: buffers are posted, and returned filled.

use std::io;
use std::time::Duration;

use nocopy::Pool;
use nocopy_nfs::client::{Client, FilePosition, Url};

use super::{IN_FLIGHT, ReadResult, ReadWindow};
use crate::nfs_content::is_content;

pub(super) fn read_into_posted_buffers(
    url: &str,
    connections: usize,
    bytes: usize,
    file_bytes: u64,
    window: Duration,
) -> io::Result<ReadResult> {
    let url: Url = url.parse().map_err(io::Error::other)?;
    let pool = Pool::new(IN_FLIGHT as u32, bytes)?;
    let builder = Client::builder().connections(connections).pool(pool);
    let (mut client, below) = builder.connect(&url).map_err(io::Error::other)?;
    let file = client.walk(&below).map_err(io::Error::other)?.file;
    let (mut next, mut unchecked) = (0, file_bytes / bytes as u64);
    let mut measured: Option<ReadWindow> = None;
    loop {
        while let Some(buffer) = client.buffer() {
            client.post(buffer, FilePosition { file, offset: next }).map_err(|rejected| {
                io::Error::other(format!("a buffer was refused ({})", rejected.reason))
            })?;
            next = (next + bytes as u64) % file_bytes;
        }
        let filled = client.receive().map_err(io::Error::other)?;
        let filled = filled.ok_or_else(|| io::Error::other("no posted buffer came back"))?;
        let offset = filled.place.offset;
        let (buffer, _) = filled.into_result().map_err(io::Error::other)?;
        if buffer.len() != bytes {
            return Err(io::Error::other(format!("a read of {bytes} bytes returned {}", buffer.len())));
        }
        if unchecked > 0 {
            if !is_content(offset, &buffer) {
                return Err(io::Error::other(format!(
                    "what was read at {offset} is not what the file has there"
                )));
            }
            unchecked -= 1;
        } else if let Some(result) =
            measured.get_or_insert_with(|| ReadWindow::new(window)).count_bytes(bytes)?
        {
            let counts = client.stats();
            return Ok(ReadResult { moved_bytes: counts.get("moved_bytes").unwrap_or(0), ..result });
        }
        client.recycle(buffer);
    }
}
