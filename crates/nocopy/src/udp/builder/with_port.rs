//! Sockets over ports.

#[cfg(feature = "message")]
use std::net::SocketAddr;
use std::sync::Arc;

use super::super::{NonblockingReceiver, Receiver, Socket, over_port};
use super::{Builder, OpenError};
use crate::memory::pool::Pool;
use crate::port::PortBuilder;

impl Builder {
    /// Sends and receives over a port, bypassing the host's network stack; datagrams that the port cannot
    /// carry go through the kernel. See the [module](crate::udp). The socket sets the port's filter.
    pub fn port(mut self, port: PortBuilder) -> Self {
        self.port = Some(port);
        self
    }

    /// Only the ports and kernel sockets below sockets over all queues: for the carrier of messages, which
    /// sends by the ports directly.
    #[cfg(feature = "message")]
    pub(crate) fn open_queues(
        self,
        port: PortBuilder,
        address: SocketAddr,
    ) -> Result<Vec<over_port::Socket>, OpenError> {
        over_port::Socket::open_queues(port, address, &self.settings)
    }

    /// Puts the halves of the port into the halves of the socket.
    pub(in crate::udp) fn socket_over_port(
        &self,
        under: over_port::Socket,
        pool: &Pool,
    ) -> Result<Socket, OpenError> {
        let address = Some(under.local_addr());
        let (receiver, port) = under.split();
        let mut receiver = Receiver(NonblockingReceiver::from_port(receiver));
        if let Some(wait) = self.wait {
            receiver.set_wait(wait);
        }
        let kernel = Arc::clone(port.kernel_socket());
        let sender = self.new_sender(kernel, pool.clone(), Some(port))?;
        Ok(Socket { address, sender, receiver })
    }
}
