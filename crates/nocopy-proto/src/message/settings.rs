//! The settings, events, errors and counters of an endpoint.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use super::framing::Malformed as MalformedChunk;
use super::placing::{PutRefusal, Region};

/// How an endpoint behaves; both ends tell each other what concerns them when they connect (docs/protocol.md
/// §3).
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings {
    /// The longest datagram this end sends and takes, in bytes of UDP payload (default: 1472, Ethernet's MTU
    /// over IPv4).
    pub datagram_bytes: u16,
    /// The longest message this end takes (default: 1 MiB; at most [`MESSAGE_BYTES_MAX`]).
    pub max_message_bytes: u32,
    /// Packets from one peer that are kept until they are read, and packets to one peer that are kept until
    /// they are acknowledged (default: 1024). The longest message must fit.
    pub window_packets: usize,
    /// Whether each datagram has a CRC32C in addition to UDP's checksum; if one end asks for it, both use it
    /// (default: no).
    pub crc: bool,
    /// Whether peers may connect (default: yes).
    pub accept: bool,
    /// Whether peers may open a stream beside their datagrams (default: no). Not with checksums on each
    /// datagram.
    pub streams: bool,
    /// Whether peers may write to memory that is registered for them (default: no).
    pub placement: bool,
    /// Peers at most (default: 65,536; no more than 2^20).
    pub peers_max: usize,
    /// How long an acknowledgement waits for a packet that takes it along (default: 500 us).
    pub ack_delay: Duration,
    /// After how long without a datagram a peer is asked for a sign of life (default: 10 s).
    pub keep_alive: Duration,
    /// After how long without a datagram a peer counts as lost (default: 30 s).
    pub dead_after: Duration,
}

/// The longest message of the protocol: 16 MiB.
pub const MESSAGE_BYTES_MAX: u32 = 16 << 20;

impl Default for Settings {
    fn default() -> Self {
        Self {
            datagram_bytes: 1472,
            max_message_bytes: 1 << 20,
            window_packets: 1024,
            crc: false,
            accept: true,
            streams: false,
            placement: false,
            peers_max: 1 << 16,
            ack_delay: Duration::from_micros(500),
            keep_alive: Duration::from_secs(10),
            dead_after: Duration::from_secs(30),
        }
    }
}

/// One connection of an endpoint. A value is never used again for another connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Peer {
    pub(super) index: u32,
    pub(super) generation: u32,
}

impl Peer {
    /// A number that no other peer has at the same time, below the highest number of peers there were: for
    /// tables.
    #[inline]
    pub fn index(self) -> usize {
        self.index as usize
    }
}

/// What a message is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A message that wants no response.
    Plain,
    /// A request, which wants a response with the same number.
    Request(u32),
    /// The response to the request of that number.
    Response(u32),
}

/// What happened to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// The connection that was asked for is established.
    Connected(Peer, SocketAddr),
    /// A peer has connected.
    Accepted(Peer, SocketAddr),
    /// There is room again to send to a peer: for the shortest message that was refused.
    Writable(Peer),
    /// The peer sends no more, and everything that it sent was read.
    Finished(Peer),
    /// Both sides have ended, and everything arrived.
    Closed(Peer),
    /// The connection was lost. What was not acknowledged may have arrived or not.
    Lost(Peer, LostReason),
    /// A peer has written to memory that was registered for it.
    Placed {
        /// The peer.
        from: Peer,
        /// Where.
        region: Region,
        /// From which byte of it on.
        offset: u64,
        /// How many bytes.
        bytes: usize,
    },
    /// The put of that number is done: the peer's memory has its bytes, and so has that of all puts to this
    /// peer before it.
    PutDone(Peer, u32),
    /// The put of that number was refused.
    PutRefused(Peer, u32, PutRefusal),
}

impl Event {
    /// Whose it is.
    pub fn peer(&self) -> Peer {
        match *self {
            Self::Connected(peer, _)
            | Self::Accepted(peer, _)
            | Self::Writable(peer)
            | Self::Finished(peer)
            | Self::Closed(peer)
            | Self::Lost(peer, _)
            | Self::Placed { from: peer, .. }
            | Self::PutDone(peer, _)
            | Self::PutRefused(peer, ..) => peer,
        }
    }
}

/// Why a connection was lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LostReason {
    /// No answer came.
    #[error("no answer; is an endpoint bound there, and does a firewall let UDP pass?")]
    NoAnswer,
    /// The peer speaks no version of the protocol that this end speaks.
    #[error(
        "it speaks versions {first} to {last} of the protocol, and this end {ours}; update the older one"
    )]
    Version {
        /// The first one it speaks.
        first: u8,
        /// The last one it speaks.
        last: u8,
        /// The one spoken here.
        ours: u8,
    },
    /// The peer accepts no connections, or no more.
    #[error("it accepts no more connections; raise peers_max there")]
    Full,
    /// No datagram came for [`Settings::dead_after`].
    #[error("no more datagrams arrived from it; is it running, and is the network up?")]
    Silent,
    /// The peer does not know the connection any more: it was restarted.
    #[error("it no longer knows the connection, for example after a restart; connect again")]
    Restarted,
    /// The peer ended the connection.
    #[error("it ended the connection (code {code})")]
    Aborted {
        /// Its reason (docs/protocol.md §11).
        code: u16,
    },
    /// The peer did not continue a message that it had begun, or acknowledged nothing, while other peers
    /// needed the memory.
    #[error(
        "it stopped in the middle of a message, or acknowledged nothing, while other peers needed the memory; give this endpoint more memory, or connect again"
    )]
    Stalled,
    /// There was no place left, and the address of the peer had made more connections than others.
    #[error("its place was given to another network; its own had the most connections; raise peers_max")]
    Displaced,
    /// The peer did what the protocol forbids.
    #[error("it broke the protocol: {0}")]
    Violation(Violation),
}

