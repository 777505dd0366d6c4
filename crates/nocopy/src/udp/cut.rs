//! How the front of the queue is cut into the messages of a call.

use super::message::{DATAGRAM_BYTES_MAX, Message, Outgoing};
use super::method::Method;
use crate::memory::pool::Buffer;
use crate::memory::send_queue::{Entries, Extent, Position};
use crate::sys::udp_send;

/// The most pages of a message from the program's memory (`MAX_SKB_FRAGS` of `linux/skbuff.h`).
const PAGES_MAX: usize = 17;
const PAGE_BYTES: usize = 4096;

/// Equal datagrams at the front of the queue, for one destination.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) destination: u32,
    pub(super) datagram_bytes: usize,
    pub(super) datagrams: u32,
    /// The ticket after the last message.
    pub(super) end: u64,
}

impl Run {
    /// `None` without any.
    #[inline]
    pub(super) fn first(entries: &Entries<Outgoing>, head: Position) -> Option<Self> {
        let end = entries.end();
        if head.ticket == end {
            return None;
        }
        let Outgoing { message, destination } = entries.payload(head.ticket);
        let datagram_bytes = message.datagram_bytes();
        let mut run = Self {
            destination: *destination,
            datagram_bytes,
            datagrams: (message.datagrams() - head.bytes.checked_div(datagram_bytes).unwrap_or(0)) as u32,
            end: head.ticket + 1,
        };
        while run.end < end {
            let Outgoing { message, destination } = entries.payload(run.end);
            if *destination != run.destination || message.datagram_bytes() != datagram_bytes {
                break;
            }
            run.datagrams += message.datagrams() as u32;
            run.end += 1;
        }
        Some(run)
    }
}

/// One message of a call: a part of one buffer with several datagrams, or whole messages.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) extent: Extent,
    pub(super) datagrams: u32,
}

impl Cut {
    #[inline]
    pub(super) fn next(entries: &Entries<Outgoing>, method: Method, from: Position, run: &Run) -> Self {
        if method.is_segmented() { Self::long(entries, method, from, run) } else { Self::one(entries, from) }
    }

    /// One datagram.
    #[inline]
    pub(super) fn one(entries: &Entries<Outgoing>, from: Position) -> Self {
        let message = &entries.payload(from.ticket).message;
        let bytes = message.datagram_bytes().min(message.bytes() - from.bytes);
        Self { extent: within(from, bytes, message), datagrams: 1 }
    }

    /// As many datagrams as the kernel cuts from one long message: those of one buffer with several, or messages of one datagram each.
    fn long(entries: &Entries<Outgoing>, method: Method, from: Position, run: &Run) -> Self {
        let limit = udp_send::SEGMENTS_MAX.min(DATAGRAM_BYTES_MAX / run.datagram_bytes.max(1)).max(1);
        let message = &entries.payload(from.ticket).message;
        if message.datagrams() > 1 {
            let bytes = (limit * run.datagram_bytes).min(message.bytes() - from.bytes);
            let datagrams = bytes.div_ceil(run.datagram_bytes) as u32;
            return Self { extent: within(from, bytes, message), datagrams };
        }
        let mut cut = Self::one(entries, from);
        let mut pages = pages_of(message);
        let mut pieces = message.pieces().len();
        while cut.extent.end.ticket < run.end && (cut.datagrams as usize) < limit {
            let message = &entries.payload(cut.extent.end.ticket).message;
            pages += pages_of(message);
            pieces += message.pieces().len();
            let too_scattered = (method.is_zero_copy() && pages > PAGES_MAX) || pieces > udp_send::PIECES_MAX;
            if message.datagrams() > 1 || too_scattered || message.bytes() == 0 {
                break;
            }
            cut.extent.end.ticket += 1;
            cut.extent.bytes += message.bytes();
            cut.datagrams += 1;
        }
        cut
    }

    /// Into datagrams of how many bytes the kernel has to cut it; `None` if it is one.
    pub(super) fn segment_bytes(self, run: &Run) -> Option<u16> {
        (self.datagrams > 1).then_some(run.datagram_bytes as u16)
    }
}

/// That many bytes of one message.
#[inline]
fn within(start: Position, bytes: usize, message: &Message) -> Extent {
    let next = start.bytes + bytes;
    let end = if next >= message.bytes() {
        Position::of(start.ticket + 1)
    } else {
        Position { bytes: next, ..start }
    };
    Extent { start, end, bytes }
}

fn pages_of(message: &Message) -> usize {
    let of = |piece: &Buffer| match piece.len() {
        0 => 0,
        bytes => (piece.as_ptr() as usize % PAGE_BYTES + bytes).div_ceil(PAGE_BYTES),
    };
    message.pieces().iter().map(of).sum()
}
