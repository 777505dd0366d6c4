//! The parameters by which each end describes itself in Connect and Accept (docs/protocol.md §3.3).

use std::num::NonZeroU64;

use super::Malformed;
use crate::wire::field::Field;

/// Bytes of the parameters. To ends that know nothing of placement the last eight are padding, and the eight
/// before to those that know nothing of streams.
pub(super) const PARAMETERS_BYTES: usize = 32;

/// Bytes of datagram that an end may ask for, at the least: an Ack with all its ranges fits, and so does
/// every kind but Hello's padding.
pub const DATAGRAM_BYTES_MIN: u16 = 512;

/// The only flag: the sender wants checksums.
const WANTS_CRC: u16 = 1;

type DatagramBytes = Field<0, 2>;
type FlagBits = Field<2, 2>;
type MessageBytes = Field<4, 4>;
type Credit = Field<8, 4>;
type FirstSequence = Field<12, 4>;
type StreamKey = Field<16, 8>;
type PlacementWord = Field<24, 8>;

/// Whether an end supports puts, or a connection is for them (§17.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Placement {
    /// Nothing: it knows none.
    None,
    /// It may register memory for this peer, which then makes a connection for puts.
    Known,
    /// In a Connect: this is the connection for puts to the end that has this id on another one.
    Beside(u64),
}

impl Placement {
    fn of(word: u64) -> Self {
        match word {
            0 => Self::None,
            1 => Self::Known,
            id => Self::Beside(id),
        }
    }

    fn word(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Known => 1,
            Self::Beside(id) => id,
        }
    }
}

/// What an end announces about itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Parameters {
    /// The longest datagram on this connection: UDP payload, with header and checksum. The Accept's value
    /// applies to both directions.
    pub datagram_bytes: u16,
    /// The longest message that it takes.
    pub max_message_bytes: u32,
    /// Packets that may be sent to it before it grants more.
    pub initial_credit: u32,
    /// The sequence of its own first packet.
    pub first_sequence: u32,
    /// Whether it wants a checksum on everything. One end that does is enough.
    pub crc: bool,
    /// What a stream to it begins with, if it takes one for this connection (§16).
    pub stream_key: Option<NonZeroU64>,
    /// What it says of puts.
    pub placement: Placement,
}

impl Parameters {
    /// `kind` and `datagram_bytes` describe the datagram that holds the parameters, which must state its
    /// length.
    pub(super) fn parse(
        bytes: &[u8; PARAMETERS_BYTES],
        kind: u8,
        datagram_bytes: usize,
    ) -> Result<Self, Malformed> {
        let flags = FlagBits::number(bytes);
        if flags & !WANTS_CRC != 0 {
            return Err(Malformed::Reserved { kind });
        }
        let stated = DatagramBytes::number(bytes);
        if stated < DATAGRAM_BYTES_MIN || usize::from(stated) != datagram_bytes {
            return Err(Malformed::Unproven { stated_bytes: stated, datagram_bytes });
        }
        Ok(Self {
            datagram_bytes: stated,
            max_message_bytes: MessageBytes::number(bytes),
            initial_credit: Credit::number(bytes),
            first_sequence: FirstSequence::number(bytes),
            crc: flags & WANTS_CRC != 0,
            stream_key: NonZeroU64::new(StreamKey::number(bytes)),
            placement: Placement::of(PlacementWord::number(bytes)),
        })
    }

    pub(super) fn bytes(&self) -> [u8; PARAMETERS_BYTES] {
        let mut bytes = [0; PARAMETERS_BYTES];
        DatagramBytes::put_number(&mut bytes, self.datagram_bytes);
        FlagBits::put_number(&mut bytes, WANTS_CRC * u16::from(self.crc));
        MessageBytes::put_number(&mut bytes, self.max_message_bytes);
        Credit::put_number(&mut bytes, self.initial_credit);
        FirstSequence::put_number(&mut bytes, self.first_sequence);
        StreamKey::put_number(&mut bytes, self.stream_key.map_or(0, NonZeroU64::get));
        PlacementWord::put_number(&mut bytes, self.placement.word());
        bytes
    }
}
