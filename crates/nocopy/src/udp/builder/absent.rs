//! In place of `with_port` in a build without the feature `port`.

use super::super::{Socket, over_port};
use super::{Builder, OpenError};
use crate::memory::pool::Pool;

impl Builder {
    pub(super) fn socket_over_port(&self, under: over_port::Socket, _: &Pool) -> Result<Socket, OpenError> {
        match under {}
    }
}
