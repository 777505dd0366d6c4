//! A stream's receiving half for programs that read through tokio's [`AsyncRead`] and [`AsyncBufRead`].

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncBufRead, AsyncRead, ReadBuf};

use super::NonblockingReceiver;
use super::error::ReceiveError;
use crate::engine::asynchronous::AsyncReceiver;
use crate::sys::tcp_receive;
use crate::sys::watch::CallOutcome;

impl AsyncRead for AsyncReceiver<NonblockingReceiver> {
    /// Copies bytes that have arrived into the program's memory; counted as [`Cause::Slice`].
    ///
    /// [`Cause::Slice`]: crate::Cause::Slice
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let receiver = self.get_mut();
        if buffer.remaining() == 0 {
            return Poll::Ready(Ok(()));
        }
        if receiver.unread.is_some() {
            let unread = receiver.unread_bytes();
            let bytes = unread.len().min(buffer.remaining());
            buffer.put_slice(&unread[..bytes]);
            receiver.consume_unread(bytes);
            return Poll::Ready(Ok(()));
        }
        receiver.poll_call(cx, |half| half.read_now_into(buffer))
    }
}

/// What was not consumed is returned by the next call of any receiving method.
impl AsyncBufRead for AsyncReceiver<NonblockingReceiver> {
    /// Returns bytes that the kernel has copied into a buffer of the half: up to 64 KiB, or the length that
    /// was [set](crate::tcp::Builder::receive_method). No page is mapped.
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let receiver = self.get_mut();
        if receiver.unread.is_none() {
            ready!(receiver.poll_call(cx, NonblockingReceiver::fill_now))?;
        }
        Poll::Ready(Ok(receiver.unread_bytes()))
    }

    fn consume(self: Pin<&mut Self>, bytes: usize) {
        self.get_mut().consume_unread(bytes);
    }
}

impl NonblockingReceiver {
    /// Copies arrived bytes into the program's memory.
    fn read_now_into(&mut self, buffer: &mut ReadBuf<'_>) -> io::Result<CallOutcome<()>> {
        let room = buffer.remaining();
        match tcp_receive::receive_unfilled(&self.socket, buffer).map_err(ReceiveError::from_errno) {
            Ok(received) => {
                self.note_slice(received)?;
                Ok(if received < room { CallOutcome::Exhausted(()) } else { CallOutcome::Done(()) })
            }
            Err(ReceiveError::WouldBlock) => Ok(CallOutcome::Blocked),
            Err(error) => Err(error.into()),
        }
    }

    /// Receives a chunk to be read in place; none at the end of the stream.
    fn fill_now(&mut self) -> io::Result<CallOutcome<()>> {
        match self.next_slice(false) {
            Ok(received) => {
                self.keep_unread(received);
                Ok(if self.found_less { CallOutcome::Exhausted(()) } else { CallOutcome::Done(()) })
            }
            Err(ReceiveError::WouldBlock) => Ok(CallOutcome::Blocked),
            Err(error) => Err(error.into()),
        }
    }
}
