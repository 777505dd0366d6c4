//! Sending frames that come back: for protocols that send again what was lost, without a copy.

use super::sender::{Rejected, Sender};
use crate::memory::area::Frame;

impl Sender {
    /// Like [`Sender::send`], for a frame that is wanted back: when the kernel is done with it, it does not go home to its pool but
    /// waits for [`Sender::reap_into`], and holds what it held when it was sent, at the same place.
    ///
    /// Frames sent this way and any other way may take turns. (The first one sent this way allocates four bytes for each frame of
    /// the area; no other does.)
    ///
    /// ```
    /// # let (mut port, _peer) = nocopy::Port::memory_pair()?;
    /// let mut frame = port.sender().frame().expect("a free frame");
    /// frame.fill(b"again").expect("fits");
    /// let number = frame.index();
    /// port.sender().send_kept(frame)?;
    /// port.sender().flush()?;
    /// let mut sent = Vec::new();
    /// port.sender().reap_into(&mut sent);
    /// assert_eq!((sent[0].index(), &*sent[0]), (number, &b"again"[..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Sender::send`].
    #[inline]
    pub fn send_kept(&mut self, frame: Frame) -> Result<(), Rejected> {
        self.pool.keep(&frame);
        self.send(frame).inspect_err(|rejected| self.pool.unkeep(&rejected.frame))
    }

    /// Takes back the frames the kernel has finished sending, as [`Sender::reap`] does, and adds those that
    /// [`send_kept`](Sender::send_kept) sent to `frames`, in the order in which they came back, also those that any call came
    /// across since the last time. Returns how many those are.
    ///
    /// They are yours: [`recycle`](Sender::recycle) is the cheapest way home.
    pub fn reap_into(&mut self, frames: &mut Vec<Frame>) -> usize {
        self.reap();
        let count = self.kept.len();
        frames.append(&mut self.kept);
        count
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
