//! Why a capture was not opened.

use std::io;

use nocopy_proto::errno::{ErrorCause, advice};
use nocopy_proto::filter::InvalidProgram;

use crate::facts::io_error::convert_to_io_error;
use crate::sys::interface::InterfaceError;

pub(super) const PAGE_BYTES: u32 = 4096;
/// The largest block. The kernel limits a ring to 4 GiB less a page, and a block to the contiguous memory
/// that it finds.
pub(super) const BLOCK_BYTES_MAX: u32 = 64 << 20;

/// Why a capture was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// A capability is missing.
    #[error(
        "{interface}: cannot be captured from; this process lacks CAP_NET_RAW; run as root, or grant it with 'setcap'"
    )]
    Capability {
        /// The interface.
        interface: String,
    },
    /// The kernel does not accept blocks of this size or number.
    #[error(
        "{count} blocks of {bytes} B: cannot be used; a block is a power of two from {PAGE_BYTES} B to {BLOCK_BYTES_MAX} B, with at least 2 blocks and less than 4 GiB in all; ask for others"
    )]
    Blocks {
        /// Number of blocks asked for.
        count: u32,
        /// Bytes of each.
        bytes: u32,
    },
    /// There is not enough memory for the blocks.
    #[error("{interface}: the kernel has no {bytes} B for the blocks{cause}; ask for less", cause = ErrorCause(.source))]
    Memory {
        /// The interface.
        interface: String,
        /// Bytes of all blocks.
        bytes: u64,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The filter cannot be changed to read VLAN tags, which the kernel removes from packets.
    #[error("{interface}: the filter cannot be used on a packet socket; {source}")]
    Filter {
        /// The interface.
        interface: String,
        /// Why the filter cannot be used.
        source: InvalidProgram,
    },
    /// The kernel refused another operation.
    #[error("{interface}: cannot {operation}{cause}; {}", advice(.source), cause = ErrorCause(.source))]
    System {
        /// The interface.
        interface: String,
        /// The operation that was refused.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

convert_to_io_error!(OpenError {
    Self::Interface(error) => error.io_kind(),
    Self::Capability { .. } => io::ErrorKind::PermissionDenied,
    _ => io::ErrorKind::InvalidInput,
});
