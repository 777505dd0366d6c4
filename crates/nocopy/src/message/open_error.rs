//! Why there is no endpoint.

use std::io;

use nocopy_proto::errno::ErrorCause;

use crate::facts::io_error::convert_to_io_error;
use crate::udp;

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The socket, or the port under it.
    #[error(transparent)]
    Socket(#[from] udp::OpenError),
    /// The kernel does not return the socket's address.
    #[error("message endpoint: cannot find out the address of its socket{cause}; give one with a port number", cause = ErrorCause(.source))]
    Address {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel cannot keep datagrams from being cut into fragments.
    #[error("message endpoint: datagrams cannot be kept from being cut into fragments{cause}; use a kernel that supports IP_MTU_DISCOVER", cause = ErrorCause(.source))]
    Fragments {
        /// The kernel's reason.
        source: io::Error,
    },
    /// There is no memory for packets.
    #[error("message endpoint: no memory for packets{cause}; ask for less", cause = ErrorCause(.source))]
    Memory {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The windows and messages that were asked for do not fit the memory that was allowed.
    #[error(
        "memory of {memory_bytes} B: too little; the windows and the longest message need {needed_bytes} B; allow that much, or shorter messages"
    )]
    TooLittleMemory {
        /// What was allowed.
        memory_bytes: usize,
        /// The least memory.
        needed_bytes: usize,
    },
    /// A setting is out of its range.
    #[error("{setting} of {value}: out of range; it is from {least} to {most}; give such a value")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What was asked for.
        value: usize,
        /// The least.
        least: usize,
        /// The most.
        most: usize,
    },
    /// The packets of the port's interface are too short for a message's datagrams.
    #[error(
        "datagrams of {longest} B: too short for messages, and the interface's MTU permits no longer ones; raise the MTU by {} B", .least - .longest
    )]
    Mtu {
        /// The longest datagrams of the interface.
        longest: usize,
        /// Those that messages need at least.
        least: usize,
    },
    /// No descriptor is left to wait on.
    #[error("message endpoint: no descriptor to wait on{cause}; raise the limit of open files ('ulimit -n')", cause = ErrorCause(.source))]
    Poll {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel gives no random numbers, which protect connections from forged datagrams.
    #[error("message endpoint: no random numbers{cause}; run it where getrandom(2) is allowed", cause = ErrorCause(.source))]
    Random {
        /// The kernel's reason.
        source: io::Error,
    },
}

convert_to_io_error!(OpenError {
    Self::Socket(error) => error.io_kind(),
    _ => io::ErrorKind::InvalidInput,
});
