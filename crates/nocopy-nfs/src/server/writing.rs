//! From the begin of a long write to its reply: the data go from the socket into the file as they come.
//!
//! A worker moves what there is by splice(2), through a pipe: the kernel copies it once, into the page cache. It goes on with the next write
//! of the connection, and waits for a moment when no more is there, unless other work waits: to wake another thread takes as long as a tenth
//! of a write of 1 MiB. Then it gives the write back to the loop of the connection, which waits for the socket: so a client that stops in the
//! middle holds no thread, no pipe, no memory, and no lock of the file.

use std::net::TcpStream;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, pwrite, retry_on_intr};
use rustix::net::{RecvFlags, recv};

use super::Shared;
use super::accounts::ClientCounts;
use super::core::{Write, WriteCall, put};
use super::output::Outgoing;
use super::pipes::{LARGE_PAGES_MAX, Lease};
use crate::wire::record::{BEGIN_BYTES, Begun, MARK_BYTES, Records};

/// What is copied through a buffer, where there is no pipe, goes by so much: half of a usual second-level cache.
const BUFFER_BYTES: usize = 256 << 10;

/// Less than that costs as much by a pipe.
const SPLICED_BYTES_MIN: usize = 64 << 10;

/// Of the next call: its begin, with whatever stands before the data of a write.
const NEXT_BYTES: usize = MARK_BYTES + BEGIN_BYTES;

/// So many writes of a connection follow each other, before it is another one's turn.
const WRITES_MAX: usize = 16;

/// Much longer than a client takes to send more that it has, and short for whoever waits.
const MOMENT: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };

/// A write that was not received whole.
#[derive(Debug)]
pub(super) struct LongWrite {
    call: WriteCall,
    socket: Arc<TcpStream>,
    client: Arc<ClientCounts>,
    /// What came with the call, of its data and before them.
    begin: Vec<u8>,
    data_at: usize,
    /// Once a worker has begun it.
    write: Option<Write>,
    /// Of the data, and of what fills them up, what has not come.
    left: usize,
    padding: usize,
    /// Bytes that were copied between buffers, and that were not copied out of the socket.
    moved: usize,
    spliced: usize,
}

/// What a worker has done.
#[derive(Debug)]
pub(super) enum Done {
    /// A call, to which this is the reply.
    Reply(Outgoing),
    /// A long write of which this is the reply; it goes on with what follows.
    ReplyAndMore(Outgoing),
    /// All long writes there were. What has come behind them is this, and other calls are read again.
    OtherCalls(Vec<u8>),
    /// What has come of a long write.
    WriteWaits(Box<LongWrite>),
    /// A part of a long write, behind which the connection has ended.
    Ended,
}

/// Memory of a worker, which it takes when it first needs some.
#[derive(Debug, Default)]
pub(super) struct Buffer(Vec<u8>);

impl Buffer {
    fn get(&mut self) -> &mut [u8] {
        self.0.resize(BUFFER_BYTES, 0);
        &mut self.0
    }
}

impl LongWrite {
    /// The long write that begins next in what has come of a connection, if one does.
    pub(super) fn begun(
        records: &mut Records,
        shared: &Shared,
        socket: &Arc<TcpStream>,
        client: &Arc<ClientCounts>,
    ) -> Option<Self> {
        let Begun { begin, bytes } = records.begun()?;
        let (call, data_at) = shared.core.parse_long_write(begin, bytes)?;
        let (left, padding) = (call.bytes(), bytes - data_at - call.bytes());
        let (begin, at) = records.give_up();
        client.note_call();
        Some(Self {
            call,
            socket: Arc::clone(socket),
            client: Arc::clone(client),
            moved: begin.len() - at,
            begin,
            data_at: at + data_at,
            write: None,
            left,
            padding,
            spliced: 0,
        })
    }

    /// Writes what there is, and long writes that follow; the replies to all are given to `tell`.
    pub(super) fn go_on(
        mut self: Box<Self>,
        shared: &Shared,
        buffer: &mut Buffer,
        tell: impl Fn(Done),
    ) -> Done {
        let mut writes = 0;
        loop {
            match self.finish(shared, buffer) {
                // At once: the client may wait for it before it sends more.
                Ok(reply) => tell(Done::ReplyAndMore(reply)),
                Err(Errno::AGAIN) => {
                    shared.core.release_file(self.write.as_mut());
                    return Done::WriteWaits(self);
                }
                Err(_) => return Done::Ended,
            }
            writes += 1;
            if writes == WRITES_MAX || shared.workers.are_wanted() {
                return Done::OtherCalls(Vec::new());
            }
            match self.next(shared) {
                Ok(next) => *self = next,
                Err(bytes) => return Done::OtherCalls(bytes),
            }
        }
    }

    /// Writes all of it.
    ///
    /// # Errors
    /// Not all of it has come (`AGAIN`), or will.
    fn finish(&mut self, shared: &Shared, buffer: &mut Buffer) -> rustix::io::Result<Outgoing> {
        if self.write.is_none() {
            self.write = Some(self.begin(shared));
        }
        while self.left + self.padding > 0 {
            match self.piece(shared, buffer) {
                Ok(0) => return Err(Errno::CONNRESET),
                Ok(count) => self.note_come(count),
                Err(Errno::AGAIN) if self.waits(shared) => {}
                Err(error) => return Err(error),
            }
        }
        let write = self.write.take().expect("it was begun");
        let (reply, count) = shared.core.end_write(write);
        self.client.note_written(count, self.moved, self.spliced);
        Ok(Outgoing::bytes(reply))
    }

    fn note_come(&mut self, count: usize) {
        let data = count.min(self.left);
        self.left -= data;
        self.padding -= count - data;
    }

