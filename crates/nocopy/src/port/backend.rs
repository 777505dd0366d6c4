//! The other end of a port's rings: one type for each mode, in the mode's own file.

use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use super::Statistics;
use super::host_path::HostPath;
use super::redirect::RedirectProgram;
use crate::sys::interface::InterfaceQuery;
use crate::sys::poll::{self, Wakeup};
use crate::sys::xsk::TxKick;

/// What differs between kernels that share the rings.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelRingFeatures {
    /// The kernel wants room for a request in front of every packet.
    pub(super) takes_requests: bool,
    /// The kernel's index of the tx ring may lag behind the frames it has sent; see
    /// `SharedPort::silent_kicks_max`.
    pub(super) tx_index_lags: bool,
}

/// The XDP program of a port, and what returning packets to the host needs.
#[derive(Debug)]
pub(super) struct ToHostContext<'a> {
    pub(super) redirect: &'a Arc<RedirectProgram>,
    pub(super) query: &'a InterfaceQuery,
    /// If it was prepared while the process had privileges.
    pub(super) host_path: Option<&'a HostPath>,
}

/// The other end of a port's rings. It is called at most once per batch; values that never change are read
/// when the port is opened ([`SharedPort::new`](super::SharedPort)). Errors are the kernel's own.
pub(super) trait Backend: AsFd + Send + Sync {
    fn statistics(&self) -> io::Result<Statistics>;

    /// Makes the other end process the tx ring.
    fn kick_tx(&self) -> io::Result<TxKick>;

    /// Makes the other end look at the fill ring. Does nothing if the receiver itself runs the other end, or
    /// if there is none.
    fn kick_rx(&self) -> io::Result<()> {
        Ok(())
    }

    /// Sleeps until a packet has arrived or `timeout` has passed.
    fn wait_readable(&self, timeout: Duration) -> io::Result<Wakeup> {
        poll::wait_readable(self.as_fd(), timeout)
    }

    fn check_alive(&self) -> io::Result<()> {
        Ok(())
    }

    /// `None` if the rings are not shared with the kernel.
    fn kernel_ring_features(&self) -> Option<KernelRingFeatures> {
        None
    }

    /// `None` if it takes no packets away from the host.
    fn to_host_context(&self) -> Option<ToHostContext<'_>> {
        None
    }

    /// Leaves arriving packets to the host; true if it gets them all from now on. See
    /// [`RedirectProgram::clear_queue`].
    fn leave_packets_to_host(&self) -> bool {
        true
    }

    /// Ends receiving; true if the kernel certainly receives into none of the port's frames any more.
    fn stop_receiving(&self) -> bool {
        true
    }
}
