//! How much may be on its way (docs/protocol.md §9).

/// RFC 6928.
const INITIAL_WINDOW: usize = 10;
const MINIMUM_WINDOW: usize = 2;

#[derive(Debug)]
pub(super) struct Congestion {
    window: usize,
    threshold: usize,
    /// Packets acknowledged that have not made the window grow yet.
    credit: usize,
    /// Losses of transmissions up to here are of a round that was paid for.
    paid: u64,
}

impl Congestion {
    pub(super) fn new() -> Self {
        Self { window: INITIAL_WINDOW, threshold: usize::MAX, credit: 0, paid: 0 }
    }

    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Packets arrived, `marked` of them with CE marks; the window grows only where it limited the sender.
    pub(super) fn acknowledged(&mut self, packets: usize, marked: usize, transmissions: u64, limited: bool) {
        let _ = marked;
        let _ = transmissions;
        if !limited {
            return;
        }
        if self.window < self.threshold {
            self.window += packets;
        } else {
            self.credit += packets;
            while self.credit >= self.window {
                self.credit -= self.window;
                self.window += 1;
            }
        }
    }

    /// Packets were lost, the newest of them sent as that transmission.
    pub(super) fn lost(&mut self, newest: u64, transmissions: u64) {
        if newest > self.paid {
            self.paid = transmissions;
            self.window = (self.window / 2).max(MINIMUM_WINDOW);
            self.threshold = self.window;
        }
    }

    /// Nothing gets through any more.
    pub(super) fn collapse(&mut self) {
        self.threshold = (self.window / 2).max(MINIMUM_WINDOW);
        self.window = MINIMUM_WINDOW;
    }
}
