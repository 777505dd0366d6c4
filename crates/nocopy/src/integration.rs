//! What this workspace's own crates need and users do not: not part of the API, and it may change without notice.

pub use crate::inspect::{probe, statistics};
pub use crate::sys::fork::Generation;
pub use crate::sys::poll::{Wakeup, poll};
pub use crate::tcp::by_reference::PublishedMethod;

// Ports and queues.
pub use crate::port::filter_control::{FilterControl, FilterControlError};
pub use crate::port::metadata::Realtime;
pub use crate::port::queues::{Measured, Meter, Waker};
pub use crate::sys::packet::Fanout;

/// A sink where packets enter the host's stack.
pub mod tc {
    pub use crate::port::tc::{CountingDrop, KERNEL_MIN};
}

/// Programs on an interface, and the kernel as a packet source.
pub mod xdp {
    pub use crate::facts::kernel::KernelVersion;
    pub use crate::port::xdp::{Attach, Attachment, Counter, Error, Generator, Program};
}
