//! The methods to send owned buffers.

use std::fmt;

/// How the bytes of owned buffers leave the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Method {
    /// The kernel copies (`sendmsg`).
    Plain,
    /// From the program's memory, which is held until the peer has acknowledged it (`MSG_ZEROCOPY`; Linux
    /// 4.14).
    ZeroCopy,
    /// The same by io_uring, from memory that is registered once (`IORING_OP_SENDMSG_ZC`; Linux 6.2,
    /// registered since 6.15). Completions may interrupt other calls of the thread that flushed (`EINTR`).
    UringZeroCopy,
}

impl Method {
    /// All methods.
    pub const ALL: [Self; 3] = [Self::Plain, Self::ZeroCopy, Self::UringZeroCopy];

    /// Whether the kernel reads the program's memory after the call.
    pub(crate) fn is_zero_copy(self) -> bool {
        self != Self::Plain
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plain => "plain",
            Self::ZeroCopy => "zerocopy",
            Self::UringZeroCopy => "uring-zerocopy",
        })
    }
}
