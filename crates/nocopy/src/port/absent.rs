//! In place of `port` in a build without the feature `port`: settings of a port that cannot be made.

#[cfg(feature = "message")]
pub(crate) use crate::engine::wait::Wait;

/// There is none.
#[derive(Debug, Clone)]
pub(crate) enum PortBuilder {}

/// There is none.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {}

impl OpenError {
    pub(crate) fn io_kind(&self) -> std::io::ErrorKind {
        match *self {}
    }
}

/// Times of datagrams.
pub mod metadata {
    pub use crate::facts::metadata::{Clock, Timestamp, Unsupported};
}
