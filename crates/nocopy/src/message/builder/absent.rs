//! In place of `over_port` in a build without the feature `port`.

use std::net::SocketAddr;

use super::super::Endpoint;
use super::{Builder, OpenError};
use crate::port::PortBuilder;

impl Builder {
    pub(super) fn open(self, port: PortBuilder, _: SocketAddr) -> Result<Endpoint, OpenError> {
        match port {}
    }
}
