//! Endpoints over ports.

use std::net::SocketAddr;

use super::super::Endpoint;
use super::super::carrier::{Carrier, OverPort};
use super::super::memory::Frames;
use super::{
    Builder, DATAGRAM_BYTES_IPV4, DATAGRAM_BYTES_IPV6, DATAGRAM_BYTES_MAX, DATAGRAM_BYTES_MIN, OpenError,
    listen,
};
use crate::port::PortBuilder;
use crate::udp;

impl Builder {
    /// Sends and receives over a port on each queue of an interface, past the host's network stack, instead
    /// of over a UDP socket. What a port cannot carry goes through the kernel.
    pub fn port(mut self, port: PortBuilder) -> Self {
        self.port = Some(port);
        self
    }

    pub(super) fn open(self, port: PortBuilder, address: SocketAddr) -> Result<Endpoint, OpenError> {
        // Datagrams shorter than this would be a waste where the MTU is no less, and those of a longer MTU
        // need several frames.
        let usual = if address.is_ipv4() { DATAGRAM_BYTES_IPV4 } else { DATAGRAM_BYTES_IPV6 };
        let mut settings = self.settings_for(usual)?;
        let datagrams_max = settings.window_packets;
        let frames =
            self.with_streams(&mut settings, |window| Frames::of(self.memory_bytes, &port, window))?;
        let port = port.frame_count(frames.receive, frames.send);
        let port = if frames.several { port.multi_buffer(true) } else { port };
        let sockets = udp::Socket::builder().congestion_marks(true).open_queues(port, address)?;
        let carrier = OverPort::new(sockets, frames.held_max());
        let longest = u16::try_from(carrier.datagram_bytes_max()).unwrap_or(DATAGRAM_BYTES_MAX);
        if longest < DATAGRAM_BYTES_MIN {
            return Err(OpenError::Mtu { longest: longest.into(), least: DATAGRAM_BYTES_MIN.into() });
        }
        settings.datagram_bytes = self.datagram_bytes.unwrap_or(longest).min(longest);
        let streams = listen(&settings, carrier.local_addr()).ok().flatten();
        self.endpoint(carrier.into(), settings, datagrams_max, streams)
    }
}
