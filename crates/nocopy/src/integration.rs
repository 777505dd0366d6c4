//! Items for this workspace's own crates, not for users: not part of the API, and may change without notice.

#[cfg(feature = "port")]
mod ports;

pub use crate::sys::file_system::FileSystemId;
pub use crate::sys::fork::Generation;
pub use crate::sys::kernel_handle::KernelHandle;
pub use crate::sys::page_cache::is_cached;
pub use crate::sys::poll::{Wakeup, poll};

pub use crate::udp::run::Run;
#[cfg(feature = "port")]
pub use ports::*;

// Streams.
#[cfg(feature = "tcp")]
pub use crate::tcp::by_reference::PublishedMethod;

#[cfg(test)]
mod errors_of_other_machines;
