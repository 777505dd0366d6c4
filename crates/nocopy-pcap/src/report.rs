//! What becomes of each handle, told to whoever asked for it.

use crate::capture::Refusal;

/// Which library captures for a handle.
#[derive(Debug)]
pub(crate) enum Library<'a> {
    /// Ours.
    Ours,
    /// The system's, because ours cannot.
    System(&'a Refusal),
}

/// Where a handle's filter runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FilterPlace {
    /// At the packet socket, before packets are copied.
    Kernel,
    /// In the program: each packet was copied before it was looked at.
    Program,
}

/// A handle was activated on a device.
pub(crate) fn opened(_handle: u64, _device: &str, library: &Library<'_>) {
    if let Library::System(_why) = library {}
}

/// A handle's filter was set.
pub(crate) fn filter(_handle: u64, _place: FilterPlace) {}

/// A handle was closed.
pub(crate) fn closed(_handle: u64, _counts: &crate::capture::Counts) {}
