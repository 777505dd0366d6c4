//! Items for this workspace's own crates, not for users: not part of the API, and may change without notice.

pub use crate::inspect::probe;
pub use crate::sys::file_system::FileSystemId;
pub use crate::sys::fork::Generation;
pub use crate::sys::kernel_handle::KernelHandle;
pub use crate::sys::page_cache::is_cached;
pub use crate::sys::poll::{Wakeup, poll};

pub use crate::udp::run::Run;
// Ports and queues.
pub use crate::port::builder::PortTuning;
pub use crate::port::filter_control::{FilterControl, FilterControlError};
pub use crate::port::queues::{Meter, Waker};
pub use crate::sys::packet::Fanout;

// Captures.
pub use crate::capture::control::Control;
pub use crate::sys::packet::{BlockReader, Contents, PcapngLayout};

// Streams.
pub use crate::tcp::by_reference::PublishedMethod;

/// All counters of an interface.
pub mod statistics {
    pub use crate::inspect::statistics::{LinkCounters, Snapshot, SnapshotError};
}

/// A sink for packets at the point where they enter the host's stack.
pub mod tc {
    pub use crate::port::tc::CountingDrop;
}

/// Programs on an interface, and the kernel as a packet source.
pub mod xdp {
    pub use crate::port::xdp::{Attach, Attachment, Counter, Error, Generator, Program};
}

/// Files written past the page cache, directly from packet memory.
pub mod disk {
    pub use crate::capture::disk::{SECTOR_BYTES, SectorBuffer, Sectors, Writer, Written};
}

#[cfg(test)]
mod errors_of_other_machines;
