//! The counters of each UDP socket of `nocopy run --batch-udp`: a file in memory that the preloaded library
//! shares with `nocopy run`.
//!
//! The library writes the file, and `nocopy run` reads it when the command has ended, for any reason. So
//! counting needs no message, no lock and no memory of the program, and nothing is missing after `kill -9`.
//! The file is a sequence of records of [`WORDS`] words of 64 bits, in the byte order of the machine; the
//! first record describes the file.
//!
//! A program of the command can write anything into the file. So the reader takes only numbers, and texts of
//! a fixed length from it, shows an unknown reason as `unknown`, and cannot tell whether a program's counts
//! are true.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use serde::Serialize;

/// Words of a record.
pub const WORDS: usize = 64;

/// Records of sockets. The last one is shared by all sockets for which there is no other.
pub const SOCKETS_MAX: usize = 2047;

/// Bytes of a word, and of the file.
pub const WORD_BYTES: usize = 8;
/// Bytes of the whole file.
pub const FILE_BYTES: usize = (1 + SOCKETS_MAX) * WORDS * WORD_BYTES;

/// Marks a file of this layout; the last digit is the layout's version.
pub const MAGIC: u64 = 0x6e6f_636f_7079_0001;

/// Words of the first record.
pub mod head {
    /// [`MAGIC`](super::MAGIC), which `nocopy run` writes.
    pub const MAGIC_AT: usize = 0;
    /// Sockets that asked for a record so far.
    pub const SOCKETS_AT: usize = 1;
    /// Programs into which the library was loaded.
    pub const PROGRAMS_AT: usize = 2;
    /// Programs among them in which the library does nothing, because a filter of system calls (seccomp)
    /// confines them.
    pub const CONFINED_AT: usize = 3;
}

/// Words of a socket's record.
pub mod word {
    use super::{BatchingStopCause, Flush, UnbatchedCause};

    /// The number of the process, as it sees it itself.
    pub const PROCESS_AT: usize = 0;
    /// The name of the program, in two words, with zeros behind it.
    pub const PROGRAM_AT: usize = 1;
    /// The peer's address: family (4 or 6) and port in the first word, IPv6 address in the two that follow.
    /// The last peer, where there are several.
    pub const PEER_AT: usize = 3;
    /// Bytes of a datagram, the last time that bursts began.
    pub const BYTES_AT: usize = 6;
    /// Datagrams that joined a burst.
    pub const JOINED_AT: usize = 7;
    /// Bursts.
    pub const BURSTS_AT: usize = 8;
    /// Datagrams that had joined a burst and that the kernel then refused.
    pub const REFUSED_AT: usize = 9;
    /// Datagrams that had joined a burst and were never handed to the kernel.
    pub const LOST_AT: usize = 10;
    /// Why batching was last stopped on the socket.
    pub const ALONE_AT: usize = 11;
    /// How often batching was stopped.
    pub const LEFT_AT: usize = 12;
    /// Nanoseconds that a datagram took when the two ways were last compared: alone, and in bursts.
    pub const PLAIN_NS_AT: usize = 13;
    /// The same in bursts.
    pub const BATCHED_NS_AT: usize = 14;
    /// Bursts that were handed over, by reason.
    pub const FLUSHED_AT: usize = 16;
    /// Datagrams that were sent alone, by reason.
    pub const PLAIN_AT: usize = FLUSHED_AT + Flush::ALL.len();

    const _: () =
        assert!(PLAIN_AT + UnbatchedCause::ALL.len() <= super::WORDS && BatchingStopCause::ALL.len() < 256);
}

/// Causes, each a number in the file with a text for people, which documents it, too. JSON has their names in
/// kebab-case.
macro_rules! reasons {
    ($(#[$about:meta])* $name:ident { $($(#[$doc:meta])* $reason:ident = $text:literal,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
        #[serde(rename_all = "kebab-case")]
        #[repr(u8)]
        pub enum $name {
            $(#[doc = $text] $(#[$doc])* $reason,)*
        }

        impl $name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$reason,)*];

            /// As people read it.
            pub fn text(self) -> &'static str {
                match self {
                    $(Self::$reason => $text,)*
                }
            }
        }
    };
}

reasons! {
    /// Why a burst was handed to the kernel.
    Flush {
        /// No further datagram fits.
        Full = "full",
        /// A datagram of another size, or to another destination, or one that cannot join.
        #[serde(rename = "other-size-or-destination")]
        Changed = "another size or destination",
        /// Output to another descriptor, or a change to a file.
        #[serde(rename = "output-elsewhere")]
        Output = "output elsewhere",
        /// The program waits or sleeps.
        Wait = "a wait",
        /// The settings of a descriptor are read or changed.
        Settings = "settings",
        Close = "close or dup",
        Process = "fork, exec, exit or signal",
        /// It waited for further datagrams as long as is allowed.
        Deadline = "the deadline",
    }
}

