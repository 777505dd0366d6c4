//! Files that grow by whole sectors, written past the page cache directly from the memory that contains the
//! packets; and pipes and devices, which are written in order.
//!
//! While one write is in progress, the next is collected. After a failed write the file is cut back to the
//! last complete write.

use std::fmt;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

use crate::sys::disk::{self, WriteRing};
pub use crate::sys::disk::{SectorBuffer, Sectors};
use crate::sys::poll::{ready_events, wait_writable};

/// The length of every write must be a multiple of this; no disk has larger sectors.
pub const SECTOR_BYTES: usize = 4096;

/// Written at a time to a stream whose writes may wait for its reader: if it can be written to, a pipe has
/// room for so much.
const WAITING_BYTES: usize = 4096;

/// How a file is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteMethod {
    /// Past the page cache (`O_DIRECT`): the disk reads the packets' memory itself. If false, each write is
    /// copied.
    pub direct: bool,
    /// Whether writes run in the background (io_uring). If false, each write waits (`pwritev`).
    pub in_background: bool,
    /// Whether it is a pipe or device, which is written in order (`writev`).
    pub in_order: bool,
}

impl fmt::Display for WriteMethod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.in_order, self.in_background, self.direct) {
            (true, ..) => "writev, in order",
            (_, true, true) => "io_uring, direct",
            (_, true, false) => "io_uring, through the page cache",
            (_, false, true) => "pwritev, direct",
            (_, false, false) => "pwritev, through the page cache",
        })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WriteTarget {
    File {
        direct: bool,
    },
    /// A pipe or device. Its writes may wait for the reader, or return without.
    Stream {
        may_wait: bool,
    },
}

/// A finished write.
#[derive(Debug)]
pub struct Written {
    /// The data that was not written.
    pub sectors: Vec<Sectors>,
    /// How many of the first sectors are in the file.
    pub whole: usize,
    /// Why the other sectors are not in the file.
    pub error: Option<io::Error>,
}

/// Writes sectors to the end of a file, and later to the next file.
#[derive(Debug)]
pub struct Writer {
    file: File,
    /// The length of the written data.
    end: u64,
    target: WriteTarget,
    /// The error says why io_uring is not available.
    ring: Result<WriteRing, io::Error>,
    pending: Option<PendingWrite>,
}

#[derive(Debug)]
struct PendingWrite {
    done: usize,
    total: usize,
    /// The sectors of the current write, if there is no ring, and its result; of a stream without room
    /// [`io::ErrorKind::WouldBlock`].
    sectors: Option<(Vec<Sectors>, io::Result<usize>)>,
}

impl Writer {
    /// Writes to a file from its beginning: an empty regular file, open for writing. Sets its flag
    /// `O_DIRECT`.
    ///
    /// # Errors
    /// It is not a regular file, or the kernel refused to report that.
    pub fn new(file: File) -> io::Result<Self> {
        let target = WriteTarget::File { direct: try_direct_io(&file)? };
        Ok(Self { file, end: 0, target, ring: WriteRing::new(), pending: None })
    }

    /// Writes to a pipe, a device, or a file at its own position, in order; the length of pieces does not
    /// matter. Whether its writes may wait for a reader or not, no call does, except [`wait`](Self::wait).
    pub fn for_stream(file: File, may_wait: bool) -> Self {
        let ring = Err(io::ErrorKind::Unsupported.into());
        Self { file, end: 0, target: WriteTarget::Stream { may_wait }, ring, pending: None }
    }

    /// As [`new`](Self::new), but without io_uring.
    ///
    /// # Errors
    /// As [`Writer::new`].
    pub fn without_io_uring(file: File) -> io::Result<Self> {
        let target = WriteTarget::File { direct: try_direct_io(&file)? };
        let ring = Err(io::ErrorKind::Unsupported.into());
        Ok(Self { file, end: 0, target, ring, pending: None })
    }

    /// Continues with another file.
    ///
    /// # Errors
    /// As [`Writer::new`]; the writer then continues with the old file.
    ///
    /// # Panics
    /// A write is in progress.
    pub fn next_file(&mut self, file: File) -> io::Result<()> {
        assert!(self.pending.is_none(), "a write is under way");
        let target = WriteTarget::File { direct: try_direct_io(&file)? };
        (self.file, self.target, self.end) = (file, target, 0);
        Ok(())
    }

