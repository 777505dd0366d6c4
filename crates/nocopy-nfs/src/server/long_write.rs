//! Long writes: their data are moved from the socket into the file as they arrive.
//!
//! A worker moves them by splice(2), through a pipe: the kernel copies them once, into the page cache. It
//! continues with the next write of the connection, and waits for a moment if no more has arrived, unless
//! other work waits: waking another thread takes as long as a tenth of a write of 1 MiB. Then it returns the
//! write to the loop of the connection, which waits for the socket: so a client that stops in the middle
//! holds no thread, no pipe, no memory, and no lock of the file.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use nocopy::tcp::Pages;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::net::{RecvFlags, recv};

use super::SharedState;
use super::core::{OngoingWrite, WriteCall, write_at};
use super::reply_queue::OutgoingReply;
use super::statistics::ClientCounters;
use crate::wire::record::{BEGIN_BYTES, MARK_BYTES, PartialRecord, RecordAssembler};

/// Bytes copied at a time through a buffer, if there is no pipe: half of a usual second-level cache.
const BUFFER_BYTES: usize = 256 << 10;

/// The longest pipe.
const PIPE_BYTES: usize = 1 << 20;

/// For fewer bytes a pipe is not cheaper.
const SPLICED_BYTES_MIN: usize = 64 << 10;

/// The first bytes of the next call: everything before the data of a write.
const NEXT_BYTES: usize = MARK_BYTES + BEGIN_BYTES;

/// The most consecutive writes of a connection, before others have their turn.
const WRITES_MAX: usize = 16;

/// How long a thread waits for the next write of a connection: ample for a client that has more data, and too
/// short to delay others.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A write that was not received completely.
#[derive(Debug)]
pub(super) struct LongWrite {
    call: WriteCall,
    socket: Arc<TcpStream>,
    address: SocketAddr,
    client: Arc<ClientCounters>,
    /// The received part of the call: header and first data.
    first_bytes: Vec<u8>,
    data_at: usize,
    /// Set when a worker has begun it.
    write: Option<OngoingWrite>,
    /// Bytes of data and padding that have not arrived.
    left: usize,
    padding: usize,
    /// Bytes copied between buffers, and bytes not copied out of the socket.
    moved: usize,
    spliced: usize,
}

#[derive(Debug)]
pub(super) enum JobOutcome {
    Reply(OutgoingReply),
    /// The reply to a long write; another write follows.
    ReplyAndMore(OutgoingReply),
    /// No long write follows. These bytes arrived after it, and other calls are read again.
    OtherCalls(Vec<u8>),
    WriteWaits(Box<LongWrite>),
    /// The call is executed for another connection; another step will follow.
    InProgress,
    /// The reply goes to a newer connection, on which the client has repeated the call.
    Superseded,
    Ended,
}

/// Memory of a worker, allocated when first needed.
#[derive(Debug, Default)]
pub(super) struct CopyBuffer(Vec<u8>);

impl CopyBuffer {
    fn as_slice(&mut self) -> &mut [u8] {
        self.0.resize(BUFFER_BYTES, 0);
        &mut self.0
    }
}

impl LongWrite {
    /// The long write that begins the received bytes of a connection, if any.
    pub(super) fn from_incomplete_record(
        records: &mut RecordAssembler,
        shared: &SharedState,
        socket: &Arc<TcpStream>,
        address: SocketAddr,
        client: &Arc<ClientCounters>,
    ) -> Option<Self> {
        let PartialRecord { begin, bytes } = records.partial_long_record()?;
        let (call, data_at) = shared.core.parse_long_write(begin, bytes, address)?;
        // No underflow: a long write is only parsed if head, data and padding are exactly the record.
        let (left, padding) = (call.data_bytes(), bytes - data_at - call.data_bytes());
        let (begin, at) = records.take_partial();
        client.count_call();
        Some(Self {
            call,
            socket: Arc::clone(socket),
            address,
            client: Arc::clone(client),
            moved: begin.len() - at,
            first_bytes: begin,
            data_at: at + data_at,
            write: None,
            left,
            padding,
            spliced: 0,
        })
    }