reasons! {
    /// Why a datagram was sent alone.
    UnbatchedCause {
        /// Nothing shows that more will follow quickly.
        NoRun = "no run of equal datagrams",
        /// The first datagram of a burst, whose errors the program learns at once.
        #[serde(rename = "first-of-burst")]
        First = "the first of a burst",
        /// Its flags, control data, length or address.
        #[serde(rename = "flags-control-data-or-size")]
        Unfit = "flags, control data or size",
        #[serde(rename = "batching-stopped")]
        Alone = "batching is stopped on the socket",
        /// To compare what the two ways cost.
        Measured = "to measure",
    }
}

reasons! {
    /// Why batching is stopped on a socket.
    BatchingStopCause {
        Not = "not stopped",
        NoRuns = "it sends no quick runs of equal datagrams to one destination",
        ShortBursts = "something else, or the deadline, ended most bursts after a few datagrams",
        Slower = "bursts were not faster than single sends",
        /// SO_TIMESTAMPING and its relatives.
        Timestamps = "it asks for timestamps of what it sends",
        TransmitTime = "it sets times of transmission (SO_TXTIME)",
        Pacing = "it is paced (SO_MAX_PACING_RATE)",
        Cork = "it is corked (UDP_CORK)",
        /// SO_NO_CHECK, UDP_NO_CHECK6_TX.
        NoChecksum = "it sends without checksum",
        ErrorQueue = "it reads the error of each datagram (IP_RECVERR)",
        OwnBursts = "the program makes bursts itself (UDP_SEGMENT)",
        Encapsulation = "it encapsulates (UDP_ENCAP)",
        Discipline = "a queueing discipline of an interface does more than queue",
        /// RTM_GETQDISC.
        UnknownDiscipline = "whether a queueing discipline does more than queue cannot be read",
        /// EIO, EINVAL, EMSGSIZE.
        Route = "the route takes no bursts of this size",
        NoThread = "no thread can be started for the deadline",
        UnknownOptions = "its options cannot be read",
        SendTimeout = "its sends may wait only so long (SO_SNDTIMEO)",
    }
}

/// The record of one socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SocketRecord {
    /// The number of the process, as it sees it itself.
    pub process: u32,
    /// The name of the program.
    pub program: String,
    /// The peer of its last burst.
    pub peer: Option<SocketAddr>,
    /// Bytes of a datagram of its last burst.
    pub datagram_bytes: u64,
    /// Datagrams that joined bursts.
    pub joined: u64,
    /// Bursts.
    pub bursts: u64,
    /// Datagrams that the kernel refused after success was returned.
    pub refused: u64,
    /// Datagrams that were lost after success was returned.
    pub lost: u64,
    /// Why batching was last stopped.
    pub alone: Option<BatchingStopCause>,
    /// How often batching was stopped.
    pub left_alone: u64,
    /// Nanoseconds a datagram, alone and in bursts, if that was measured.
    pub cost_ns: Option<(u64, u64)>,
    /// Bursts by the reason of [`Flush::ALL`].
    pub flushed: Vec<(Flush, u64)>,
    /// Datagrams sent alone, by the reason of [`UnbatchedCause::ALL`].
    pub plain: Vec<(UnbatchedCause, u64)>,
}

/// The content of the whole file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedSockets {
    /// In the order in which they first sent.
    pub sockets: Vec<SocketRecord>,
    /// Sockets without a record of their own, because the file had no room for more.
    pub left_out: u64,
    /// Programs into which the library was loaded.
    pub programs: u64,
    /// Programs among them in which the library does nothing, because a filter of system calls (seccomp)
    /// confines them.
    pub confined: u64,
}

impl SharedSockets {
    /// Reads the file; nothing where it is no file of this layout.
    pub fn parse(file: &[u8]) -> Option<Self> {
        let (chunks, _) = file.as_chunks::<{ WORDS * WORD_BYTES }>();
        let mut records = chunks.iter().map(record_words);
        let first = records.next()?;
        if first[head::MAGIC_AT] != MAGIC {
            return None;
        }
        let asked = first[head::SOCKETS_AT];
        let has_sent = |record: &[u64; WORDS]| record[word::PROCESS_AT] != 0;
        let sockets: Vec<_> = records.filter(has_sent).map(|record| parse_socket(&record)).collect();
        Some(Self {
            left_out: asked.saturating_sub(SOCKETS_MAX as u64 - 1),
            programs: first[head::PROGRAMS_AT],
            confined: first[head::CONFINED_AT],
            sockets,
        })
    }
}

fn record_words(record: &[u8; WORDS * WORD_BYTES]) -> [u64; WORDS] {
    let (bytes, _) = record.as_chunks::<WORD_BYTES>();
    std::array::from_fn(|at| u64::from_ne_bytes(bytes[at]))
}

