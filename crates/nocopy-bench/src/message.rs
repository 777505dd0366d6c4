//! nocopy's own side: endpoints of the message protocol, used as a program would use them.

use nocopy::message::Endpoint;

use super::stage::{NetworkSite, SitePair};
use crate::Failure;
use nocopy_transfer::exchange::WaitMode;
use nocopy_transfer::exchange::message::{EndpointSettings, MessageExchange};
use nocopy_transfer::ping;

/// Headers of IPv4 and UDP.
const HEADER_BYTES: u32 = 20 + 8;

/// What endpoints allow at least: a put of 1 MiB, with what precedes it.
const MESSAGE_BYTES_MIN: usize = (1 << 20) + 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CarrierKind {
    Sockets,
    Port,
    /// Sockets, and streams beside them where the library finds them better.
    Auto,
}

impl CarrierKind {
    pub(crate) const ALL: [Self; 3] = [Self::Port, Self::Sockets, Self::Auto];

    pub(crate) fn method_name(self) -> &'static str {
        match self {
            Self::Sockets => "message-udp",
            Self::Port => "message-xdp",
            Self::Auto => "message-auto",
        }
    }
}

/// An endpoint at a site, for messages of this length or of 1 MiB.
pub(crate) fn open_endpoint(
    stage: &SitePair,
    site: &NetworkSite,
    carrier: CarrierKind,
    waiting: WaitMode,
    message_bytes: usize,
) -> Result<Endpoint, Failure> {
    // The longest that fit the MTU, as TCP has its segments.
    let datagram_bytes = u16::try_from(stage.mtu_bytes().saturating_sub(HEADER_BYTES)).unwrap_or(u16::MAX);
    let setting = EndpointSettings {
        at: (site.ipv4, 0).into(),
        interface: (carrier == CarrierKind::Port).then_some(&site.interface),
        waiting,
        message_bytes_max: message_bytes.max(MESSAGE_BYTES_MIN),
        datagram_bytes: Some(datagram_bytes),
        accept: true,
        streams: carrier == CarrierKind::Auto,
    };
    Ok(site.run(|| setting.open())?)
}

/// The asking or sending, and the answering or receiving side, connected.
pub(crate) fn connected_pair(
    stage: &SitePair,
    carrier: CarrierKind,
    waiting: WaitMode,
    message_bytes: usize,
) -> Result<(MessageExchange, MessageExchange), Failure> {
    let open = |site| open_endpoint(stage, site, carrier, waiting, message_bytes);
    let (from, to) = (open(&stage.sender)?, open(&stage.receiver)?);
    Ok(stage
        .sender
        .run(|| MessageExchange::connected_pair(from, to))
        .map_err(|error| nocopy_transfer::Failure::from(ping::Error::Message(error)))?)
}