    /// Writes what has arrived, and following long writes; the replies are passed to `on_outcome`.
    pub(super) fn run_writes(
        mut self: Box<Self>,
        shared: &SharedState,
        buffer: &mut CopyBuffer,
        on_outcome: impl Fn(JobOutcome),
    ) -> JobOutcome {
        let mut writes = 0;
        loop {
            match self.finish_write(shared, buffer) {
                // At once: the client may wait for it before it sends more.
                Ok(reply) => on_outcome(JobOutcome::ReplyAndMore(reply)),
                Err(Errno::AGAIN) => {
                    shared.core.release_file(self.write.as_mut());
                    return JobOutcome::WriteWaits(self);
                }
                Err(_) => return JobOutcome::Ended,
            }
            writes += 1;
            if writes == WRITES_MAX || shared.workers.has_waiting_jobs() {
                return JobOutcome::OtherCalls(Vec::new());
            }
            match self.receive_next_write(shared) {
                Ok(next) => *self = next,
                Err(bytes) => return JobOutcome::OtherCalls(bytes),
            }
        }
    }

    /// Writes the rest of the data. Errors: not all of the write has arrived yet (`AGAIN`), or the connection
    /// ended.
    fn finish_write(
        &mut self,
        shared: &SharedState,
        buffer: &mut CopyBuffer,
    ) -> rustix::io::Result<OutgoingReply> {
        if self.write.is_none() {
            self.write = Some(self.begin_write(shared));
        }
        while self.left + self.padding > 0 {
            match self.receive_piece(shared, buffer) {
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(count) => self.count_received(count),
                Err(Errno::AGAIN) if self.wait_for_data(shared) => {}
                Err(error) => return Err(error),
            }
        }
        let write = self.write.take().expect("it was begun");
        let (reply, count) = shared.core.end_write(write);
        self.client.count_write(count, self.moved, self.spliced);
        Ok(OutgoingReply::from_bytes(reply))
    }

    fn count_received(&mut self, count: usize) {
        let data = count.min(self.left);
        self.left -= data;
        self.padding -= count - data;
    }

    /// The following write, or the received bytes if they are another call.
    fn receive_next_write(&self, shared: &SharedState) -> Result<Self, Vec<u8>> {
        let mut begin = vec![0; NEXT_BYTES];
        let count = loop {
            match retry_on_intr(|| recv(&self.socket, &mut begin[..], RecvFlags::DONTWAIT)) {
                Ok((count, _)) => break count,
                Err(Errno::AGAIN) if self.wait_for_data(shared) => {}
                // The loop will see it.
                Err(_) => break 0,
            }
        };
        begin.truncate(count);
        let mut records = RecordAssembler::with_limits(shared.core.call_limits());
        records.push(&begin);
        Self::from_incomplete_record(&mut records, shared, &self.socket, self.address, &self.client)
            .ok_or(begin)
    }

    /// Waits for more for a moment, if no other work waits, and returns whether some has arrived.
    fn wait_for_data(&self, shared: &SharedState) -> bool {
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        !shared.workers.has_waiting_jobs() && poll(&mut sockets, Some(&MOMENT)).is_ok_and(|ready| ready > 0)
    }

    /// Opens the file, and writes the data that arrived with the call.
    fn begin_write(&mut self, shared: &SharedState) -> OngoingWrite {
        let mut write = shared.core.begin_write(&self.call);
        let begin = std::mem::take(&mut self.first_bytes);
        let received = &begin[self.data_at..];
        let mut data = &received[..received.len().min(self.left)];
        self.count_received(received.len());
        shared.core.write_piece(&mut write, data.len(), |file, offset| write_at(file, offset, &mut data));
        write
    }

    /// Moves arrived data, or a part of it, and returns how many bytes were taken from the socket.
    fn receive_piece(&mut self, shared: &SharedState, buffer: &mut CopyBuffer) -> rustix::io::Result<usize> {
        let is_good = self.write.as_ref().is_some_and(OngoingWrite::is_active);
        let is_long = self.left >= SPLICED_BYTES_MIN && is_good;
        match is_long.then(|| shared.pages.take(PIPE_BYTES)).flatten() {
            Some(pages) => self.receive_by_splice(shared, pages, buffer),
            None => self.receive_by_copy(shared, buffer.as_slice()),
        }
    }

