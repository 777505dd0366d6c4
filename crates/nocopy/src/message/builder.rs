//! Builds and opens an endpoint.

#[cfg_attr(not(feature = "port"), path = "builder/absent.rs")]
mod over_port;

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

use nocopy_proto::message::wire::HEADER_BYTES;
use nocopy_proto::message::{MESSAGE_BYTES_MAX, Settings, framing};

use super::carrier::{AnyCarrier, Carrier, Sockets};
use super::descriptor::Descriptor;
use super::memory::Shares;
use super::streams::Streams;
use super::{Endpoint, NonblockingEndpoint, OpenError};
use crate::engine::address;
use crate::port::{PortBuilder, Wait};
use crate::udp;

/// The shortest datagrams an endpoint may be set to send: what every IPv6 network takes (RFC 8200 section 5),
/// less the headers.
const DATAGRAM_BYTES_MIN: u16 = 1200;
/// The longest datagrams: IPv4's limit.
const DATAGRAM_BYTES_MAX: u16 = 65_507;
/// Datagrams of Ethernet's MTU of 1500 bytes.
const DATAGRAM_BYTES_IPV4: u16 = 1500 - 20 - 8;
const DATAGRAM_BYTES_IPV6: u16 = 1500 - 40 - 8;
/// Packets that a window has in addition to those of the longest message, if there may be a stream: some 3
/// MiB.
const STREAM_PACKETS: usize = 3072;
/// Bytes at the end of datagrams with a CRC.
const CRC_BYTES: usize = 4;
/// How many further ports are tried, if any will do and TCP uses the one that was found.
const PORTS_MAX: usize = 8;

/// Settings of an [`Endpoint`].
///
/// Lengths are in bytes. Settings that depend on each other:
///
/// * [`max_message_bytes`](Self::max_message_bytes), [`datagram_bytes`](Self::datagram_bytes) and
///   [`memory`](Self::memory): the memory has to hold windows with the longest message;
///   [`OpenError::TooLittleMemory`] says how much that is.
/// * [`port`](Self::port): datagrams are no longer than the interface's MTU allows, and
///   [`memory`](Self::memory) sets how many frames the ports have.
/// * [`keep_alive`](Self::keep_alive): shorter than [`dead_after`](Self::dead_after), so that an idle
///   connection is not taken for lost.
/// * [`crc`](Self::crc): used if one end asks for it. [`max_message_bytes`](Self::max_message_bytes) is the
///   receiver's: a sender is bound by its peer's.
///
/// ```
/// use nocopy::message::{Endpoint, OpenError};
/// let refused = Endpoint::builder().max_message_bytes(1 << 20).memory(64 << 10).bind("127.0.0.1:0");
/// assert!(matches!(refused, Err(OpenError::TooLittleMemory { .. })));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// ```
/// # use nocopy::message::Endpoint;
/// use std::time::Duration;
/// let builder = Endpoint::builder()
///     .datagram_bytes(8_952) // jumbo frames all the way
///     .crc(true)
///     .peers_max(100)
///     .keep_alive(Duration::from_secs(1))
///     .dead_after(Duration::from_secs(4)); // three of these may get lost
/// assert_ne!(builder.bind("127.0.0.1:0")?.local_addr().port(), 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
#[must_use = "settings alone make no endpoint"]
pub struct Builder {
    settings: Settings,
    datagram_bytes: Option<u16>,
    memory_bytes: Option<usize>,
    wait: Wait,
    port: Option<PortBuilder>,
    streams: bool,
}

impl Endpoint {
    /// Binds an endpoint with default settings to an address of this host; with port number 0 the kernel
    /// chooses one.
    ///
    /// # Errors
    /// As [`Builder::bind`].
    pub fn bind(address: impl ToSocketAddrs) -> Result<Self, OpenError> {
        Self::builder().bind(address)
    }