    /// The current method of writing.
    pub fn method(&self) -> WriteMethod {
        let direct = self.target == WriteTarget::File { direct: true };
        WriteMethod { direct, in_background: self.ring.is_ok(), in_order: self.writes_to_stream() }
    }

    /// Whether it is a pipe or device.
    pub fn writes_to_stream(&self) -> bool {
        matches!(self.target, WriteTarget::Stream { .. })
    }

    /// The file being written.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Why io_uring is not used for a file.
    pub fn io_uring_refusal(&self) -> Option<&io::Error> {
        self.ring.as_ref().err().filter(|_| !self.writes_to_stream())
    }

    /// Whether nothing reads the stream any more.
    pub fn has_no_reader(&self) -> bool {
        let gone = PollFlags::ERR | PollFlags::HUP;
        self.writes_to_stream()
            && ready_events(self.file.as_fd(), PollFlags::empty()).is_ok_and(|events| events.intersects(gone))
    }

    /// Bytes in the file, of finished writes.
    pub fn file_bytes(&self) -> u64 {
        self.end
    }

    /// All bytes that were written, also by the write in progress.
    pub fn bytes_so_far(&self) -> u64 {
        self.end + self.pending.as_ref().map_or(0, |pending| pending.done as u64)
    }

    /// Whether a write is in progress.
    pub fn is_busy(&self) -> bool {
        self.pending.is_some()
    }

    /// Starts to append sectors, at most `UIO_MAXIOV` of them; for a file each of a multiple of
    /// [`SECTOR_BYTES`].
    ///
    /// # Panics
    /// A write is in progress.
    pub fn start_append(&mut self, sectors: Vec<Sectors>) {
        assert!(self.pending.is_none(), "a write is under way");
        let total = sectors.iter().map(|sectors| sectors.as_ref().len()).sum();
        self.pending = Some(PendingWrite { done: 0, total, sectors: None });
        self.continue_write(sectors, 0);
    }

    /// Hands the rest of a write to the kernel.
    fn continue_write(&mut self, sectors: Vec<Sectors>, done: usize) {
        let offset = self.end + done as u64;
        let over = match &mut self.ring {
            Ok(ring) => match ring.start_write(self.file.as_fd(), sectors, done, offset) {
                Ok(()) => None,
                Err((sectors, error)) => {
                    self.ring = Err(error);
                    Some(sectors)
                }
            },
            Err(_) => Some(sectors),
        };
        let over = over.map(|sectors| {
            let written = self.write(&sectors, done, offset);
            (sectors, written)
        });
        let pending = self.pending.as_mut().expect("begun");
        (pending.sectors, pending.done) = (over, done);
    }

    /// Writes sectors without their first `done` bytes, and returns how many bytes; does not wait for the
    /// reader of a stream.
    fn write(&self, sectors: &[Sectors], done: usize, offset: u64) -> io::Result<usize> {
        let slices: Vec<_> = disk::remaining_slices(sectors, done).map(IoSlice::new).collect();
        let written = rustix::io::retry_on_intr(|| match self.target {
            WriteTarget::File { .. } => rustix::io::pwritev(&self.file, &slices, offset),
            WriteTarget::Stream { may_wait: false } => rustix::io::writev(&self.file, &slices),
            WriteTarget::Stream { may_wait: true } => {
                // An error, too, is an event: the write reports it.
                if !ready_events(self.file.as_fd(), PollFlags::OUT).is_ok_and(|events| !events.is_empty()) {
                    return Err(Errno::AGAIN);
                }
                let first = slices.first().map_or(&[][..], |first| first);
                rustix::io::write(&self.file, &first[..first.len().min(WAITING_BYTES)])
            }
        });
        Ok(written?)
    }

    /// Makes another attempt to write to a stream that had no room.
    fn retry_stream_write(&mut self) {
        if let Some(PendingWrite { done, sectors: over, .. }) = &mut self.pending
            && matches!(over, Some((_, Err(error))) if error.kind() == io::ErrorKind::WouldBlock)
            && let (Some((sectors, _)), done) = (over.take(), *done)
        {
            self.continue_write(sectors, done);
        }
    }

