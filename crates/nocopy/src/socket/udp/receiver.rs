//! The half that receives.

use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::pool::{Cache, Pool};

/// The receiving half of a socket.
#[derive(Debug)]
pub struct Receiver {
    #[expect(dead_code, reason = "comes with the receiving half")]
    socket: Arc<OwnedFd>,
    #[expect(dead_code, reason = "comes with the receiving half")]
    cache: Cache,
}

impl Receiver {
    pub(super) fn new(socket: Arc<OwnedFd>, pool: Pool) -> Self {
        Self { socket, cache: Cache::new(pool) }
    }
}
