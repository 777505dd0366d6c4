//! In place of `by_port` in a build without the feature `port`: no sender has a port.

use std::io;
use std::time::Duration;

use crate::facts::rejected::Reason;
use crate::udp::sender::{CallPlan, NonblockingSender, QueuedRun};

impl NonblockingSender {
    pub(in crate::udp) fn send_over_port(&mut self, _: CallPlan, _: &QueuedRun) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in crate::udp) fn copy_over_port(&mut self, _: &[u8], _: u32, _: i32) -> Result<(), Reason> {
        Err(Reason::NotConnected)
    }

    pub(in crate::udp) fn port_is_drained(&mut self, _: Duration) -> io::Result<bool> {
        Ok(true)
    }
}