fn parse_socket(record: &[u64; WORDS]) -> SocketRecord {
    let counts = |from: usize, at: usize| record[from + at];
    let costs = (record[word::PLAIN_NS_AT], record[word::BATCHED_NS_AT]);
    let alone = BatchingStopCause::ALL.get(record[word::ALONE_AT] as usize).copied();
    SocketRecord {
        process: record[word::PROCESS_AT] as u32,
        program: program_name(record),
        peer: address_of_words([record[word::PEER_AT], record[word::PEER_AT + 1], record[word::PEER_AT + 2]]),
        datagram_bytes: record[word::BYTES_AT],
        joined: record[word::JOINED_AT],
        bursts: record[word::BURSTS_AT],
        refused: record[word::REFUSED_AT],
        lost: record[word::LOST_AT],
        alone: alone.filter(|why| *why != BatchingStopCause::Not),
        left_alone: record[word::LEFT_AT],
        cost_ns: (costs.0 > 0 && costs.1 > 0).then_some(costs),
        flushed: Flush::ALL
            .iter()
            .enumerate()
            .map(|(at, &why)| (why, counts(word::FLUSHED_AT, at)))
            .collect(),
        plain: UnbatchedCause::ALL
            .iter()
            .enumerate()
            .map(|(at, &why)| (why, counts(word::PLAIN_AT, at)))
            .collect(),
    }
}

fn program_name(record: &[u64; WORDS]) -> String {
    let name: Vec<u8> =
        record[word::PROGRAM_AT..word::PROGRAM_AT + 2].iter().flat_map(|word| word.to_ne_bytes()).collect();
    let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
    String::from_utf8_lossy(&name[..end]).into_owned()
}

/// The words of an address. `None` has none: the program connected the socket, and named no destination.
pub fn address_words(peer: SocketAddr) -> [u64; 3] {
    let (family, address) = match peer.ip() {
        IpAddr::V4(address) => (4, address.to_ipv6_mapped()),
        IpAddr::V6(address) => (6, address),
    };
    let bits = address.to_bits();
    [family | (u64::from(peer.port()) << 16), (bits >> 64) as u64, bits as u64]
}

fn address_of_words([first, high, low]: [u64; 3]) -> Option<SocketAddr> {
    let address = Ipv6Addr::from_bits((u128::from(high) << 64) | u128::from(low));
    let ip = match first & 0xffff {
        4 => IpAddr::V4(address.to_ipv4_mapped()?),
        6 => IpAddr::V6(address),
        _ => return None,
    };
    Some(SocketAddr::new(ip, (first >> 16) as u16))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of_records(records: &[[u64; WORDS]]) -> Vec<u8> {
        records.iter().flatten().flat_map(|word| word.to_ne_bytes()).collect()
    }

    fn head_record() -> [u64; WORDS] {
        let mut first = [0; WORDS];
        (first[head::MAGIC_AT], first[head::SOCKETS_AT], first[head::PROGRAMS_AT]) = (MAGIC, 1, 3);
        first
    }

    #[test]
    fn a_shared_record_is_read_as_written() {
        let mut record = [0; WORDS];
        record[word::PROCESS_AT] = 4711;
        record[word::PROGRAM_AT] = u64::from_ne_bytes(*b"a sender");
        let address: SocketAddr = "192.0.2.1:9".parse().unwrap();
        record[word::PEER_AT..word::PEER_AT + 3].copy_from_slice(&address_words(address));
        record[word::JOINED_AT] = 46;
        record[word::ALONE_AT] = BatchingStopCause::Pacing as u64;
        record[word::FLUSHED_AT + Flush::Deadline as usize] = 2;
        record[word::PLAIN_AT + UnbatchedCause::Measured as usize] = 5;
        let read = SharedSockets::parse(&file_of_records(&[head_record(), record])).unwrap();
        assert_eq!((read.programs, read.left_out, read.sockets.len()), (3, 0, 1));
        let socket = &read.sockets[0];
        assert_eq!((socket.process, socket.program.as_str(), socket.peer), (4711, "a sender", Some(address)));
        assert_eq!(
            (socket.joined, socket.alone, socket.cost_ns),
            (46, Some(BatchingStopCause::Pacing), None)
        );
        assert_eq!(socket.flushed[Flush::Deadline as usize], (Flush::Deadline, 2));
        assert_eq!(socket.plain[UnbatchedCause::Measured as usize], (UnbatchedCause::Measured, 5));
    }

    #[test]
    fn arbitrary_shared_bytes_are_read_safely() {
        assert_eq!(SharedSockets::parse(&[]), None);
        assert_eq!(SharedSockets::parse(&[0xff; FILE_BYTES]), None);
        let noise = SharedSockets::parse(&file_of_records(&[head_record(), [u64::MAX; WORDS]])).unwrap();
        assert_eq!((noise.sockets[0].alone, noise.sockets[0].peer), (None, None));
        assert_eq!(noise.sockets[0].program.chars().count(), 16);
    }

    #[test]
    fn addresses_of_both_families_survive() {
        for text in ["127.0.0.1:53", "[2001:db8::1]:65535", "[::ffff:192.0.2.1]:1"] {
            let address: SocketAddr = text.parse().unwrap();
            assert_eq!(address_of_words(address_words(address)), Some(address));
        }
        assert_eq!(address_of_words([0; 3]), None);
    }
}
