//! Sending frames that come back: for protocols that send again what was lost, without a copy.

use super::sender::Sender;
use crate::facts::rejected::Rejected;
use crate::memory::area::Frame;

impl Sender {
    /// Like [`Sender::send`], for a frame that is wanted back: when the kernel is done with it, it does not go home to its pool but
    /// waits for [`Sender::completed`], and holds what it held when it was sent, at the same place.
    ///
    /// Frames sent this way and any other way may take turns. (The first one sent this way allocates four bytes for each frame of
    /// the area; no other does.)
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
    /// As [`Sender::send`].
    #[inline]
    pub fn send_kept(&mut self, frame: Frame) -> Result<(), Rejected<Frame>> {
        self.pool.keep(&frame);
        self.send(frame).inspect_err(|rejected| self.pool.unkeep(&rejected.item))
    }

    /// The next frame that [`send_kept`](Sender::send_kept) sent and the kernel has finished, in the order in which they came back. Takes
    /// more back, as [`Sender::reap`] does, when all that came before were returned here.
    ///
    /// It is yours: [`recycle`](Sender::recycle) is the cheapest way home.
    pub fn completed(&mut self) -> Option<Frame> {
        if self.returned.is_empty() {
            self.reap();
            std::mem::swap(&mut self.kept, &mut self.returned);
            self.returned.reverse();
        }
        self.returned.pop()
    }

    /// All of them at once, for a protocol that asks for them in no other way.
    pub(crate) fn take_completed(&mut self) -> impl ExactSizeIterator<Item = Frame> + '_ {
        debug_assert!(self.returned.is_empty(), "asked for one by one before");
        self.reap();
        self.kept.drain(..)
    }

    /// Takes a frame back that is not to be sent: free of any atomic if it belongs here, and the same as dropping it otherwise.
    #[inline]
    pub fn recycle(&mut self, frame: Frame) {
        self.pool.recycle(frame);
    }

    /// Makes the frame come back as it is now from the next time it is sent, whatever is put in front of it before.
    #[inline]
    pub(crate) fn keep(&mut self, frame: &Frame) {
        self.pool.keep(frame);
    }

    /// It was not sent after all.
    pub(crate) fn unkeep(&self, frame: &Frame) {
        self.pool.unkeep(frame);
    }

    /// Hands a frame that was kept back without having sent it here: what it held is on its way already.
    pub(crate) fn hand_back(&mut self, frame: Frame) {
        self.pool.unkeep(&frame);
        self.kept.push(frame);
    }
}
