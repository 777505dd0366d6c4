//! The other end of a port's rings: one type for each mode, in the mode's own file.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::Statistics;
use super::af_xdp::XdpBackend;
use super::bound_socket::BoundSocket;
use crate::sys::poll::{self, Wakeup};
use crate::sys::xsk::TxKick;

/// The other end of a port's rings. It is called at most once per batch; values that never change are read when the port is opened
/// ([`Inner::new`](super::Inner)). Errors are the kernel's own.
pub(super) trait Backend: AsFd + Send + Sync {
    fn statistics(&self) -> io::Result<Statistics>;

    /// Makes the other end process the tx ring.
    fn kick_tx(&self) -> io::Result<TxKick>;

    /// Makes the other end look at the fill ring. Does nothing if the receiver itself runs the other end, or if there is none.
    fn kick_rx(&self) -> io::Result<()> {
        Ok(())
    }

    /// Sleeps until a packet has arrived or `timeout` has passed.
    fn wait_readable(&self, timeout: Duration) -> io::Result<Wakeup> {
        poll::wait_readable(self.as_fd(), timeout)
    }

    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// The AF_XDP socket, if the kernel shares the rings.
    fn bound_socket(&self) -> Option<&BoundSocket> {
        None
    }

    /// This backend, if it takes packets away from the host.
    fn as_xdp(&self) -> Option<&XdpBackend> {
        None
    }
}
