//! Streams in programs of tokio, which `copy_buf` moves.

use std::io;
use std::net::TcpStream;
use std::pin::Pin;
use std::task::{Context, Poll};

use nocopy::tcp::{AsyncStream, Stream};
use tokio::io::{AsyncBufRead, AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, ReadBuf, copy_buf};

use super::messages::PeerReport;
use super::meter::StreamMeter;
use super::source::StreamSource;
use crate::asynchronous::{AsyncLibrary, run_program};
use crate::evidence;
use nocopy_report::result::Evidence;

/// Bytes that are copied at a time, of the library's own buffer, too.
pub(super) const BUFFER_BYTES: usize = 64 << 10;

const SOCKET_CAUSE: &str = "socket call: the kernel copies what is sent, and what is received";

pub(super) fn receive_by_copy_buf(
    stream: TcpStream,
    library: AsyncLibrary,
    meter: StreamMeter<'_>,
) -> io::Result<PeerReport> {
    let mut sink = CountingSink(meter);
    let evidence = run_program(async {
        Ok(match library {
            AsyncLibrary::Tokio => {
                let mut reader = BufReader::with_capacity(BUFFER_BYTES, register_with_tokio(stream)?);
                copy_buf(&mut reader, &mut sink).await?;
                Evidence::copied(SOCKET_CAUSE)
            }
            AsyncLibrary::Nocopy => {
                let mut stream = wrap(stream)?;
                copy_buf(&mut stream, &mut sink).await?;
                evidence::ledger_evidence(&stream.into_split().0.ledger())
            }
        })
    })?;
    Ok(PeerReport { reading: sink.0.finish(), evidence: Some(evidence), ..PeerReport::default() })
}

pub(super) fn send_by_copy_buf(
    stream: TcpStream,
    library: AsyncLibrary,
    source: &StreamSource,
    meter: &mut StreamMeter<'_>,
) -> io::Result<Evidence> {
    let mut reader = SourceReader { memory: source.memory(), start: 0, uncounted: 0, meter };
    run_program(async {
        Ok(match library {
            AsyncLibrary::Tokio => {
                let mut stream = register_with_tokio(stream)?;
                copy_buf(&mut reader, &mut stream).await?;
                stream.shutdown().await?;
                Evidence::copied(SOCKET_CAUSE)
            }
            AsyncLibrary::Nocopy => {
                let mut stream = wrap(stream)?;
                copy_buf(&mut reader, &mut stream).await?;
                stream.shutdown().await?;
                evidence::ledger_evidence(&stream.into_split().1.ledger())
            }
        })
    })
}

fn register_with_tokio(stream: TcpStream) -> io::Result<tokio::net::TcpStream> {
    stream.set_nonblocking(true)?;
    tokio::net::TcpStream::from_std(stream)
}

fn wrap(stream: TcpStream) -> io::Result<AsyncStream> {
    Stream::builder().wrap(stream).map_err(io::Error::other)?.into_async()
}

/// Takes bytes without a look at them.
struct CountingSink<'w>(StreamMeter<'w>);

impl AsyncWrite for CountingSink<'_> {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().0.count_bytes(bytes.len())?;
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// Reads the source again and again, until the window closes.
struct SourceReader<'a, 'w> {
    memory: &'a [u8],
    start: usize,
    /// Bytes consumed since the meter was told.
    uncounted: usize,
    meter: &'a mut StreamMeter<'w>,
}

impl AsyncBufRead for SourceReader<'_, '_> {
    fn poll_fill_buf(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let reader = self.get_mut();
        reader.meter.count_bytes(std::mem::take(&mut reader.uncounted))?;
        let bytes = if reader.meter.may_send() { BUFFER_BYTES - reader.start % BUFFER_BYTES } else { 0 };
        Poll::Ready(Ok(&reader.memory[reader.start..][..bytes]))
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        let reader = self.get_mut();
        reader.start = (reader.start + bytes) % reader.memory.len();
        reader.uncounted += bytes;
    }
}

/// `copy_buf` asks for it, and does not use it.
impl AsyncRead for SourceReader<'_, '_> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = match self.as_mut().poll_fill_buf(cx)? {
            Poll::Ready(bytes) => &bytes[..bytes.len().min(buffer.remaining())],
            Poll::Pending => return Poll::Pending,
        };
        buffer.put_slice(bytes);
        let bytes = bytes.len();
        self.consume(bytes);
        Poll::Ready(Ok(()))
    }
}