    /// The write that follows, or what has come that is none.
    fn next(&self, shared: &Shared) -> Result<Self, Vec<u8>> {
        let mut begin = vec![0; NEXT_BYTES];
        let count = loop {
            match retry_on_intr(|| recv(&self.socket, &mut begin[..], RecvFlags::DONTWAIT)) {
                Ok((count, _)) => break count,
                Err(Errno::AGAIN) if self.waits(shared) => {}
                // The loop will see it.
                Err(_) => break 0,
            }
        };
        begin.truncate(count);
        let mut records = Records::new(shared.core.call_bytes_max());
        records.push(&begin);
        Self::begun(&mut records, shared, &self.socket, &self.client).ok_or(begin)
    }

    /// Waits for more for a moment, if no other work waits, and returns whether some has come.
    fn waits(&self, shared: &Shared) -> bool {
        let mut sockets = [PollFd::new(&self.socket, PollFlags::IN)];
        !shared.workers.are_wanted() && poll(&mut sockets, Some(&MOMENT)).is_ok_and(|ready| ready > 0)
    }

    /// Opens the file, and writes what came with the call.
    fn begin(&mut self, shared: &Shared) -> Write {
        let mut write = shared.core.begin_write(&self.call);
        let begin = std::mem::take(&mut self.begin);
        let come = &begin[self.data_at..];
        let mut data = &come[..come.len().min(self.left)];
        self.note_come(come.len());
        shared.core.write_on(&mut write, data.len(), |file, offset| put(file, offset, &mut data));
        write
    }

    /// Moves what there is, or a part of it, and returns how many bytes came out of the socket.
    fn piece(&mut self, shared: &Shared, buffer: &mut Buffer) -> rustix::io::Result<usize> {
        let is_good = self.write.as_ref().is_some_and(Write::is_good);
        let is_long = self.left >= SPLICED_BYTES_MIN && is_good;
        match is_long.then(|| shared.pipes.take(LARGE_PAGES_MAX)).flatten() {
            Some(pipe) => self.splice(shared, pipe, buffer),
            None => self.copy(shared, buffer.get()),
        }
    }

    fn splice(&mut self, shared: &Shared, mut pipe: Lease, buffer: &mut Buffer) -> rustix::io::Result<usize> {
        let count = match pipe.receive(&self.socket, self.left) {
            // Nothing has come, or an urgent byte is next, at which splice(2) stops for ever and recv(2) does not.
            Err(Errno::AGAIN) => return self.copy(shared, buffer.get()),
            received => received?,
        };
        let write = self.write.as_mut().expect("it was begun");
        let mut copied = 0..0;
        shared.core.write_on(write, count, |file, offset| {
            let written = empty(&mut pipe, file, offset, buffer, &mut copied)?;
            self.spliced += if copied.end == 0 { written } else { 0 };
            Ok(written)
        });
        Ok(count)
    }

    fn copy(&mut self, shared: &Shared, buffer: &mut [u8]) -> rustix::io::Result<usize> {
        let wanted = buffer.len().min(self.left + self.padding);
        let (count, _) = retry_on_intr(|| recv(&self.socket, &mut buffer[..wanted], RecvFlags::DONTWAIT))?;
        let mut data = &buffer[..count.min(self.left)];
        let write = self.write.as_mut().expect("it was begun");
        shared.core.write_on(write, data.len(), |file, offset| put(file, offset, &mut data));
        Ok(count)
    }
}

/// Puts what a pipe holds into a file: by reference, or, where the file system has no such thing, through the buffer, a part of which,
/// `copied`, is still to be written.
fn empty(
    pipe: &mut Lease,
    file: impl AsFd,
    offset: u64,
    buffer: &mut Buffer,
    copied: &mut Range<usize>,
) -> rustix::io::Result<usize> {
    if copied.start == copied.end {
        match pipe.put(&file, offset) {
            Err(Errno::INVAL) => *copied = 0..pipe.read(buffer.get())?,
            done => return done,
        }
    }
    let count = pwrite(file, &buffer.get()[copied.clone()], offset)?;
    copied.start += count;
    Ok(count)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::io::Write as _;
    use std::os::unix::net::UnixStream;

    use super::super::pipes::Pipes;
    use super::*;

    /// What comes out of a socket arrives in a file.
    fn check(file: &File, path: &std::path::Path) {
        let content: Vec<u8> = (0..600_000_u32).map(|place| (place * 7 % 251) as u8).collect();
        let (here, mut there) = UnixStream::pair().unwrap();
        let sent = content.clone();
        let sender = std::thread::spawn(move || there.write_all(&sent).unwrap());
        let (pipes, mut buffer, mut offset) = (Arc::new(Pipes::new(4)), Buffer::default(), 0);
        while offset < content.len() {
            let mut pipe = pipes.take(LARGE_PAGES_MAX).unwrap();
            let mut count = match pipe.receive(&here, content.len() - offset) {
                Err(Errno::AGAIN) => continue, // nothing is there yet
                received => received.unwrap(),
            };
            let mut copied = 0..0;
            while count > 0 {
                let written = empty(&mut pipe, file, offset as u64, &mut buffer, &mut copied).unwrap();
                offset += written;
                count -= written;
            }
            assert_eq!((pipe.held(), copied.end - copied.start), (0, 0));
        }
        sender.join().unwrap();
        assert!(std::fs::read(path).unwrap() == content);
    }

    #[test]
    fn what_a_pipe_holds_goes_into_the_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        check(file.as_file(), file.path());
    }

    /// Of a file that is opened to be appended to, the kernel refuses splice(2) just as of one whose file system has none.
    #[test]
    fn where_a_file_refuses_splice_it_is_written_from_a_buffer() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let appending = OpenOptions::new().append(true).open(file.path()).unwrap();
        check(&appending, file.path());
    }
}