    /// Returns the sectors of the write in progress, if it is finished.
    pub fn poll(&mut self) -> Option<Written> {
        if self.writes_to_stream() {
            self.retry_stream_write();
        }
        loop {
            let pending = self.pending.as_mut()?;
            let (sectors, result) = match (pending.sectors.take(), &mut self.ring) {
                (Some(over), _) => over,
                (None, Ok(ring)) => ring.take_finished_write()?,
                (None, Err(_)) => unreachable!("without a ring a write is over at once"),
            };
            let (done, total) = (pending.done, pending.total);
            match result {
                Ok(0) if done < total => {
                    return Some(self.end_failed_write(sectors, done, io::ErrorKind::WriteZero.into()));
                }
                Ok(bytes) if done + bytes < total => self.continue_write(sectors, done + bytes),
                Ok(_) => {
                    self.pending = None;
                    self.end += total as u64;
                    return Some(Written { whole: sectors.len(), sectors, error: None });
                }
                Err(error) if self.writes_to_stream() && error.kind() == io::ErrorKind::WouldBlock => {
                    self.pending.as_mut().expect("begun").sectors = Some((sectors, Err(error)));
                    return None;
                }
                Err(error) if matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN)) => {
                    self.continue_write(sectors, done);
                }
                // Direct writes are refused only now, or the rest is not a multiple of a sector.
                Err(error) if self.method().direct && error.raw_os_error() == Some(libc::EINVAL) => {
                    match self.turn_off_direct_io() {
                        Ok(()) => self.continue_write(sectors, done),
                        Err(_) => return Some(self.end_failed_write(sectors, done, error)),
                    }
                }
                Err(error) => return Some(self.end_failed_write(sectors, done, error)),
            }
        }
    }

    fn turn_off_direct_io(&mut self) -> io::Result<()> {
        fcntl_setfl(&self.file, fcntl_getfl(&self.file)? - OFlags::DIRECT)?;
        self.target = WriteTarget::File { direct: false };
        Ok(())
    }

    /// Gives up a write that waits for the reader of a stream.
    pub fn abort_stream_write(&mut self, error: io::Error) -> Option<Written> {
        let PendingWrite { done, sectors, .. } = self.pending.as_mut()?;
        let ((sectors, _), done) = (sectors.take()?, *done);
        Some(self.end_failed_write(sectors, done, error))
    }

    /// Ends a failed write: whole sectors stay, the rest is cut off, or was read already.
    fn end_failed_write(&mut self, sectors: Vec<Sectors>, done: usize, error: io::Error) -> Written {
        let (mut whole, mut bytes) = (0, 0);
        for len in sectors.iter().map(|sectors| sectors.as_ref().len()) {
            if bytes + len > done {
                break;
            }
            (whole, bytes) = (whole + 1, bytes + len);
        }
        self.pending = None;
        if self.writes_to_stream() {
            self.end += done as u64;
            return Written { sectors, whole, error: Some(error) };
        }
        self.end += bytes as u64;
        let error = self.file.set_len(self.end).err().unwrap_or(error);
        Written { sectors, whole, error: Some(error) }
    }

    /// Waits until the current write is finished, or for `timeout` at most. A signal may end the wait early.
    ///
    /// # Errors
    /// The kernel refused the wait.
    pub fn wait(&self, timeout: Duration) -> io::Result<()> {
        match (&self.pending, &self.ring) {
            (Some(PendingWrite { sectors: None, .. }), Ok(ring)) => ring.wait(timeout),
            (Some(PendingWrite { sectors: Some((_, Err(error))), .. }), _)
                if self.writes_to_stream() && error.kind() == io::ErrorKind::WouldBlock =>
            {
                wait_writable(self.file.as_fd(), timeout).map(drop)
            }
            _ => Ok(()),
        }
    }

    /// Sets the file's length, if its last sector is not full.
    ///
    /// # Errors
    /// The kernel refused it.
    ///
    /// # Panics
    /// A write is in progress, or `bytes` exceeds the length of the file.
    pub fn truncate_file(&mut self, bytes: u64) -> io::Result<()> {
        assert!(self.pending.is_none() && bytes <= self.end, "no end of the file");
        self.file.set_len(bytes)?;
        self.end = bytes;
        Ok(())
    }
}

/// Makes writes to a file direct if its file system can do that; returns whether.
fn try_direct_io(file: &File) -> io::Result<bool> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    // Not an option of open(2): some file systems create the file and then refuse, and a second open may find
    // another file.
    Ok(!is_only_page_cache(file)? && fcntl_setfl(file, fcntl_getfl(file)? | OFlags::DIRECT).is_ok())
}

