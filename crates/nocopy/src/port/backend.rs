//! What stands at the other end of a port's rings: for each mode its own type, in the mode's own file.

use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

use super::Statistics;
use super::af_xdp::XdpBackend;
use super::bound_socket::BoundSocket;
use crate::sys::poll::{self, Wakeup};
use crate::sys::xsk::TxKick;

/// The other end of a port's rings. It is called once a batch at most; what never changes is read when the port is opened
/// ([`Inner::new`](super::Inner)). Errors are the kernel's own.
pub(super) trait Backend: AsFd + Send + Sync {
    fn statistics(&self) -> io::Result<Statistics>;

    /// Makes the other side take what is on the tx ring.
    fn kick_tx(&self) -> io::Result<TxKick>;

    /// Makes the other side look at the fill ring. Not needed where the receiver runs the other side itself, or where there is none.
    fn kick_rx(&self) -> io::Result<()> {
        Ok(())
    }

    /// Sleeps until a packet is there or `timeout` passed.
    fn wait_readable(&self, timeout: Duration) -> io::Result<Wakeup> {
        poll::wait_readable(self.as_fd(), timeout)
    }

    /// Asks whether the interface is still there and up.
    fn check(&self) -> io::Result<()> {
        Ok(())
    }

    /// The AF_XDP socket, if the kernel shares the rings.
    fn bound_socket(&self) -> Option<&BoundSocket> {
        None
    }

    /// This one, if it takes packets away from the host.
    fn as_xdp(&self) -> Option<&XdpBackend> {
        None
    }
}
