//! The ways to send datagrams.

use std::fmt;

/// How datagrams leave the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// One datagram a call (`sendto`, `sendmsg`).
    Socket,
    /// Up to 64 datagrams a call (`sendmmsg`).
    SendMmsg,
    /// Up to 64 KiB of datagrams of one length as one message, cut by the kernel or the card (`UDP_SEGMENT`; Linux 4.18).
    Gso,
    /// One datagram a call, from the program's memory (`MSG_ZEROCOPY`; Linux 5.0).
    ZeroCopy,
    /// Both: a long message from the program's memory, cut by the kernel or the card.
    ZeroCopyGso,
    /// Zero-copy sends by io_uring, many a call, from memory that is registered once (`IORING_OP_SEND_ZC`; Linux 6.2). Completions
    /// may interrupt other calls of the thread that flushed (`EINTR`).
    UringZeroCopy,
    /// Both: long messages from registered memory, cut by the kernel or the card (Linux 6.15 for memory that is registered).
    UringZeroCopyGso,
    /// Frames of an AF_XDP port, headers and all.
    Xdp,
}

impl Method {
    /// All there are.
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

    /// The way to go where this one is refused, though another might do it; `None` if there is none.
    pub(crate) fn instead(self) -> Option<Self> {
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