    fn receive_by_splice(
        &mut self,
        shared: &SharedState,
        mut pages: Pages,
        buffer: &mut CopyBuffer,
    ) -> rustix::io::Result<usize> {
        let count = match pages.fill(&self.socket, None, self.left).map_err(to_errno) {
            // Nothing has arrived, or an urgent byte is next, where splice(2) stops for ever and recv(2) does
            // not.
            Err(Errno::AGAIN) => return self.receive_by_copy(shared, buffer.as_slice()),
            received => received?,
        };
        let write = self.write.as_mut().expect("it was begun");
        let mut copied = 0..0;
        shared.core.write_piece(write, count, |file, offset| {
            let written = drain_pipe_into_file(&mut pages, file, offset, buffer, &mut copied)?;
            self.spliced += if copied.end == 0 { written } else { 0 };
            Ok(written)
        });
        Ok(count)
    }

    fn receive_by_copy(&mut self, shared: &SharedState, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let wanted = buffer.len().min(self.left + self.padding);
        let (count, _) = retry_on_intr(|| recv(&self.socket, &mut buffer[..wanted], RecvFlags::DONTWAIT))?;
        let mut data = &buffer[..count.min(self.left)];
        let write = self.write.as_mut().expect("it was begun");
        shared.core.write_piece(write, data.len(), |file, offset| write_at(file, offset, &mut data));
        Ok(count)
    }
}

/// Moves a pipe's contents into a file: by reference, or, if the file system does not support that, through
/// the buffer, whose part `copied` is still to be written.
fn drain_pipe_into_file(
    pages: &mut Pages,
    file: impl AsFd,
    offset: u64,
    buffer: &mut CopyBuffer,
    copied: &mut Range<usize>,
) -> rustix::io::Result<usize> {
    if copied.start == copied.end {
        match pages.empty(&file, Some(offset), false).map_err(to_errno) {
            Err(Errno::INVAL) => *copied = 0..pages.read(buffer.as_slice()).map_err(to_errno)?,
            done => return done,
        }
    }
    let count = pwrite(file, &buffer.as_slice()[copied.clone()], offset)?;
    copied.start += count;
    Ok(count)
}

fn to_errno(error: io::Error) -> Errno {
    Errno::from_io_error(&error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use nocopy::tcp::PagePool;

    use super::*;

    /// Checks that the bytes of a socket arrive in a file.
    fn check_socket_to_file(file: &File, path: &std::path::Path) {
        let content: Vec<u8> = (0..600_000_u32).map(|place| (place * 7 % 251) as u8).collect();
        let (here, mut there) = UnixStream::pair().unwrap();
        let sent = content.clone();
        let sender = std::thread::spawn(move || there.write_all(&sent).unwrap());
        let (pool, mut buffer, mut offset) = (PagePool::new(4), CopyBuffer::default(), 0);
        while offset < content.len() {
            let mut pages = pool.take(PIPE_BYTES).unwrap();
            let mut count = match pages.fill(&here, None, content.len() - offset).map_err(to_errno) {
                Err(Errno::AGAIN) => continue, // nothing is there yet
                received => received.unwrap(),
            };
            let mut copied = 0..0;
            while count > 0 {
                let written =
                    drain_pipe_into_file(&mut pages, file, offset as u64, &mut buffer, &mut copied).unwrap();
                offset += written;
                count -= written;
            }
            assert_eq!((pages.buffered(), copied.end - copied.start), (0, 0));
        }
        sender.join().unwrap();
        assert!(std::fs::read(path).unwrap() == content);
    }

    #[test]
    fn pipe_contents_are_written_to_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        check_socket_to_file(file.as_file(), file.path());
    }

    /// For a file opened for appending, the kernel refuses splice(2) as for a file system without it.
    #[test]
    fn without_splice_data_is_written_from_a_buffer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let appending = OpenOptions::new().append(true).open(file.path()).unwrap();
        check_socket_to_file(&appending, file.path());
    }
}
