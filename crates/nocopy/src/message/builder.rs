//! How an endpoint is made.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use nocopy_proto::message::wire::HEADER_BYTES;
use nocopy_proto::message::{MESSAGE_BYTES_MAX, Settings, framing};

use super::Endpoint;
use super::carrier::{OverPort, Sockets};
use super::memory::{Frames, Shares};
use crate::port::{PortBuilder, Wait};
use crate::udp::{self, over_port};

/// The shortest datagrams an endpoint can be told to send: what every IPv6 network takes (RFC 8200 section 5), less the headers.
const DATAGRAM_BYTES_MIN: u16 = 1200;
/// The longest: IPv4's, in whole.
const DATAGRAM_BYTES_MAX: u16 = 65_507;
/// Datagrams of Ethernet's MTU of 1500 bytes.
const DATAGRAM_BYTES_IPV4: u16 = 1500 - 20 - 8;
const DATAGRAM_BYTES_IPV6: u16 = 1500 - 40 - 8;
/// Bytes at the end of datagrams with a CRC.
const CRC_BYTES: usize = 4;

/// Settings of an [`Endpoint`].
#[derive(Debug, Clone)]
#[must_use = "settings alone make no endpoint"]
pub struct Builder {
    settings: Settings,
    datagram_bytes: Option<u16>,
    window_packets: Option<usize>,
    memory_bytes: Option<usize>,
    wait: Wait,
}

/// Why there is no endpoint.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The socket.
    #[error(transparent)]
    Socket(#[from] udp::OpenError),
    /// The port, and the socket over it.
    #[error(transparent)]
    Port(#[from] over_port::OpenError),
    /// The kernel does not tell the socket's address.
    #[error("the address of the socket: not told ({source}); give one with a port number")]
    Address {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The kernel does not let datagrams go whole only.
    #[error("datagrams that are not cut into fragments: refused ({source}); use a kernel that knows it")]
    Fragments {
        /// The kernel's reason.
        source: io::Error,
    },
    /// No memory.
    #[error("no memory for packets ({source}); ask for less")]
    Memory {
        /// The kernel's reason.
        source: io::Error,
    },
    /// The memory that was allowed does not do for the messages that are.
    #[error(
        "{memory_bytes} B of memory are too little: windows and messages as long as were asked for need {needed_bytes} B; allow that \
         much, or shorter messages"
    )]
    TooLittleMemory {
        /// What was allowed.
        memory_bytes: usize,
        /// What is needed.
        needed_bytes: usize,
    },
    /// A setting that cannot be.
    #[error("{setting} of {value}: give one of {least} to {most}")]
    Setting {
        /// Which.
        setting: &'static str,
        /// What was asked for.
        value: usize,
        /// The least.
        least: usize,
        /// The most.
        most: usize,
    },
    /// The kernel gives no random numbers, by which connections are kept safe from those who do not see them.
    #[error("no random numbers ({source}); use a kernel since Linux 3.17")]
    Random {
        /// The kernel's reason.
        source: io::Error,
    },
}

impl Builder {
    pub(super) fn new() -> Self {
        Self {
            settings: Settings::default(),
            datagram_bytes: None,
            window_packets: None,
            memory_bytes: None,
            wait: Wait::Interrupt,
        }
    }

    /// The longest message that peers may send (default: 1 MiB; at most [`MESSAGE_BYTES_MAX`]). What can be sent is the peer's to say.
    pub fn max_message_bytes(mut self, bytes: usize) -> Self {
        self.settings.max_message_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self
    }

    /// The longest datagram, in bytes of UDP payload (default: what fits into 1500 bytes of IP). A way that takes less is found out when
    /// connecting.
    pub fn datagram_bytes(mut self, bytes: u16) -> Self {
        self.datagram_bytes = Some(bytes);
        self
    }

    /// Packets on their way to a peer, and packets of a peer that were not read, at most (default: 1024, or as many as the longest message
    /// needs).
    pub fn window_packets(mut self, packets: usize) -> Self {
        self.window_packets = Some(packets);
        self
    }

    /// Has a CRC32C over each datagram, besides UDP's checksum; if one end asks for it, both use it (default: no).
    pub fn crc(mut self, on: bool) -> Self {
        self.settings.crc = on;
        self
    }

    /// Whether others may connect (default: yes).
    pub fn accept(mut self, on: bool) -> Self {
        self.settings.accept = on;
        self
    }

