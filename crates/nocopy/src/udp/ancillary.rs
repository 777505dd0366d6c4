//! What is set for the datagrams of a message besides their bytes and their destination.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;

use nocopy_proto::wire::Ecn;

use crate::facts::rejected::Reason;
use crate::sys::udp_send::{AddedControls, check_source};

/// What is set for the datagrams of one [message](super::NonblockingSender::send_with) besides their bytes
/// and their destination.
///
/// ```
/// use nocopy::udp::{Ancillary, Ecn, Socket};
/// let mut socket = Socket::builder().receive_metadata(true).bind("0.0.0.0:0")?;
/// # let client = std::net::UdpSocket::bind("127.0.0.1:0")?;
/// # client.connect(("127.0.0.2", socket.local_addr()?.port()))?; // takes nothing from other addresses
/// # client.send(b"question")?;
/// let question = socket.receiver().receive()?.next().expect("a datagram").take();
/// let (from, metadata) = (question.source(), question.metadata());
/// let ancillary = Ancillary { ecn: Some(Ecn::Ect0), source: metadata.reply_from };
/// socket.sender().send_with(question, from, ancillary)?; // from the address that was asked
/// socket.sender().flush()?;
/// # assert_eq!(client.recv(&mut [0; 9])?, 8);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Ancillary {
    /// Whether routers may mark the datagrams instead of dropping them; the rest of the traffic class is 0.
    /// `None`: as the socket is set, which is [`Ecn::NotEct`] at first.
    pub ecn: Option<Ecn>,
    /// The address of this host that they come from. `None`: the socket's own, or chosen by the route. If it
    /// is a link-local address of IPv6, the destination's scope names its interface.
    pub source: Option<IpAddr>,
}

impl Ancillary {
    /// The control messages that make the kernel do this for datagrams to that address. Errors: the socket
    /// cannot send from the source.
    pub(super) fn controls(&self, socket: BorrowedFd<'_>, to: SocketAddr) -> Result<AddedControls, Reason> {
        let mut controls = AddedControls::none();
        let is_ipv4 = to.ip().to_canonical().is_ipv4();
        if let Some(address) = self.source.map(|source| source.to_canonical()) {
            let scope = match to {
                SocketAddr::V6(to) => to.scope_id(),
                SocketAddr::V4(_) => 0,
            };
            let is_of_link = matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
            let interface = if is_of_link { scope } else { 0 };
            controls.add_source(address, interface);
            if address.is_unspecified() || address.is_ipv4() != is_ipv4 {
                return Err(Reason::ForeignSource { address });
            }
            check_source(socket, &controls, address, to.is_ipv6()).map_err(|error| {
                match error.raw_os_error() {
                    // Which one depends on the kernel; to an address of the host there always is a route.
                    Some(libc::EINVAL | libc::ENETUNREACH | libc::EHOSTUNREACH | libc::EACCES) => {
                        Reason::ForeignSource { address }
                    }
                    _ => Reason::System(error),
                }
            })?;
        }
        if let Some(ecn) = self.ecn {
            controls.add_traffic_class(is_ipv4, ecn.bits());
        }
        Ok(controls)
    }
}
