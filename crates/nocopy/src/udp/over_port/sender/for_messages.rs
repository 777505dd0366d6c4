//! Sending for the carrier of messages, which wants its frames back, and answers addresses that may be
//! forged.

use std::net::SocketAddr;
use std::os::fd::AsFd;

use super::{Sender, kernel_send_reason};
use crate::facts::evidence::{Cause, Evidence};
use crate::facts::rejected::{Reason, Rejected};
use crate::memory::area::Frame;

impl Sender {
    /// Begins a batch, if none has begun, with a time that the caller has read just now; otherwise the next
    /// send reads the clock.
    #[inline]
    pub(crate) fn begin_batch(&mut self, now_ns: u64) {
        if std::mem::replace(&mut self.at_rest, false) {
            self.route_cache.expire(now_ns);
        }
    }

    /// Like [`Sender::send_to`], for a payload that the caller wants back: when the kernel has finished with
    /// its frame, the frame waits for [`Sender::reap_into`], with the payload as it was sent, without
    /// headers. The frame of a datagram sent through the kernel waits there at once.
    #[inline]
    pub(crate) fn send_kept(&mut self, frame: Frame, to: SocketAddr) -> Result<(), Rejected<Frame>> {
        self.port.keep(&frame);
        match self.send_by_any_path(frame, to, None) {
            Ok(None) => Ok(()),
            Ok(Some(frame)) => {
                self.port.return_kept(frame);
                Ok(())
            }
            Err(rejected) => {
                self.port.cancel_keep(&rejected.item);
                Err(rejected)
            }
        }
    }

    /// Sends to an address that may be forged: through the kernel, so that no route is looked up or
    /// remembered for it. It may overtake queued datagrams. [`Reason::Full`]: so many wait there for hosts
    /// that may not exist that the rest is for others.
    pub(crate) fn send_to_unverified(&mut self, to: SocketAddr, payload: &[u8]) -> Result<(), Reason> {
        if !self.strangers.may_send_to_unverified(self.kernel.socket().as_fd(), payload.len(), to) {
            return Err(Reason::Full);
        }
        self.kernel.send_to(&[payload], to, None).map_err(kernel_send_reason)?;
        self.sent.strangers += 1;
        self.sent.through_kernel_bytes += payload.len() as u64;
        self.report(Evidence::Copied(Cause::SocketCall), self.sent.through_kernel_bytes);
        Ok(())
    }

    /// Takes back frames that the kernel has sent, and adds those of [`send_kept`](Sender::send_kept) to
    /// `frames`; see [`nocopy::Sender::completed`].
    ///
    /// [`nocopy::Sender::completed`]: crate::port::NonblockingSender::completed
    pub(crate) fn reap_into(&mut self, frames: &mut Vec<Frame>) -> usize {
        let completed = self.port.take_completed();
        let count = completed.len();
        frames.extend(completed);
        count
    }
}
