//! Evidence about copies, in three values that are never merged.

mod ledger;

use std::fmt;

pub use ledger::Ledger;

/// Whether bytes were copied on their way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Evidence {
    /// The kernel reported that it moved the bytes without copying.
    ZeroCopy,
    /// The bytes were copied, for this reason.
    Copied(Cause),
    /// Not known, because the kernel does not report it. Never a guess.
    Unknown,
}

/// Why bytes were copied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Cause {
    /// The AF_XDP socket is in copy mode (`XDP_OPTIONS`): the kernel copies between its buffers and the
    /// port's area (UMEM).
    XdpCopyMode,
    /// A memory port copies from the sender's area to the receiver's.
    MemoryPort,
    /// An ordinary socket call: the kernel copies between the program's buffer and its own.
    SocketCall,
    /// The kernel copies received packets into the blocks of a packet ring.
    PacketRing,
    /// A packet handed to the host: the kernel copies it into its own buffer.
    ToHost,
    /// An ordinary socket call, chosen because sending without a copy was measured to be slower, or can gain
    /// too little.
    CopyingIsFaster,
    /// A datagram or write too short for sending without a copy to gain anything.
    BelowThreshold,
    /// The bytes were given as a slice, which the caller may reuse when the call returns.
    Slice,
    /// A zero-copy send to a socket on this machine, which gets its own copy.
    DeliveredLocally,
    /// A zero-copy send that the kernel still copied: a packet tap captures on the interface, or the device
    /// cannot gather.
    ZeroCopyRefused,
    /// A zero-copy send for which the kernel had no memory to record it (`ENOBUFS`).
    NoBuffers,
    /// Several streams send from one pool, and this one already had its share of buffers in flight. It sent a
    /// copy, which frees its buffer at once.
    ShareInFlight,
    /// A packet, message or chunk in several buffers, or on mapped pages, whose bytes were joined by a copy;
    /// or datagrams that were copied into the rows of a chunk.
    Gathered,
    /// Less than a page was received; only whole pages can be mapped.
    PartOfPage,
    /// The sender is on this machine, and its bytes are on pages that cannot be mapped: of high order, of the
    /// page cache, or shared.
    LocalPages,
    /// The card puts headers in front of the data, so the data does not begin at a page boundary.
    HeadersNotSplit,
    /// Packets arrived through a card, and their data does not fill whole pages.
    SegmentSize,
    /// Pages that could not be mapped, for an unknown reason.
    NotMapped,
    /// There was no room to map pages: the program holds too many pages that it received before.
    NoSlot,
}

impl Cause {
    /// All causes, in the order of reports.
    pub const ALL: [Self; 19] = [
        Self::XdpCopyMode,
        Self::MemoryPort,
        Self::SocketCall,
        Self::PacketRing,
        Self::ToHost,
        Self::CopyingIsFaster,
        Self::BelowThreshold,
        Self::Slice,
        Self::DeliveredLocally,
        Self::ZeroCopyRefused,
        Self::NoBuffers,
        Self::ShareInFlight,
        Self::Gathered,
        Self::PartOfPage,
        Self::LocalPages,
        Self::HeadersNotSplit,
        Self::SegmentSize,
        Self::NotMapped,
        Self::NoSlot,
    ];
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ZeroCopy => f.write_str("zero-copy"),
            Self::Copied(cause) => write!(f, "copied ({cause})"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::XdpCopyMode => "xdp copy mode",
            Self::MemoryPort => "memory port",
            Self::SocketCall => "socket call",
            Self::PacketRing => "packet ring",
            Self::ToHost => "to host",
            Self::CopyingIsFaster => "copying is faster here",
            Self::BelowThreshold => "below threshold",
            Self::Slice => "given as a slice",
            Self::DeliveredLocally => "delivered locally",
            Self::ZeroCopyRefused => "zero-copy refused by the kernel",
            Self::NoBuffers => "no buffers (ENOBUFS)",
            Self::ShareInFlight => "its share of the pool is in flight",
            Self::Gathered => "gathered",
            Self::PartOfPage => "part of a page",
            Self::LocalPages => "pages of a local sender",
            Self::HeadersNotSplit => "headers not split off",
            Self::SegmentSize => "segments are not whole pages",
            Self::NotMapped => "pages that cannot be mapped",
            Self::NoSlot => "no room to map pages",
        })
    }
}
