//! What this workspace's own crates need and users do not: not part of the API, and it may change without notice.

pub use crate::inspect::{probe, statistics};
pub use crate::sys::fork::Generation;
pub use crate::sys::poll::{Wakeup, poll};
