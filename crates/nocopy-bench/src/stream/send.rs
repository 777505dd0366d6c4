//! The ways to send a stream.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::net::{Shutdown, TcpStream};

use nix::fcntl::{SpliceFFlags, vmsplice};
use nocopy::tcp::Method;
use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
use serde::{Deserialize, Serialize};

use super::messages::PeerReport;
use super::meter::StreamMeter;
use super::source::{CHUNK_BYTES, StreamSource};
use super::{asynchronous, ours};
use crate::asynchronous::AsyncLibrary;
use crate::baseline::stream_sender;
use nocopy_report::result::Evidence;

/// The most bytes in a pipe without privileges.
const PIPE_BYTES: usize = 1 << 20;

const REFERENCE_CAUSE: &str =
    "sent by reference to its pages: no completion ever tells whether they are copied on the way";
const SOCKET_CAUSE: &str = "socket call: the kernel copies what is sent";
const UNREAD_CAUSE: &str = "MSG_ZEROCOPY, whose completions are not read here";

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum SendMode {
    Plain,
    /// `sendfile()` from a file that is in memory.
    Sendfile,
    /// `vmsplice()` into a pipe, and `splice()` from there.
    Vmsplice,
    /// `MSG_ZEROCOPY` by hand, of whole pages.
    WholePages,
    /// Owned buffers by the library, with this method pinned.
    ZeroCopy,
    UringZeroCopy,
    /// By the library, with the method that measures best.
    Auto,
    /// Published data, by the library's best method for them.
    Published,
    /// By `copy_buf` of tokio.
    CopyBuf(AsyncLibrary),
}

/// Sends until the window closes, then ends the stream.
pub(super) fn send_stream(
    stream: TcpStream,
    mode: SendMode,
    source_bytes: usize,
    mut meter: StreamMeter<'_>,
) -> io::Result<PeerReport> {
    let source = || StreamSource::new(source_bytes);
    let evidence = match mode {
        SendMode::Plain => send_and_shut_down(&stream, &mut meter, source(), send_by_write)?,
        SendMode::Sendfile => send_and_shut_down(&stream, &mut meter, source(), send_by_sendfile)?,
        SendMode::Vmsplice => send_and_shut_down(&stream, &mut meter, source(), send_by_vmsplice)?,
        SendMode::WholePages => send_and_shut_down(&stream, &mut meter, source(), send_by_zero_copy)?,
        SendMode::ZeroCopy => {
            ours::send_owned_buffers(stream, Some(Method::ZeroCopy), source_bytes, &mut meter)?
        }
        SendMode::UringZeroCopy => {
            ours::send_owned_buffers(stream, Some(Method::UringZeroCopy), source_bytes, &mut meter)?
        }
        SendMode::Auto => ours::send_owned_buffers(stream, None, source_bytes, &mut meter)?,
        SendMode::CopyBuf(library) => asynchronous::send_by_copy_buf(stream, library, &source(), &mut meter)?,
        SendMode::Published => ours::send_published_data(stream, source_bytes, &mut meter)?,
    };
    Ok(PeerReport { reading: meter.finish(), evidence: Some(evidence), ..PeerReport::default() })
}

fn send_and_shut_down(
    stream: &TcpStream,
    meter: &mut StreamMeter<'_>,
    source: StreamSource,
    send: impl Fn(&TcpStream, StreamSource, &mut StreamMeter<'_>) -> io::Result<Evidence>,
) -> io::Result<Evidence> {
    let evidence = send(stream, source, meter)?;
    stream.shutdown(Shutdown::Write)?;
    Ok(evidence)
}

fn send_chunks(
    source: &StreamSource,
    meter: &mut StreamMeter<'_>,
    mut send: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<()> {
    let mut chunks = source.chunks().cycle();
    while let Some(chunk) = chunks.next().filter(|_| meter.may_send()) {
        send(chunk)?;
        meter.count_bytes(chunk.len())?;
    }
    Ok(())
}

fn send_by_write(
    mut stream: &TcpStream,
    source: StreamSource,
    meter: &mut StreamMeter<'_>,
) -> io::Result<Evidence> {
    send_chunks(&source, meter, |chunk| stream.write_all(chunk))?;
    Ok(Evidence::copied(SOCKET_CAUSE))
}

fn send_by_zero_copy(
    stream: &TcpStream,
    source: StreamSource,
    meter: &mut StreamMeter<'_>,
) -> io::Result<Evidence> {
    stream_sender::allow_zero_copy(stream)?;
    send_chunks(&source, meter, |chunk| stream_sender::send_by_reference(stream, chunk))?;
    Ok(Evidence::unknown(UNREAD_CAUSE))
}

fn send_by_sendfile(
    stream: &TcpStream,
    source: StreamSource,
    meter: &mut StreamMeter<'_>,
) -> io::Result<Evidence> {
    let mut file = File::from(memfd_create("nocopy-bench", MemfdFlags::CLOEXEC)?);
    source.chunks().try_for_each(|chunk| file.write_all(chunk))?;
    let source_bytes = source.bytes as u64;
    drop(source);
    let mut offset = 0;
    while meter.may_send() {
        let end = offset + CHUNK_BYTES as u64;
        while offset < end {
            let rest = (end - offset) as usize;
            sendfile(stream, &file, Some(&mut offset), rest)?;
        }
        meter.count_bytes(CHUNK_BYTES)?;
        offset %= source_bytes;
    }
    Ok(Evidence::unknown(REFERENCE_CAUSE))
}

fn send_by_vmsplice(
    stream: &TcpStream,
    source: StreamSource,
    meter: &mut StreamMeter<'_>,
) -> io::Result<Evidence> {
    let (from, to) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setpipe_size(&to, PIPE_BYTES)?;
    send_chunks(&source, meter, |chunk| {
        let mut rest = chunk;
        while !rest.is_empty() {
            let lent = vmsplice(&to, &[IoSlice::new(rest)], SpliceFFlags::empty())?;
            rest = &rest[lent..];
            let mut left = lent;
            while left > 0 {
                left -= splice(&from, None, stream, None, left, SpliceFlags::empty())?;
            }
        }
        Ok(())
    })?;
    Ok(Evidence::unknown(REFERENCE_CAUSE))
}
