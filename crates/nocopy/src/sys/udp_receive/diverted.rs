//! Receiving rows of datagrams straight to where they belong.

use std::io;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use super::RecvmmsgArguments;

/// The most parts that the kernel takes for one message (`UIO_MAXIOV`).
const PARTS_MAX: usize = 1024;

/// Where rows go: the buffer of a message gets the headers, and in place of each row a gap.
///
/// ```text
///   buffer   header · gap · header · gap · header · row · header · row …
///                     │              │
///   rows             row            row       rows_each = 2; behind them, rows go to the buffer, too
/// ```
///
/// Without headers the gaps are side by side, and rows without a stride are one part of a message.
#[derive(Debug)]
pub(crate) struct Diversion<'a> {
    pub(crate) header_bytes: usize,
    pub(crate) row_bytes: usize,
    /// From the start of a row to the start of the next one.
    pub(crate) stride: usize,
    /// Rows for each message, as long as there are any.
    pub(crate) rows_each: usize,
    /// A whole number of rows; the last one may lack what is between rows.
    pub(crate) rows: RowMemory<'a>,
}

/// Memory of rows, borrowed through a pointer: what lies between rows is no part of it.
#[derive(Debug)]
pub(crate) struct RowMemory<'a> {
    first: NonNull<u8>,
    bytes: usize,
    _borrowed: PhantomData<&'a mut [u8]>,
}

impl RowMemory<'_> {
    /// # Safety
    /// The rows in these bytes can be written, and nothing else reads or writes them for this lifetime.
    pub(crate) unsafe fn new(first: NonNull<u8>, bytes: usize) -> Self {
        Self { first, bytes, _borrowed: PhantomData }
    }
}

impl<'a> From<&'a mut [u8]> for RowMemory<'a> {
    fn from(rows: &'a mut [u8]) -> Self {
        Self { bytes: rows.len(), first: NonNull::from(rows).cast(), _borrowed: PhantomData }
    }
}

impl Diversion<'_> {
    /// The most rows of a message for which a buffer and a call have room.
    pub(crate) fn rows_each_max(datagram_bytes: usize, buffer_bytes: usize) -> usize {
        // The last part is the rest of the buffer.
        (buffer_bytes / datagram_bytes).min((PARTS_MAX - 1) / 2)
    }
}

impl RecvmmsgArguments {
    /// As [`receive_from`](Self::receive_from), but rows go elsewhere than into the buffers. Panics if a
    /// buffer is too short for its rows, or if they are too many.
    ///
    /// # Safety
    /// As [`receive_from`](Self::receive_from).
    pub(crate) unsafe fn receive_diverted(
        &mut self,
        first: usize,
        socket: BorrowedFd<'_>,
        wait: bool,
        diversion: &mut Diversion<'_>,
    ) -> io::Result<usize> {
        let parts_each = 2 * diversion.rows_each + 1;
        assert!(parts_each <= PARTS_MAX, "{} rows for a message", diversion.rows_each);
        let messages = self.headers.len() - first;
        // Its memory does not move until the call is over.
        self.parts.clear();
        self.parts.reserve_exact(messages * parts_each);
        let Diversion { header_bytes, row_bytes, stride, rows_each, .. } = *diversion;
        let joins = header_bytes == 0 && stride == row_bytes;
        // A part is a row, or all rows of a message.
        let (part_stride, parts_of_rows) = if joins { (rows_each * stride, 1) } else { (stride, rows_each) };
        let rows = &diversion.rows;
        let mut parts = (0..rows.bytes).step_by(part_stride).map(|start| {
            let bytes = if joins { part_stride.min(rows.bytes - start) } else { row_bytes };
            assert!(bytes <= rows.bytes - start, "the last row is not whole");
            // In the memory of the rows, by the assertion.
            libc::iovec { iov_base: rows.first.as_ptr().wrapping_add(start).cast(), iov_len: bytes }
        });
        for slot in first..self.headers.len() {
            let start = self.parts.len();
            let mut rest = self.pieces[slot];
            let mut take = |bytes: usize| {
                assert!(bytes <= rest.iov_len, "a buffer of {} bytes is too short", rest.iov_len);
                let taken = libc::iovec { iov_base: rest.iov_base, iov_len: bytes };
                rest.iov_base = rest.iov_base.wrapping_byte_add(bytes);
                rest.iov_len -= bytes;
                taken
            };
            for part in parts.by_ref().take(parts_of_rows) {
                self.parts.push(take(header_bytes));
                take(part.iov_len); // the gap
                self.parts.push(part);
            }
            self.parts.push(rest);
            let header = &mut self.headers[slot].msg_hdr;
            header.msg_iov = self.parts[start..].as_mut_ptr();
            header.msg_iovlen = (self.parts.len() - start) as _;
        }
        // SAFETY: each header points to parts that lie in its slot's buffer, for which the caller vouches,
        // and in rows, which are borrowed exclusively until the call is over. No two parts overlap.
        let received = unsafe { self.receive_from(first, socket, wait) };
        for (header, piece) in self.headers[first..].iter_mut().zip(&mut self.pieces[first..]) {
            (header.msg_hdr.msg_iov, header.msg_hdr.msg_iovlen) = (piece, 1);
        }
        received
    }
}
