//! Whose packets are kept when memory gets short (docs/protocol.md §8).
//!
//! As long as there is more than a window's worth, everybody's. The last window is one peer's at a time, the *holder's*: so its message
//! gets whole, is read, and leaves the memory to the next. Without that, many halves of messages could fill it for ever.

use super::receive_window::Arrival;

#[derive(Debug)]
pub(super) struct Admission {
    /// Datagrams that the caller can hold.
    free: usize,
    reserve: usize,
    holder: Option<u32>,
}

impl Admission {
    pub(super) fn new(reserve: usize) -> Self {
        Self { free: usize::MAX, reserve, holder: None }
    }

    #[inline]
    pub(super) fn set_free(&mut self, packets: usize) {
        self.free = packets;
    }

    /// Whether a connection's packet is kept; counts it, if so.
    #[inline]
    pub(super) fn admit(&mut self, index: u32, arrival: Arrival) -> bool {
        if self.free <= self.reserve {
            if self.free == 0 {
                return false;
            }
            match self.holder {
                Some(holder) if holder != index => return false,
                Some(_) => {}
                None if arrival == Arrival::InOrder => self.holder = Some(index),
                None => return false,
            }
        }
        self.free -= 1;
        true
    }

    /// A connection holds nothing (any more).
    #[inline]
    pub(super) fn left(&mut self, index: u32) {
        if self.holder == Some(index) {
            self.holder = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_one_peers_at_a_time() {
        let mut admission = Admission::new(4);
        admission.set_free(5);
        assert!(admission.admit(1, Arrival::Ahead), "there is more than the reserve");
        assert!(!admission.admit(1, Arrival::Ahead), "who waits for something else does not get it");
        assert!(admission.admit(2, Arrival::InOrder) && admission.admit(2, Arrival::Ahead));
        assert!(!admission.admit(1, Arrival::InOrder));
        admission.left(1);
        assert!(!admission.admit(1, Arrival::InOrder));
        admission.left(2);
        assert!(admission.admit(1, Arrival::InOrder) && admission.admit(1, Arrival::Ahead));
        assert!(!admission.admit(1, Arrival::Ahead), "nothing is left");
    }
}
