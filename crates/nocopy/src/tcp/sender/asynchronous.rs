//! A stream's sending half for programs that write through tokio's [`AsyncWrite`], and its end.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::NonblockingSender;
use crate::engine::asynchronous::AsyncSender;
use crate::events::{self, Half};
use crate::facts::evidence::{Cause, Evidence};
use crate::sys::stream;
use crate::sys::udp_send::PIECES_MAX;
use crate::sys::watch::CallOutcome;

impl AsyncSender<NonblockingSender> {
    /// Resolves when everything queued is handed over, and ends the stream: the peer sees its end after the
    /// last byte. This side can still receive. If the future is dropped before, the stream goes on.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
    /// use nocopy::tcp::{Listener, Stream};
    /// let listener = Listener::bind("127.0.0.1:0")?;
    /// let (_receiver, sender) = Stream::connect(listener.local_addr()?)?.split();
    /// let mut sender = sender.into_async()?;
    /// let mut buffer = sender.buffer().await?; // waits while all are in use
    /// buffer.fill(b"hello")?;
    /// sender.send(buffer)?;
    /// sender.finish().await?;
    /// let mut peer = listener.accept()?.0.split().0.into_async()?;
    /// assert_eq!(peer.receive().await?.expect("bytes").to_vec(), b"hello");
    /// assert!(peer.receive().await?.is_none());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # })
    /// # }
    /// ```
    ///
    /// # Errors
    /// The connection is closed.
    pub async fn finish(&mut self) -> io::Result<()> {
        self.flush().await?;
        self.end_stream();
        Ok(())
    }
}

/// The kernel copies, as with [`send_copy`](super::Sender::send_copy), and has the bytes when a write
/// resolves: the peer needs no flush to receive them. What [`send`](NonblockingSender::send) queued is handed
/// over before.
impl AsyncWrite for AsyncSender<NonblockingSender> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let sender = self.get_mut();
        if sender.queued() > 0 {
            ready!(sender.poll_flush_queue(cx))?;
        }
        sender.poll_call(cx, |half| half.write_now(pieces), NonblockingSender::arm_for_room)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().poll_flush_queue(cx)
    }

    /// Ends the stream, as [`finish`](AsyncSender::finish).
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let sender = self.get_mut();
        ready!(sender.poll_flush_queue(cx))?;
        sender.end_stream();
        Poll::Ready(Ok(()))
    }
}

impl NonblockingSender {
    /// Sends as many bytes as the socket accepts now, with nothing queued before them, of as many pieces as a
    /// call takes.
    fn write_now(&mut self, pieces: &[IoSlice<'_>]) -> io::Result<CallOutcome<usize>> {
        let pieces = &pieces[..pieces.len().min(PIECES_MAX)];
        let bytes: usize = pieces.iter().map(|piece| piece.len()).sum();
        let sent = loop {
            match stream::send_copied_pieces(self.queue.socket(), pieces, false) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(CallOutcome::Blocked),
                sent => break sent.map_err(|error| self.send_error(error))?,
            }
        };
        self.outcome.slices += 1;
        self.outcome.bytes += sent as u64;
        let evidence = Evidence::Copied(Cause::Slice);
        events::add_to_ledger(&mut self.ledger, Half::TcpSender, evidence, 0, sent as u64);
        Ok(if sent < bytes { CallOutcome::Exhausted(sent) } else { CallOutcome::Done(sent) })
    }

    /// As [`arm`](Self::arm), for a write that was blocked.
    fn arm_for_room(&mut self) -> io::Result<bool> {
        self.queue.open_descriptor()?;
        self.reap();
        self.queue.set_wants_room(true);
        stream::is_sendable(self.queue.socket()).map_err(|error| self.send_error(error))
    }
}
