//! The methods to send datagrams.

use std::fmt;

/// How datagrams leave the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// One datagram per call (`sendto`, `sendmsg`).
    Socket,
    /// Up to 64 datagrams per call (`sendmmsg`).
    SendMmsg,
    /// Up to 64 KiB of datagrams of one length as one message, cut by the kernel or the card (`UDP_SEGMENT`;
    /// Linux 4.18).
    Gso,
    /// One datagram per call, from the program's memory (`MSG_ZEROCOPY`; Linux 5.0).
    ZeroCopy,
    /// [`Gso`](Self::Gso) with zero-copy: a long message from the program's memory, cut by the kernel or the
    /// card.
    ZeroCopyGso,
    /// Zero-copy sends by io_uring, several per call, from memory that is registered once
    /// (`IORING_OP_SEND_ZC`; Linux 6.2). Completions may interrupt other calls of the thread that flushed
    /// (`EINTR`).
    UringZeroCopy,
    /// [`Gso`](Self::Gso) by io_uring: long messages from registered memory, cut by the kernel or the card
    /// (registered since Linux 6.15).
    UringZeroCopyGso,
    /// Whole frames, including headers, through an AF_XDP port.
    Xdp,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 8] = [
        Self::Socket,
        Self::SendMmsg,
        Self::Gso,
        Self::ZeroCopy,
        Self::ZeroCopyGso,
        Self::UringZeroCopy,
        Self::UringZeroCopyGso,
        Self::Xdp,
    ];

    /// Whether the kernel reads the program's memory after the call.
    pub(crate) fn is_zero_copy(self) -> bool {
        self.is_by_flag() || self.is_by_ring()
    }

    /// The fallback if the kernel refuses a send by this method that it may accept by another; `None` without
    /// a fallback.
    pub(crate) fn fallback(self) -> Option<Self> {
        match self {
            Self::ZeroCopyGso | Self::UringZeroCopyGso => Some(Self::Gso),
            Self::ZeroCopy | Self::UringZeroCopy | Self::Gso | Self::Xdp => Some(Self::SendMmsg),
            Self::Socket | Self::SendMmsg => None,
        }
    }

    /// Whether its calls are numbered by the kernel (`MSG_ZEROCOPY`).
    pub(crate) fn is_by_flag(self) -> bool {
        matches!(self, Self::ZeroCopy | Self::ZeroCopyGso)
    }

    pub(crate) fn is_by_ring(self) -> bool {
        matches!(self, Self::UringZeroCopy | Self::UringZeroCopyGso)
    }

    pub(crate) fn is_segmented(self) -> bool {
        matches!(self, Self::Gso | Self::ZeroCopyGso | Self::UringZeroCopyGso)
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Socket => "socket",
            Self::SendMmsg => "sendmmsg",
            Self::Gso => "gso",
            Self::ZeroCopy => "zerocopy",
            Self::ZeroCopyGso => "zerocopy-gso",
            Self::UringZeroCopy => "uring-zerocopy",
            Self::UringZeroCopyGso => "uring-zerocopy-gso",
            Self::Xdp => "xdp-udp",
        })
    }
}
