//! nocopy's own streams, used as a program would use them.

use crate::evidence;
use crate::lines::PATIENCE;
use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::thread::sleep;
use std::time::{Duration, Instant};

use nocopy::tcp::{Method, Published, ReceiveMethod, Sender, Stream};
use nocopy::{BufferMut, Pool};

use super::messages::PeerReport;
use super::meter::StreamMeter;
use super::source::{CHUNK_BYTES, fill_pattern};
use crate::frame;
use nocopy_report::result::Evidence;

/// Bytes of a buffer of a socket's own pool, by default.
const BUFFER_BYTES: usize = 64 << 10;

const RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// Sends owned buffers by this method, or by the one that measures best.
pub(super) fn send_owned_buffers(
    stream: TcpStream,
    method: Option<Method>,
    source_bytes: usize,
    meter: &mut StreamMeter<'_>,
) -> io::Result<Evidence> {
    let pool = Pool::new((source_bytes / BUFFER_BYTES) as u32, BUFFER_BYTES)?;
    // The limit of locked memory is shared with the ring of the previous trial, which the kernel frees after
    // its process has ended.
    let give_up = Instant::now() + PATIENCE;
    let mut socket = loop {
        let builder = Stream::builder().send_pool(&pool);
        let builder = match method {
            Some(method) => builder.method(method),
            None => builder,
        };
        // SAFETY: the stream's other descriptor sends nothing, and is closed below.
        #[allow(unsafe_code)]
        let opened = unsafe { builder.wrap_unshared(stream.try_clone()?) };
        match opened {
            Err(error) if is_short_of_memory(&error) && Instant::now() < give_up => sleep(RETRY_INTERVAL),
            opened => break opened.map_err(io::Error::other)?,
        }
    };
    drop(stream);
    let sender = socket.sender();
    send_until_window_closes(sender, meter)?;
    sender.finish()?;
    if !sender.drain(PATIENCE)? {
        return Err(io::Error::new(io::ErrorKind::TimedOut, "the last bytes were never acknowledged"));
    }
    Ok(evidence::ledger_evidence(&sender.ledger()))
}

fn is_short_of_memory(error: &(dyn std::error::Error + 'static)) -> bool {
    let short = |error: &io::Error| error.raw_os_error() == Some(libc::ENOMEM);
    std::iter::successors(Some(error), |error| error.source())
        .any(|error| error.downcast_ref().is_some_and(short))
}

/// Sends published data by the method found best.
pub(super) fn send_published_data(
    stream: TcpStream,
    source_bytes: usize,
    meter: &mut StreamMeter<'_>,
) -> io::Result<Evidence> {
    let data = Published::written(source_bytes, fill_pattern).map_err(io::Error::other)?;
    let mut socket = Stream::builder().wrap(stream).map_err(io::Error::other)?;
    let sender = socket.sender();
    let mut offset = 0;
    while meter.may_send() {
        let range = offset..offset + CHUNK_BYTES as u64;
        sender.send_published(&data, range)?;
        sender.flush()?;
        meter.count_bytes(CHUNK_BYTES)?;
        offset = (offset + CHUNK_BYTES as u64) % source_bytes as u64;
    }
    sender.finish()?;
    Ok(evidence::ledger_evidence(&sender.ledger()))
}

/// Buffers are reused in every case; taking the last returned one first keeps them in the cache.
fn send_until_window_closes(sender: &mut Sender, meter: &mut StreamMeter<'_>) -> io::Result<()> {
    let mut free_buffers: VecDeque<BufferMut> = std::iter::from_fn(|| sender.buffer()).collect();
    for buffer in &mut free_buffers {
        buffer.resize(BUFFER_BYTES);
        fill_pattern(buffer);
    }
    while meter.may_send() {
        for _ in 0..CHUNK_BYTES / BUFFER_BYTES {
            let mut buffer = match free_buffers.pop_front() {
                Some(buffer) => buffer,
                None => sender.wait_buffer(Duration::MAX)?.expect("no limit"),
            };
            buffer.resize(BUFFER_BYTES);
            sender.send(buffer).map_err(|rejected| rejected.reason)?;
        }
        sender.flush()?;
        free_buffers.extend(std::iter::from_fn(|| sender.buffer()));
        meter.count_bytes(CHUNK_BYTES)?;
    }
    free_buffers.into_iter().for_each(|buffer| sender.recycle(buffer));
    Ok(())
}

/// Receives chunks, and reads every byte.
pub(super) fn receive_chunks(
    stream: TcpStream,
    method: Option<ReceiveMethod>,
    mut meter: StreamMeter<'_>,
) -> io::Result<PeerReport> {
    let builder = Stream::builder();
    let builder = match method {
        Some(method) => builder.receive_method(method),
        None => builder,
    };
    let mut stream = builder.wrap(stream).map_err(io::Error::other)?;
    let receiver = stream.receiver();
    while let Some(chunk) = receiver.receive()? {
        chunk.for_each_part(frame::read_every_byte);
        let bytes = chunk.len();
        receiver.recycle(chunk);
        meter.count_bytes(bytes)?;
    }
    let ledger = receiver.ledger();
    Ok(PeerReport {
        reading: meter.finish(),
        evidence: Some(evidence::ledger_evidence(&ledger)),
        mapped_fraction: Some(
            ledger.bytes_of(nocopy::Evidence::ZeroCopy) as f64 / ledger.bytes().max(1) as f64,
        ),
    })
}