/// Whether a file system is only page cache: since Linux 6.6 tmpfs accepts direct writes, but copies them.
fn is_only_page_cache(file: &File) -> io::Result<bool> {
    const TMPFS: i64 = 0x0102_1994;
    const RAMFS: i64 = 0x8584_58f6;
    Ok([TMPFS, RAMFS].contains(&rustix::fs::fstatfs(file)?.f_type))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled_sectors(byte: u8, count: usize) -> Sectors {
        let mut buffer = SectorBuffer::new(count * SECTOR_BYTES).unwrap();
        buffer.as_mut().fill(byte);
        Sectors::Memory(buffer)
    }

    fn wait_until_written(writer: &mut Writer) -> Written {
        loop {
            if let Some(written) = writer.poll() {
                return written;
            }
            writer.wait(Duration::from_secs(1)).unwrap();
        }
    }

    #[test]
    fn sectors_are_appended_with_and_without_io_uring() {
        for waiting in [false, true] {
            let path = std::env::temp_dir().join(format!("nocopy-disk-{waiting}-{}", std::process::id()));
            let file = File::create(&path).unwrap();
            let mut writer =
                if waiting { Writer::without_io_uring(file) } else { Writer::new(file) }.unwrap();
            writer.start_append(vec![filled_sectors(1, 1), filled_sectors(2, 300)]);
            assert!(writer.is_busy());
            let written = wait_until_written(&mut writer);
            assert_eq!((written.whole, written.sectors.len(), written.error.is_none()), (2, 2, true));
            writer.start_append(vec![filled_sectors(3, 2)]);
            wait_until_written(&mut writer);
            writer.truncate_file(writer.file_bytes() - 100).unwrap();
            let expected = [vec![1; 4096], vec![2; 300 * 4096], vec![3; 2 * 4096 - 100]].concat();
            assert!(std::fs::read(&path).unwrap() == expected);
            writer.next_file(File::create(&path).unwrap()).unwrap();
            assert_eq!((writer.file_bytes(), std::fs::metadata(&path).unwrap().len()), (0, 0));
            std::fs::remove_file(&path).unwrap();
        }
    }

    /// Both a pipe that returns without waiting, and one that would wait.
    #[test]
    fn a_pipe_write_continues_as_its_reader_reads() {
        use std::io::Read;

        for may_wait in [false, true] {
            let (mut reader, stream) = std::io::pipe().unwrap();
            let stream = File::from(std::os::fd::OwnedFd::from(stream));
            if !may_wait {
                fcntl_setfl(&stream, fcntl_getfl(&stream).unwrap() | OFlags::NONBLOCK).unwrap();
            }
            let mut writer = Writer::for_stream(stream, may_wait);
            writer.start_append(vec![filled_sectors(1, 1), filled_sectors(2, 300), filled_sectors(3, 1)]);
            assert!(writer.poll().is_none() && writer.is_busy(), "a pipe has less room");
            let expected = [vec![1; 4096], vec![2; 300 * 4096], vec![3; 4096]].concat();
            let mut read = vec![0; expected.len()];
            let reading = std::thread::spawn(move || {
                reader.read_exact(&mut read).unwrap();
                (reader, read)
            });
            assert_eq!(wait_until_written(&mut writer).whole, 3);
            let (reader, read) = reading.join().unwrap();
            assert!(read == expected && writer.bytes_so_far() == expected.len() as u64);
            assert!(!writer.has_no_reader());

            writer.start_append(vec![filled_sectors(4, 1), filled_sectors(5, 300)]);
            assert!(writer.poll().is_none());
            let given_up = writer.abort_stream_write(io::ErrorKind::TimedOut.into()).unwrap();
            assert_eq!((given_up.whole, writer.is_busy()), (1, false));
            drop(reader);
            assert!(writer.has_no_reader());
            writer.start_append(vec![filled_sectors(6, 1)]);
            let error = wait_until_written(&mut writer).error.unwrap();
            assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
        }
    }

    #[test]
    fn a_dropped_writer_finishes_its_write_before_freeing_memory() {
        let path = std::env::temp_dir().join(format!("nocopy-disk-dropped-{}", std::process::id()));
        let mut writer = Writer::new(File::create(&path).unwrap()).unwrap();
        writer.start_append(vec![filled_sectors(7, 2000)]);
        drop(writer);
        assert!(std::fs::read(&path).unwrap() == vec![7; 2000 * 4096]);
        std::fs::remove_file(&path).unwrap();
    }
}
