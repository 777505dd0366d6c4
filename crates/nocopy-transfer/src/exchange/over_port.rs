//! Messages as UDP datagrams over a port: AF_XDP at this end, bypassing the kernel's network stack.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};

use nix::sys::socket::{setsockopt, sockopt};
use nocopy::udp::{Method, OpenError, Receiver, Sender, Socket};
use nocopy::{Port, Reason};

use super::{Exchange, PATIENCE, WaitMode, none_while_interface_down};
use crate::attempts::wildcard_address;
use crate::source::await_source_address;

#[derive(Debug)]
pub struct PortExchange {
    receiver: Receiver,
    sender: Sender,
    to: SocketAddr,
    waiting: WaitMode,
    /// Datagrams that arrived together with a datagram that was passed on, in order.
    others: VecDeque<Vec<u8>>,
}

impl PortExchange {
    /// An exchange at an address of the interface, with one peer.
    pub fn open(
        interface: &str,
        at: SocketAddr,
        to: SocketAddr,
        waiting: WaitMode,
    ) -> Result<Self, OpenError> {
        let socket = open_socket(interface, at, waiting)?;
        let (receiver, sender) = socket.split();
        Ok(Self { receiver, sender, to, waiting, others: VecDeque::new() })
    }
}

/// A socket over a port of that interface, which sends only by the port.
pub fn open_socket(interface: &str, at: SocketAddr, waiting: WaitMode) -> Result<Socket, OpenError> {
    let port = Port::builder(interface).wait(waiting.port_wait());
    Socket::builder().port(port).method(Method::Xdp).bind(at)
}

impl Exchange for PortExchange {
    fn send(&mut self, message: &[u8]) -> io::Result<()> {
        match self.sender.send_copy_to(message, self.to) {
            // No room now: treated like a lost datagram, which a sender must expect anyway.
            Ok(()) | Err(Reason::Full) => self.sender.flush(),
            Err(reason) => Err(reason.into()),
        }
    }

    fn receive(&mut self, mut take: impl FnMut(&[u8])) -> io::Result<bool> {
        if let Some(datagram) = self.others.pop_front() {
            take(&datagram);
            return Ok(true);
        }
        let batch = match self.waiting {
            WaitMode::Spinning => self.receiver.try_receive(),
            WaitMode::Blocking | WaitMode::Adaptive => self.receiver.receive_timeout(PATIENCE),
        };
        let Some(batch) = none_while_interface_down(batch)? else { return Ok(false) };
        let to = (self.to.ip(), self.to.port());
        let mut of_peer = batch.filter(|datagram| (datagram.source().ip(), datagram.source().port()) == to);
        let Some(first) = of_peer.next() else { return Ok(false) };
        take(&first);
        // One message is in flight at a time, so other datagrams are late; rarely, the answer follows a late
        // one.
        self.others.extend(of_peer.map(|datagram| datagram.to_vec()));
        Ok(true)
    }
}

/// The source address that the host would use for that destination and interface, with a free port number.
pub fn source_address(to: SocketAddr, interface: &str) -> io::Result<SocketAddr> {
    await_source_address(to);
    let socket = UdpSocket::bind((wildcard_address(to), 0))?;
    setsockopt(&socket, sockopt::BindToDevice, &interface.into())?;
    socket.connect(to)?;
    let mut local = socket.local_addr()?;
    local.set_port(0);
    Ok(local)
}
