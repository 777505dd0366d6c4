//! How an endpoint behaves, and what it tells.

use std::net::SocketAddr;
use std::time::Duration;

use super::framing::Malformed as MalformedChunk;

/// How an endpoint behaves; both ends tell each other what concerns them when they connect (docs/protocol.md §3).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The longest datagram this end sends and takes, in bytes of UDP payload (default: 1472, Ethernet's MTU over IPv4).
    pub datagram_bytes: u16,
    /// The longest message this end takes (default: 1 MiB; at most [`MESSAGE_BYTES_MAX`]).
    pub max_message_bytes: u32,
    /// Packets from one peer that are kept until they are read, and packets to one peer until they are acknowledged
    /// (default: 1024). The longest message has to fit.
    pub window_packets: usize,
    /// Whether each datagram has a CRC32C besides UDP's checksum; if one end wants it, both use it (default: no).
    pub crc: bool,
    /// Whether peers may connect (default: yes).
    pub accept: bool,
    /// Peers at most (default: 65,536; no more than 2^20).
    pub peers_max: usize,
    /// How long an acknowledgement waits for a packet that takes it along (default: 500 us).
    pub ack_delay: Duration,
    /// After how long without a word a peer is asked whether it is there (default: 10 s).
    pub keep_alive: Duration,
    /// After how long without a word a peer is lost (default: 30 s).
    pub dead_after: Duration,
}

/// The longest message there can be: 16 MiB.
pub const MESSAGE_BYTES_MAX: u32 = 16 << 20;

impl Default for Settings {
    fn default() -> Self {
        Self {
            datagram_bytes: 1472,
            max_message_bytes: 1 << 20,
            window_packets: 1024,
            crc: false,
            accept: true,
            peers_max: 1 << 16,
            ack_delay: Duration::from_micros(500),
            keep_alive: Duration::from_secs(10),
            dead_after: Duration::from_secs(30),
        }
    }
}

/// One peer of an endpoint: a name for a connection that is never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Peer {
    /// A number that no other peer has at the same time, below the highest number of peers there were: for tables.
    #[inline]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message.
    Plain,
    /// One that wants a response with the same number.
    Request(u32),
    /// The response.
    Response(u32),
}

/// What happened to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection that was asked for is there.
    Connected(Peer, SocketAddr),
    /// A peer has connected.
    Accepted(Peer, SocketAddr),
    /// There is room again for a peer to which something could not be queued: for all the packets of it, and of several the fewest.
    Writable(Peer),
    /// The peer sends no more, and everything it sent was read.
    Finished(Peer),
    /// Both sides have ended, and everything arrived.
    Closed(Peer),
    /// The connection is no more. What was not acknowledged may have arrived or not.
    Lost(Peer, Reason),
}

/// Why a connection is no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Reason {
    /// Nobody answered.
    #[error("nobody answered; is an endpoint bound there, and does a firewall let UDP pass?")]
    NoAnswer,
    /// The peer does not speak a version that we do.
    #[error(
        "it speaks versions {first} to {last} of the protocol, and we speak {ours}; update the older one"
    )]
    Version {
        /// The first one it speaks.
        first: u8,
        /// The last one it speaks.
        last: u8,
        /// The one spoken here.
        ours: u8,
    },
    /// It takes no peers, or no more.
    #[error("it takes no more peers")]
    Full,
    /// Nothing was heard for [`Settings::dead_after`].
    #[error("nothing was heard of it any more; is it running, and is the network whole?")]
    Silent,
    /// It does not know the connection any more.
    #[error("it does not know the connection any more, as after a restart; connect again")]
    Restarted,
    /// It ended the connection.
    #[error("it ended the connection (code {code})")]
    Aborted {
        /// What it said (docs/protocol.md §11).
        code: u16,
    },
    /// It did not go on with a message that it had begun, or acknowledged nothing, while others needed the memory.
    #[error(
        "it did not go on with a message, or acknowledged nothing, while others needed the memory; give this end more, or connect again"
    )]
    Stalled,
    /// There was no place left, and its address had made more connections than others.
    #[error("its place was given to another network; its own had the most connections; raise peers_max")]
    Displaced,
    /// It did what the protocol forbids.
    #[error("it broke the protocol: {0}")]
    Violation(Violation),
}

/// How a peer broke the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A chunk that cannot be read.
    #[error(transparent)]
    Chunk(#[from] MalformedChunk),
    /// A message longer than was agreed on.
    #[error("a message is longer than was agreed on")]
    TooLong,
    /// A piece of a message that does not follow from the one before.
    #[error("a piece of a message does not follow from the one before")]
    OutOfPlace,
    /// Something behind the end.
    #[error("something came behind the end")]
    AfterTheEnd,
}

/// The peer is not there (any more); [`Event::Lost`] or [`Event::Closed`] told it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer is gone: the connection was closed, or lost")]
pub struct Gone;

/// Why a packet was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no room for all of them behind those that wait, or no connection yet; [`Event::Writable`] tells when there is.
    #[error("no room: the peer has not acknowledged enough yet; wait for it to be writable")]
    Full,
    /// This direction was ended.
    #[error("nothing follows the end")]
    Finished,
    /// There is no such peer any more.
    #[error(transparent)]
    Gone(#[from] Gone),
}

/// Why no connection was begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// There are as many peers as the settings allow.
    #[error("there are {peers_max} peers, as many as the settings allow; raise peers_max")]
    TooManyPeers {
        /// How many that is.
        peers_max: usize,
    },
}

/// What an endpoint counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Messages that were read.
    pub messages_received: u64,
    /// Messages that were complete and thrown away unread, since their connection ended by force.
    pub messages_discarded: u64,
    /// Packets that were sent, each counted once.
    pub packets_sent: u64,
    /// Transmissions beyond the first one of a packet.
    pub packets_sent_again: u64,
    /// Packets that were kept.
    pub packets_received: u64,
    /// Acknowledgements sent by themselves.
    pub acks_sent: u64,
    /// Packets that were taken for lost.
    pub lost: u64,
    /// Of those, packets that had only been late.
    pub spurious: u64,
    /// Probes sent since nothing was heard.
    pub probes: u64,
    /// Packets that were there already.
    pub duplicates: u64,
    /// Packets that the peer had no credit for.
    pub beyond_credit: u64,
    /// Packets that were not kept for want of memory; they are sent again.
    pub no_memory: u64,
    /// Datagrams that are none of the protocol.
    pub malformed: u64,
    /// Datagrams whose CRC was wrong.
    pub bad_crc: u64,
    /// Datagrams to connections that are not known here, or from another address than theirs.
    pub unknown: u64,
    /// Acknowledgements of what was never sent.
    pub impossible_acks: u64,
    /// Cookies that were not ours, or too old.
    pub bad_cookies: u64,
    /// Who wanted to connect and could not: no place, or nobody takes note of those who did.
    pub refused: u64,
    /// Connections that were ended since others needed their memory or their place.
    pub evicted: u64,
    /// Answers of the set-up that were not sent, since too many were waiting.
    pub answers_dropped: u64,
}

/// What is known of the way to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStatistics {
    /// The smoothed round-trip time; zero before the first sample.
    pub round_trip: Duration,
    /// The shortest one.
    pub round_trip_min: Duration,
    /// Packets that may be on their way.
    pub window_packets: usize,
    /// Packets that are.
    pub in_flight: usize,
    /// Packets that wait to be sent.
    pub queued: usize,
    /// Packets that came and were not read.
    pub unread: usize,
}
