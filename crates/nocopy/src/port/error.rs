//! Why a port cannot be opened, and why it cannot return packets to the host.

use nocopy_proto::errno::{ErrorCause, advice};
use std::io;

use super::drivers::PAGE_BYTES;
use crate::facts::io_error::convert_to_io_error;
use crate::facts::kernel::KernelVersion;
use crate::facts::method_explanation::Refusal;
use crate::memory::area::AreaError;
use crate::port::xdp::{self, Attach};
use crate::sys::capability;
use crate::sys::interface::InterfaceError;

/// Why a port could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The interface cannot be used.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// The interface has no carrier.
    #[error("{interface}: no carrier{}; nothing is connected, or the other end is down; check both", if *.after_attach {
        " since XDP was attached (some drivers reset the link)"
    } else {
        ""
    })]
    NoCarrier {
        /// The interface.
        interface: String,
        /// Whether the carrier was present before the program was attached.
        after_attach: bool,
    },
    /// A packet of the interface's MTU does not fit a frame.
    #[error(
        "{interface}: frames of {frame_bytes} B are too short; its MTU of {mtu_bytes} needs {needed_bytes} B; {}",
        if *needed_bytes <= PAGE_BYTES {
            "use a frame size of 4096"
        } else {
            "receive packets in several frames (PortBuilder::multi_buffer), or lower the MTU to 3,818 or less"
        }
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu_bytes: u32,
        /// Bytes a frame would need.
        needed_bytes: u32,
        /// Bytes a frame has.
        frame_bytes: u32,
    },
    /// No such queue.
    #[error(
        "{interface} queue {queue}: no such queue; the interface has {queues}, counted from 0; try a lower queue, or \
         'ethtool -L {interface} combined {}'",
        queue + 1
    )]
    QueueOutOfRange {
        /// The interface.
        interface: String,
        /// The requested queue.
        queue: u32,
        /// The number of queues.
        queues: u32,
    },
    /// No queue was asked for.
    #[error("{interface}: no queue; the range is empty; queues are counted from 0, and '..' means all")]
    NoQueue {
        /// The interface.
        interface: String,
    },
    /// Another AF_XDP socket has the queue.
    #[error(
        "{interface} queue {queue}: in use; another AF_XDP socket is bound to it; close that port, or take another queue"
    )]
    QueueTaken {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
    },
    /// A capability is missing.
    #[error(
        "{interface}: a port cannot be opened; this process lacks {capability}; run as root, or grant it with {}",
        capability::GRANT
    )]
    Capability {
        /// The interface.
        interface: String,
        /// The capability, by its name in capabilities(7).
        capability: &'static str,
    },
    /// The kernel is too old, or was built without AF_XDP.
    #[error(
        "AF_XDP: not available; this is Linux {running}; use Linux {needed} or newer, built with CONFIG_XDP_SOCKETS"
    )]
    Kernel {
        /// The running kernel.
        running: KernelVersion,
        /// The oldest kernel that is new enough.
        needed: KernelVersion,
    },
    /// The kernel refuses to lock more memory.
    #[error(
        "{interface} queue {queue}: the kernel could not pin {bytes} B for the area{cause}; raise the limit with \
         'ulimit -l unlimited', grant CAP_IPC_LOCK, or ask for fewer frames", cause = ErrorCause(.source))]
    PinnedMemory {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Bytes to be locked.
        bytes: usize,
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel has no rings of this size.
    #[error("{ring} ring of {entries} entries: not possible; rings have a power of two; try {}", next_ring_size(*entries))]
    RingSize {
        /// Which ring.
        ring: &'static str,
        /// The requested number of entries.
        entries: u32,
    },
    /// A batch size of 0.
    #[error("batch of 0 packets: not possible; nothing could ever be received; use at least 1")]
    Batch,
    /// Frames larger than a page.
    #[error(
        "frames of {frame_bytes} B: too long; AF_XDP allows at most a page ({PAGE_BYTES} B); use 2048 or 4096, or the mode \
         'packet ring'"
    )]
    FrameSize {
        /// Bytes in a frame.
        frame_bytes: u32,
    },
    /// The mode is not for interfaces.
    #[error("mode 'memory': cannot be opened on an interface; memory ports have none; use Port::memory_pair")]
    MemoryMode,
    /// Every mode was refused.
    #[error("{interface} queue {queue}: cannot be opened in any mode; {}; 'nocopy doctor {interface}' shows what each mode needs", refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join(", "))]
    NoMode {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// Each mode with the reason.
        refusals: Vec<Refusal>,
    },
    /// A setting that is not possible with a grant.
    #[error("{interface} queue {queue}: '{setting}' cannot be used; the port was granted; {advice}")]
    NotGranted {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The method of [`PortBuilder`](super::PortBuilder) that requested it.
        setting: &'static str,
        /// Why, and what to do.
        advice: &'static str,
    },
    /// The kernel refuses the filter, and a filter in user space would withhold packets from the host.
    #[error(
        "filter: cannot run in user space; packets that do not match could not be returned to the host; {source}"
    )]
    Filter {
        /// Why packets could not be returned to the host.
        source: Box<ToHostError>,
    },
    /// The area could not be made or shared.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// The XDP program could not be loaded or attached.
    #[error(transparent)]
    Xdp(#[from] xdp::Error),
    /// The kernel refused another operation.
    #[error("{interface} queue {queue}: cannot {operation}{cause}; {}", advice(.source), cause = ErrorCause(.source))]
    System {
        /// The interface.
        interface: String,
        /// The queue.
        queue: u32,
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

convert_to_io_error!(OpenError {
    Self::Interface(error) => error.io_kind(),
    Self::NoCarrier { .. } => io::ErrorKind::NetworkDown,
    Self::QueueTaken { .. } => io::ErrorKind::ResourceBusy,
    Self::Capability { .. } => io::ErrorKind::PermissionDenied,
    Self::Kernel { .. } | Self::NoMode { .. } => io::ErrorKind::Unsupported,
    Self::Filter { source } => source.io_kind(),
    Self::Area(error) => error.io_kind(),
    Self::Xdp(error) => error.io_kind(),
    _ => io::ErrorKind::InvalidInput,
});

fn next_ring_size(entries: u32) -> u32 {
    entries.max(2).checked_next_power_of_two().unwrap_or(1 << 15).min(1 << 15)
}

/// Why packets cannot be returned to the host, or one packet was not returned.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToHostError {
    /// The program that passes them is not available: the kernel is too old, or a capability is missing.
    #[error(transparent)]
    Program(#[from] xdp::Error),
    /// A memory port has no host behind it.
    #[error(
        "memory port: nothing can be handed to the host; it has no interface; open a port on an interface"
    )]
    MemoryPort,
    /// The calling thread is in another network namespace than the port's interface.
    #[error(
        "{interface}: not handed to the host; this thread is in another network namespace than the port, and the kernel would look for the interface there; call from a thread in the namespace the port was opened in"
    )]
    OtherNamespace {
        /// The port's interface.
        interface: String,
    },
    /// In packet ring mode the port has copies; the host receives every packet itself.
    #[error(
        "{interface}: not handed to the host; in packet ring mode it gets every packet anyway; do not hand packets over in this mode"
    )]
    HostHasThem {
        /// The port's interface.
        interface: String,
    },
    /// A granted program in generic mode would receive the packet again.
    #[error(
        "{interface}: not handed to the host; a granted port in generic mode does not know the secret by which the XDP program recognises these packets; grant a port in another mode"
    )]
    Granted {
        /// The port's interface.
        interface: String,
    },
    /// The interface was removed.
    #[error("{interface}: not handed to the host; the interface was removed; open a port on another one")]
    Gone {
        /// The port's interface.
        interface: String,
    },
    /// The packet is longer than the kernel accepts here.
    #[error(
        "{interface}: a packet of {bytes} B was not handed to the host; it is too long: the kernel accepts one page, less its own overhead (some 3,300 B); lower the interface's MTU"
    )]
    TooLong {
        /// The port's interface.
        interface: String,
        /// Bytes of the packet.
        bytes: usize,
    },
    /// The packet is shorter than an Ethernet header.
    #[error(
        "{interface}: a packet of {bytes} B was not handed to the host; it is shorter than an Ethernet header (14 B); drop it"
    )]
    TooShort {
        /// The port's interface.
        interface: String,
        /// Bytes of the packet.
        bytes: usize,
    },
    /// The kernel refused another operation.
    #[error("{interface}: cannot {operation}{cause}; {}", advice(.source), cause = ErrorCause(.source))]
    System {
        /// The port's interface.
        interface: String,
        /// The operation.
        operation: &'static str,
        /// The kernel's reason.
        source: io::Error,
    },
}

convert_to_io_error!(ToHostError {
    Self::Program(error) => error.io_kind(),
    Self::MemoryPort | Self::HostHasThem { .. } | Self::Granted { .. } => io::ErrorKind::Unsupported,
    Self::Gone { .. } => io::ErrorKind::NotConnected, // as errors of a port whose interface was removed
    _ => io::ErrorKind::InvalidInput,
});

/// The kernel's reason, if it refused native XDP for a reason that may not apply to generic XDP.
pub(super) fn native_refusal_reason(at: Attach, error: xdp::Error) -> Result<io::Error, OpenError> {
    match error {
        xdp::Error::NoNative { source, .. }
        | xdp::Error::Mtu { source, .. }
        | xdp::Error::System { source, .. }
            if at == Attach::Native =>
        {
            Ok(source)
        }
        xdp::Error::Filter { .. } => Ok(io::Error::new(io::ErrorKind::Unsupported, error)),
        error => Err(error.into()),
    }
}
