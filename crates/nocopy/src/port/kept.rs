//! Sending frames that return to the sender: for protocols that retransmit lost data without a copy.

use super::sender::NonblockingSender;
use crate::facts::rejected::Rejected;
use crate::memory::area::Frame;

impl NonblockingSender {
    /// Like [`send`](Self::send), for a frame that the sender wants back: after sending, it does not return
    /// to its pool but waits for [`completed`](Self::completed), with its contents unchanged, at the same
    /// place.
    ///
    /// This can be mixed with other ways to send. (The first call allocates four bytes for each frame of the
    /// area; later calls allocate nothing.)
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// let mut frame = port.sender().buffer().expect("a free frame");
    /// frame.fill(b"again").expect("fits");
    /// let place = frame.as_ptr();
    /// port.sender().send_kept(frame)?;
    /// port.sender().flush()?;
    /// let sent = port.sender().completed().expect("a memory port is done at once");
    /// assert_eq!((sent.as_ptr(), &*sent), (place, &b"again"[..]));
    /// assert!(port.sender().completed().is_none()); // there was one
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`send`](Self::send).
    #[inline]
    pub fn send_kept(&mut self, frame: Frame) -> Result<(), Rejected<Frame>> {
        self.pool.keep(&frame);
        self.send(frame).inspect_err(|rejected| self.pool.cancel_keep(&rejected.item))
    }

    /// The next frame that [`send_kept`](Self::send_kept) sent and the kernel has finished, in the order of
    /// completion. Reads more completions, as [`reap`](Self::reap) does, when all earlier ones were returned.
    ///
    /// The frame is yours: [`recycle`](Self::recycle) is the cheapest way to return it to its pool.
    pub fn completed(&mut self) -> Option<Frame> {
        if self.returned.is_empty() {
            self.reap();
            std::mem::swap(&mut self.kept, &mut self.returned);
            self.returned.reverse();
        }
        self.returned.pop()
    }

    /// Takes back a frame that is not to be sent: without an atomic operation if it belongs to this half,
    /// otherwise like dropping it.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        self.pool.recycle(frame);
    }
}

/// For UDP over a port that carries messages.
#[cfg(feature = "message")]
impl NonblockingSender {
    /// All returned frames at once, for a protocol that uses no other method to take them.
    pub(crate) fn take_completed(&mut self) -> impl ExactSizeIterator<Item = Frame> + '_ {
        debug_assert!(self.returned.is_empty(), "asked for one by one before");
        self.reap();
        self.kept.drain(..)
    }

    /// Makes the frame return unchanged after its next sending, even if headers are put in front of it.
    #[inline]
    pub(crate) fn keep(&mut self, frame: &Frame) {
        self.pool.keep(frame);
    }

    /// Undoes [`keep`](Self::keep) for a frame that was not sent.
    pub(crate) fn cancel_keep(&self, frame: &Frame) {
        self.pool.cancel_keep(frame);
    }

    /// Returns a kept frame without sending it here, because its contents were sent elsewhere.
    pub(crate) fn return_kept(&mut self, frame: Frame) {
        self.pool.cancel_keep(&frame);
        self.kept.push(frame);
    }
}
