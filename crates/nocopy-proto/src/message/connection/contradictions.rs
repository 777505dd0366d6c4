//! Acknowledgements that contradict what this end has sent or what the peer has acknowledged
//! (docs/protocol.md §5.3).

use super::Connection;
use crate::message::time::Span;
use crate::message::wire::{Flags, Header};
use crate::message::{Time, Violation};

/// How long contradictions must last to end the connection, so that a few damaged datagrams do not.
const LASTING: Span = Span::from_secs(10);
/// How many contradictions must have been seen in that time.
const LASTING_COUNT: u32 = 3;

/// Contradictions while no packet in order was acknowledged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Contradictions {
    /// The first unacknowledged packet.
    first: u64,
    since: Time,
    count: u32,
    /// They have lasted too long.
    is_lasting: bool,
}

impl<S, R: AsRef<[u8]>> Connection<S, R> {
    /// Notes an acknowledgement of packets that were never sent, of a part of a unit, or below an earlier
    /// acknowledgement. The last may be old and overtaken: it counts only if its echo shows that the peer
    /// sent it after the first contradiction had arrived.
    #[cold]
    pub(super) fn note_contradiction(&mut self, now: Time, header: &Header) {
        if header.flags.contains(Flags::ECHO) {
            self.count_contradiction(now, |since| header.echo.wrapping_sub(since.ticks()).cast_signed() > 0);
        }
    }

    /// Before a probe: notes whether ranges acknowledged the first packet that `expected` does not. An honest
    /// peer's never do: it cannot both have the packet and wait for it.
    #[inline(never)]
    pub(super) fn note_acknowledged_first(&mut self, now: Time) {
        if self.send.has_acknowledged_first() {
            self.count_contradiction(now, |_| true);
        }
    }

    fn count_contradiction(&mut self, now: Time, counts: impl FnOnce(Time) -> bool) {
        let first = self.send.first();
        match &mut self.contradictions {
            Some(known) if known.first == first => {
                known.count = known.count.saturating_add(u32::from(counts(known.since)));
                if known.count >= LASTING_COUNT && now.span_since(known.since) >= LASTING {
                    known.is_lasting = true;
                    // The next alarm ends the connection. It is the one for losses, so that no other alarm
                    // has to check for this.
                    self.losses_look_again = Some(now);
                }
            }
            other => *other = Some(Contradictions { first, since: now, count: 1, is_lasting: false }),
        }
    }

    /// Whether contradictions have lasted too long.
    #[inline(never)]
    pub(super) fn check_contradictions(&self) -> Result<(), Violation> {
        match self.contradictions {
            Some(known) if known.is_lasting && known.first == self.send.first() => {
                Err(Violation::Acknowledgement)
            }
            _ => Ok(()),
        }
    }
}