    /// Peers at most (default: 65,536). When there are as many, a client from an address with fewer connections takes the place of the newest
    /// one of the address that made the most.
    pub fn peers_max(mut self, peers: usize) -> Self {
        self.settings.peers_max = peers;
        self
    }

    /// How long an acknowledgement waits for something to go along with (default: 500 us).
    pub fn ack_delay(mut self, delay: Duration) -> Self {
        self.settings.ack_delay = delay;
        self
    }

    /// After how long without a word a peer is asked whether it is there (default: 10 s).
    pub fn keep_alive(mut self, silence: Duration) -> Self {
        self.settings.keep_alive = silence;
        self
    }

    /// After how long without a word a peer is lost (default: 30 s).
    pub fn dead_after(mut self, silence: Duration) -> Self {
        self.settings.dead_after = silence;
        self
    }

    /// How [`Endpoint::receive`] waits (default: sleeping, [`Wait::Interrupt`]). Timers of the protocol end every wait.
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// Bytes that packets may take, sent and received (default: what windows and the longest message need, and at least some 30 MiB, of
    /// which pages that were never used cost nothing). Beside it there are some 200 bytes for each peer, and 16 for each packet of its
    /// windows that is in use; and over a port, datagrams that come in fragments or through the kernel lie in memory of their own, no
    /// more than there are frames to hold others.
    pub fn memory(mut self, bytes: usize) -> Self {
        self.memory_bytes = Some(bytes);
        self
    }

    /// An endpoint over a UDP socket with this address; port 0 takes a free one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn bind(self, address: SocketAddr) -> Result<Endpoint, OpenError> {
        let usual = if address.is_ipv4() { DATAGRAM_BYTES_IPV4 } else { DATAGRAM_BYTES_IPV6 };
        let settings = self.settings_for(usual)?;
        let shares = Shares::of(self.memory_bytes, settings.datagram_bytes.into(), settings.window_packets)?;
        Endpoint::new(Box::new(Sockets::bind(address, &shares)?), settings, self.wait)
    }

    /// An endpoint over a port on each queue of an interface, past the host's network stack, with this address of the interface. What the port cannot carry
    /// goes through the kernel ([`over_port`](crate::udp::over_port)).
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(self, port: PortBuilder, address: SocketAddr) -> Result<Endpoint, OpenError> {
        // Datagrams shorter than this would be a waste where the MTU is no less, and those of a longer MTU need several frames.
        let usual = if address.is_ipv4() { DATAGRAM_BYTES_IPV4 } else { DATAGRAM_BYTES_IPV6 };
        let mut settings = self.settings_for(usual)?;
        let frames = Frames::of(self.memory_bytes, &port, settings.window_packets)?;
        let port = port.frame_count(frames.receive, frames.send);
        let port = if frames.several { port.multi_buffer(true) } else { port };
        let marks = over_port::Settings { congestion_marks: true, ..over_port::Settings::default() };
        let sockets = over_port::Socket::open_queues(port, address, &marks)?;
        let carrier = OverPort::new(sockets, frames.held_max()).map_err(over_port::OpenError::Poll)?;
        let datagram_bytes_max = carrier.datagram_bytes_max();
        let longest = u16::try_from(datagram_bytes_max).unwrap_or(DATAGRAM_BYTES_MAX);
        settings.datagram_bytes = self.datagram_bytes.unwrap_or(longest).min(longest);
        if settings.datagram_bytes < DATAGRAM_BYTES_MIN {
            let (value, least) = (settings.datagram_bytes.into(), DATAGRAM_BYTES_MIN.into());
            return Err(OpenError::Setting { setting: "datagrams", value, least, most: datagram_bytes_max });
        }
        Endpoint::new(Box::new(carrier), settings, self.wait)
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
        // With datagrams as short as the way may make them.
        let payload_bytes =
            usize::from(settings.datagram_bytes.min(DATAGRAM_BYTES_MIN)) - HEADER_BYTES - CRC_BYTES;
        let message_packets =
            (settings.max_message_bytes as usize).div_ceil(payload_bytes - framing::CHUNK_HEADER_BYTES_MAX);
        let enough = settings.window_packets.max(message_packets + 1);
        settings.window_packets = self.window_packets.unwrap_or(enough);
        check("window", settings.window_packets, message_packets + 1, 1 << 16)?;
        Ok(settings)
    }
}