    /// Settings for an endpoint.
    pub fn builder() -> Builder {
        Builder::new()
    }
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::default(),
            datagram_bytes: None,
            memory_bytes: None,
            wait: Wait::Interrupt,
            port: None,
            streams: true,
        }
    }

    /// The longest message to receive, in bytes (default: 1 MiB; at most [`MESSAGE_BYTES_MAX`]). The longest
    /// to send is the peer's setting.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_message_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// The longest datagram, in bytes of UDP payload (default: what fits into 1500 bytes of IP, over a port
    /// the interface's MTU). If the path takes less, that is found out when connecting.
    pub fn datagram_bytes(mut self, bytes: u16) -> Self {
        self.datagram_bytes = Some(bytes);
        self
    }

    /// Protects each datagram by a CRC32C in addition to UDP's checksum; if one end asks for it, both use it
    /// (default: no).
    pub fn crc(mut self, on: bool) -> Self {
        self.settings.crc = on;
        self
    }

    /// Whether peers may connect (default: yes).
    pub fn accept(mut self, on: bool) -> Self {
        self.settings.accept = on;
        self
    }

    /// Peers at most (default: 65,536). When there are as many, a client from an address with fewer
    /// connections takes the place of the newest one of the address that made the most.
    pub fn peers_max(mut self, peers: usize) -> Self {
        self.settings.peers_max = peers;
        self
    }

    /// After how long without a datagram a peer is asked whether it is there (default: 10 s).
    pub fn keep_alive(mut self, silence: Duration) -> Self {
        self.settings.keep_alive = silence;
        self
    }

    /// After how long without a datagram a connection is lost (default: 30 s).
    pub fn dead_after(mut self, silence: Duration) -> Self {
        self.settings.dead_after = silence;
        self
    }

    /// How the endpoint waits (default: sleeping, [`Wait::Interrupt`]). Timers of the protocol end every
    /// wait.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Bytes that packets may take, sent and received (default: what windows and the longest message need,
    /// and at least some 30 MiB, of which pages that were never used cost nothing). Beside it there are some
    /// 200 bytes for each peer, and 16 for each packet of its windows that is in use; and over a port,
    /// datagrams that come in fragments or through the kernel lie in memory of their own, no more than there
    /// are frames to hold others.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// Whether long messages, and many short ones at a time, may go by TCP connections beside the datagrams
    /// (default: yes): to peers that do the same, where that is faster. The endpoint then listens on the TCP
    /// port with the number of its UDP port. If that is in use, and with [`crc`](Self::crc), everything goes
    /// by datagrams; [`explain`](NonblockingEndpoint::explain) says so. Messages keep their order. TCP
    /// connections are opened in the network namespace of the thread that calls. What they receive and copy
    /// may fill 100 MiB of memory, whatever [`memory`](Self::memory) says. Owned messages stay until they are
    /// acknowledged, up to 256 MiB without published ones; further ones go by datagrams.
    #[doc(hidden)]
    pub fn streams(mut self, on: bool) -> Self {
        self.streams = on;
        self
    }

    /// Opens the endpoint with an address of this host; over a port, of its interface. With port number 0 the
    /// kernel chooses one. Over sockets, `0.0.0.0` stands for all addresses of IPv4, `[::]` for all of both
    /// families: each peer then gets everything from the address that it asked. Of several addresses the
    /// first that can be bound is used.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn bind(self, address: impl ToSocketAddrs) -> Result<Endpoint, OpenError> {
        let lookup_error = |error| udp::OpenError::Lookup(error).into();
        address::first_success(address, lookup_error, |address| self.clone().bind_to(address))
    }

    fn bind_to(mut self, address: SocketAddr) -> Result<Endpoint, OpenError> {
        if let Some(port) = self.port.take() {
            return self.open(port, address);
        }
        let usual = if address.is_ipv4() { DATAGRAM_BYTES_IPV4 } else { DATAGRAM_BYTES_IPV6 };
        let mut settings = self.settings_for(usual)?;
        let datagrams_max = settings.window_packets;
        let datagram_bytes = settings.datagram_bytes.into();
        let shares =
            self.with_streams(&mut settings, |window| Shares::of(self.memory_bytes, datagram_bytes, window))?;
        let mut sockets = Sockets::bind(address, &shares)?;
        let mut streams = listen(&settings, sockets.local_addr());
        for _ in 0..PORTS_MAX {
            if address.port() != 0 || !matches!(&streams, Err(error) if error.kind() == ErrorKind::AddrInUse)
            {
                break;
            }
            // Another port, since this one is not free yet.
            let Ok(others) = Sockets::bind(address, &shares) else { break };
            sockets = others;
            streams = listen(&settings, sockets.local_addr());
        }
        self.endpoint(sockets.into(), settings, datagrams_max, streams.ok().flatten())
    }

    /// Divides memory for windows of this many packets, with some for streams if they are wanted and there is
    /// enough.
    fn with_streams<T>(
        &self,
        settings: &mut Settings,
        share: impl Fn(usize) -> Result<T, OpenError>,
    ) -> Result<T, OpenError> {
        if self.streams && !settings.crc {
            // By a stream the next message is sent while the longest one is read.
            let window_packets = settings.window_packets.max(message_packets(settings) + STREAM_PACKETS);
            if let Ok(shares) = share(window_packets) {
                (settings.window_packets, settings.streams) = (window_packets, true);
                return Ok(shares);
            }
        }
        share(settings.window_packets)
    }

    fn endpoint(
        &self,
        carrier: AnyCarrier,
        mut settings: Settings,
        datagrams_max: usize,
        streams: Option<Box<Streams>>,
    ) -> Result<Endpoint, OpenError> {
        settings.placement = true;
        settings.streams = streams.is_some();
        let descriptor = Descriptor::new().map_err(|source| OpenError::Poll { source })?;
        NonblockingEndpoint::new(carrier, settings, datagrams_max, self.wait, descriptor, streams)
            .map(Endpoint)
    }

    /// The settings, checked, with datagrams of `usual` bytes if nothing else was asked for.
    fn settings_for(&self, usual: u16) -> Result<Settings, OpenError> {
        let mut settings = self.settings.clone();
        settings.datagram_bytes = self.datagram_bytes.unwrap_or(usual);
        let check = |setting, value, least, most| match (least..=most).contains(&value) {
            true => Ok(()),
            false => Err(OpenError::Setting { setting, value, least, most }),
        };
        let (shortest, longest) = (DATAGRAM_BYTES_MIN.into(), DATAGRAM_BYTES_MAX.into());
        check("datagrams", settings.datagram_bytes.into(), shortest, longest)?;
        check("messages", settings.max_message_bytes as usize, 1, MESSAGE_BYTES_MAX as usize)?;
        check("peers", settings.peers_max, 1, 1 << 20)?;
        settings.window_packets = settings.window_packets.max(message_packets(&settings) + 1);
        Ok(settings)
    }
}

/// Packets of the longest message, with the shortest datagrams to which a path may lead.
fn message_packets(settings: &Settings) -> usize {
    let payload_bytes =
        usize::from(settings.datagram_bytes.min(DATAGRAM_BYTES_MIN)) - HEADER_BYTES - CRC_BYTES;
    (settings.max_message_bytes as usize).div_ceil(payload_bytes - framing::CHUNK_HEADER_BYTES_MAX)
}
/// Listens for streams at the endpoint's address, if it is to have some.
fn listen(settings: &Settings, local: SocketAddr) -> io::Result<Option<Box<Streams>>> {
    // Leaves enough descriptors for what the endpoint cannot do without.
    let _kept = Descriptor::new()?;
    let listen = || Streams::new(local, settings.max_message_bytes as usize).map(Box::new);
    settings.streams.then(listen).transpose()
}