impl From<LostReason> for io::Error {
    /// An error of a matching kind, from which `get_ref` returns the reason.
    fn from(reason: LostReason) -> Self {
        let kind = match reason {
            LostReason::NoAnswer | LostReason::Silent => io::ErrorKind::TimedOut,
            LostReason::Version { .. } => io::ErrorKind::Unsupported,
            LostReason::Full => io::ErrorKind::ConnectionRefused,
            LostReason::Restarted => io::ErrorKind::ConnectionReset,
            LostReason::Aborted { .. } | LostReason::Stalled | LostReason::Displaced => {
                io::ErrorKind::ConnectionAborted
            }
            LostReason::Violation(_) => io::ErrorKind::InvalidData,
        };
        Self::new(kind, reason)
    }
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
    /// The last packet of a direction ends inside a message, or others follow it.
    #[error("the last packet ends inside a message, or others follow it")]
    AfterTheEnd,
    /// For 10 s it acknowledged packets that were never sent, or no longer acknowledged what it had
    /// acknowledged before.
    #[error(
        "for 10 s its acknowledgements contradicted earlier ones, or were of packets that were never sent; if datagrams are damaged on the path, turn checksums on"
    )]
    Acknowledgement,
}

/// There is no such peer, or not any more; [`Event::Lost`] or [`Event::Closed`] reported its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the peer is gone: the connection was closed, or lost")]
pub struct Gone;

/// Why a packet was not queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum QueueError {
    /// There is no room for all of them in the queue, or no connection yet; [`Event::Writable`] reports when
    /// there is.
    #[error("no room: the peer has not acknowledged enough yet; wait for it to be writable")]
    Full,
    /// This direction was ended.
    #[error("this direction was ended; nothing more can be sent on this connection")]
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

/// Makes a struct of counters that can also be listed by name.
macro_rules! counters {
    ($(#[$about:meta])* pub struct $group:ident { $(#[doc = $meaning:literal] $name:ident,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $group {
            $(#[doc = $meaning] pub $name: u64,)+
        }

        impl $group {
            /// Each counter: its name, what it counts, and how many.
            pub fn named(&self) -> impl Iterator<Item = (&'static str, &'static str, u64)> + use<> {
                [$((stringify!($name), $meaning.trim_ascii(), self.$name),)+].into_iter()
            }
        }
    };
}

counters! {
    /// What an endpoint counted.
    pub struct Counters {
        /// Messages that were read.
        messages_received,
        /// Bytes of messages that were read.
        message_bytes_received,
        /// Complete messages that were discarded unread because their connection was aborted.
        messages_discarded,
        /// Packets that were sent, each counted once.
        packets_sent,
        /// Transmissions of packets after their first.
        packets_sent_again,
        /// Units that were given to streams, each counted once.
        units_sent,
        /// Units that were given to another stream, since their stream was cut.
        units_sent_again,
        /// Units that arrived over streams and were kept.
        units_received,
        /// Packets that were kept.
        packets_received,
        /// Acknowledgements sent by themselves.
        acks_sent,
        /// Packets that were considered lost.
        lost,
        /// Packets that were considered lost and had only been late.
        spurious,
        /// Probes sent because no datagram arrived.
        probes,
        /// Packets that had arrived before.
        duplicates,
        /// Packets that the peer had no credit for.
        beyond_credit,
        /// Packets that were dropped because there was no memory; they are sent again.
        no_memory,
        /// Datagrams that do not follow the protocol.
        malformed,
        /// Datagrams whose CRC was wrong.
        bad_crc,
        /// Datagrams for unknown connections, or from another address than the peer's.
        unknown,
        /// Acknowledgements of packets that were never sent.
        impossible_acks,
        /// Cookies that this endpoint did not make, or that are too old.
        bad_cookies,
        /// Connections that were refused because no place was left, or because their events were not read.
        refused,
        /// Connections that were ended because others needed their memory or their place.
        evicted,
        /// Answers of the set-up that were not sent, because too many were waiting.
        answers_dropped,
    }
}

/// The state of the path to a peer, and the numbers of its packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerStats {
    /// Where the peer is.
    pub address: SocketAddr,
    /// The smoothed round-trip time; zero before the first sample.
    pub round_trip: Duration,
    /// The shortest one.
    pub round_trip_min: Duration,
    /// The congestion window: how many packets may be in flight.
    pub window_packets: usize,
    /// Packets in flight.
    pub in_flight: usize,
    /// Packets that wait to be sent.
    pub queued: usize,
    /// Packets that arrived and were not read.
    pub unread: usize,
}
