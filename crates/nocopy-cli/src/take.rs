//! Ports that take an interface's packets from the host.

use nocopy::Mode;
use nocopy::port::{OpenError, PortBuilder, Queues};

use crate::Failure;

/// Opens ports on all queues of an interface; refuses a mode in which the host keeps its packets.
pub(crate) fn open_taking_queues(builder: PortBuilder, interface: &str) -> Result<Queues, Failure> {
    let mut queues = match builder.clone().open_queues(..) {
        // Only if the MTU requires it: it needs a newer kernel, and not every driver supports it in zero-copy
        // mode.
        Err(OpenError::Mtu { .. }) => builder.multi_buffer(true).open_queues(..)?,
        opened => opened?,
    };
    match queues.ports().iter().find(|port| port.mode() == Mode::PacketRing) {
        None => Ok(queues),
        Some(port) => {
            let why = port.explain().refusals.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
            Err(Failure::CannotTake { interface: interface.to_owned(), why })
        }
    }
}
