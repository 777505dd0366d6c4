//! The ways to move a stream from one connection to another.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};

use nocopy::tcp::PagePool;
use serde::{Deserialize, Serialize};

use nocopy_report::result::Evidence;

const READ_WRITE_CAUSE: &str = "socket calls: the kernel copies what is received, and again what is sent on";
const SPLICE_CAUSE: &str =
    "moved by splice(2), never into the program: what becomes of the pages on the way is not reported";

const PIECE_BYTES: usize = 256 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum ProxyMode {
    /// `read()` and `write()`, through a buffer.
    ReadWrite { buffer_bytes: usize },
    /// The library's pages, by `forward_by_splice()`.
    Splice,
}

/// Moves bytes until the stream ends, then ends the outgoing stream.
pub(super) fn run_proxy(incoming: &TcpStream, onwards: &TcpStream, mode: ProxyMode) -> io::Result<Evidence> {
    let evidence = match mode {
        ProxyMode::ReadWrite { buffer_bytes } => {
            forward_by_read_write(incoming, onwards, buffer_bytes)?;
            Evidence::copied(READ_WRITE_CAUSE)
        }
        ProxyMode::Splice => {
            forward_by_splice(incoming, onwards)?;
            Evidence::unknown(SPLICE_CAUSE)
        }
    };
    Ok(evidence)
}

/// As the library's example does.
fn forward_by_splice(incoming: &TcpStream, onwards: &TcpStream) -> io::Result<()> {
    let mut pages = PagePool::new(1).take(PIECE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
    while pages.fill(incoming, None, PIECE_BYTES)? > 0 {
        while pages.buffered() > 0 {
            pages.empty(onwards, None, false)?;
        }
    }
    onwards.shutdown(Shutdown::Write)
}

fn forward_by_read_write(
    mut incoming: &TcpStream,
    mut onwards: &TcpStream,
    buffer_bytes: usize,
) -> io::Result<()> {
    let mut buffer = vec![0; buffer_bytes];
    loop {
        let received = incoming.read(&mut buffer)?;
        if received == 0 {
            return onwards.shutdown(Shutdown::Write);
        }
        onwards.write_all(&buffer[..received])?;
    }
}
