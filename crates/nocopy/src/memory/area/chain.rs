//! A packet in several buffers.

use std::fmt;
use std::ops::{Deref, DerefMut};

use smallvec::SmallVec;

use super::Frame;

/// Buffers that a chain holds without an allocation: enough for 9,000 bytes in frames of 2048.
const INLINE: usize = 8;

/// One packet as a chain of buffers: of [`Packet`](super::Packet)s as received, or of [`Frame`]s, taken or to
/// be sent.
///
/// The offsets at which a packet is cut have no meaning: AF_XDP cuts sent and received packets at different
/// offsets. A received chain has at least one buffer.
///
/// ```
/// # let (mut left, mut right) = nocopy::Port::memory_builder().multi_buffer(true).memory_pair()?;
/// use nocopy::{Chain, Frame, Packet};
/// let jumbo: Vec<u8> = (0..9000).map(|i| i as u8).collect();
/// left.sender().send_copy(&jumbo)?; // in several frames
/// left.sender().flush()?;
/// let mut batch = right.receiver().receive()?;
/// let mut packet = batch.next_chain().expect("one packet");
/// assert_eq!(packet.len(), 9000);
/// packet.as_mut()[0][..3].copy_from_slice(&[1, 2, 3]); // edited where it lies, in the first buffer
/// let kept: Chain<Frame> = packet.into_iter().map(Packet::take).collect(); // owned: for `Sender::send_chain`
/// assert_eq!(kept.to_vec()[..3], [1, 2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Chain<B> {
    buffers: SmallVec<[B; INLINE]>,
}

impl<B: Deref<Target = [u8]>> Chain<B> {
    pub(crate) fn new() -> Self {
        Self { buffers: SmallVec::new() }
    }

    pub(crate) fn push(&mut self, buffer: B) {
        self.buffers.push(buffer);
    }

    /// The bytes of all buffers together.
    pub fn len(&self) -> usize {
        self.buffers.iter().map(|buffer| buffer.len()).sum()
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.buffers.iter().all(|buffer| buffer.is_empty())
    }

    /// The buffers, from the front of the packet.
    pub(crate) fn buffers(&self) -> &[B] {
        &self.buffers
    }

    pub(crate) fn buffers_mut(&mut self) -> &mut [B] {
        &mut self.buffers
    }

    /// A copy of the packet in one piece.
    pub fn to_vec(&self) -> Vec<u8> {
        self.buffers.iter().flat_map(|buffer| buffer.iter().copied()).collect()
    }
}

impl<B: DerefMut<Target = [u8]>> Chain<B> {
    /// Overwrites the packet's bytes from `offset` on, across buffers, and returns how many fit.
    pub(crate) fn write_at(&mut self, offset: usize, bytes: &[u8]) -> usize {
        let (mut done, mut start) = (0, 0);
        for buffer in &mut self.buffers {
            let len = buffer.len();
            if let Some(piece) = (offset + done).checked_sub(start).and_then(|from| buffer.get_mut(from..)) {
                let count = piece.len().min(bytes.len() - done);
                piece[..count].copy_from_slice(&bytes[done..done + count]);
                done += count;
            }
            start += len;
        }
        done
    }
}

impl<B> AsRef<[B]> for Chain<B> {
    /// The buffers, from the front of the packet.
    fn as_ref(&self) -> &[B] {
        &self.buffers
    }
}

impl<B> AsMut<[B]> for Chain<B> {
    /// The buffers, from the front of the packet.
    fn as_mut(&mut self) -> &mut [B] {
        &mut self.buffers
    }
}

impl<B> FromIterator<B> for Chain<B> {
    fn from_iter<I: IntoIterator<Item = B>>(buffers: I) -> Self {
        Self { buffers: buffers.into_iter().collect() }
    }
}

impl<B> IntoIterator for Chain<B> {
    type Item = B;
    type IntoIter = smallvec::IntoIter<[B; INLINE]>;

    fn into_iter(self) -> Self::IntoIter {
        self.buffers.into_iter()
    }
}

impl From<Frame> for Chain<Frame> {
    fn from(frame: Frame) -> Self {
        std::iter::once(frame).collect()
    }
}

impl<B: Deref<Target = [u8]>> fmt::Debug for Chain<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lens: Vec<usize> = self.buffers.iter().map(|buffer| buffer.len()).collect();
        f.debug_struct("Chain").field("buffer_bytes", &lens).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_at_crosses_buffers_and_stops_at_the_end_of_the_packet() {
        let mut chain: Chain<Vec<u8>> =
            [vec![0, 1, 2], vec![3], vec![], vec![4, 5, 6, 7]].into_iter().collect();
        assert_eq!((chain.len(), chain.to_vec()), (8, (0..8).collect()));
        for offset in 0..10 {
            for len in 0..10 {
                let (before, fits) = (chain.to_vec(), len.min(8_usize.saturating_sub(offset)));
                assert_eq!(chain.write_at(offset, &vec![0xff; len]), fits);
                let mut expected = before.clone();
                expected[offset.min(8)..][..fits].fill(0xff);
                assert_eq!(chain.to_vec(), expected, "{offset} {len}");
                assert_eq!(chain.write_at(0, &before), 8);
            }
        }
        assert_eq!(chain.write_at(2, &[20, 30, 40]), 3);
        assert_eq!(chain.to_vec(), [0, 1, 20, 30, 40, 5, 6, 7]);
    }
}
