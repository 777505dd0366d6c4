//! Items that need ports.

pub use crate::inspect::probe;

// Ports and queues.
pub use crate::port::builder::PortTuning;
pub use crate::port::filter_control::{FilterControl, FilterControlError};
pub use crate::port::queues::{Meter, Waker};
pub use crate::sys::packet::Fanout;

// Captures.
pub use crate::capture::control::Control;
pub use crate::sys::packet::{BlockReader, Contents, PcapngLayout};

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
