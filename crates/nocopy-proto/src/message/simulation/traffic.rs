//! What hosts send to each other: numbered messages, whose lengths and bytes depend on a seed, so that the
//! other end knows them too.

use std::collections::BTreeMap;
use std::time::Duration;

use fastrand::Rng;

use crate::message::Kind;

/// The messages of one direction of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Traffic {
    pub messages: u64,
    pub sizes: Sizes,
    /// This many at a time, with a pause between; without it, as fast as possible.
    pub burst: Option<(u64, Duration)>,
    /// The messages are requests, and this many wait for their responses at a time.
    pub calls: Option<u64>,
    /// Whether the direction ends after the last message.
    pub finish: bool,
}

impl Traffic {
    /// Messages as fast as they go, and then the end.
    pub const fn of(messages: u64, sizes: Sizes) -> Self {
        Self { messages, sizes, burst: None, calls: None, finish: true }
    }
}

/// How long the messages of a direction are.
#[derive(Debug, Clone, Copy)]
pub enum Sizes {
    /// All alike.
    Bytes(usize),
    /// Every length up to this many bytes with equal probability.
    UpTo(usize),
    /// Nearly all up to 256 bytes; one of 1,000 up to 64 KiB, one of 10,000 up to 1 MiB, and the one of that
    /// number 16 MiB.
    Mixed {
        /// The number of the one of 16 MiB.
        longest: u64,
    },
}

impl Sizes {
    fn bytes(self, number: u64, random: &mut Rng) -> usize {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::UpTo(bytes) => random.usize(0..=bytes),
            Self::Mixed { longest } if number == longest => 16 << 20,
            Self::Mixed { .. } => match random.u32(..10_000) {
                0 => random.usize(0..=1 << 20),
                1..=10 => random.usize(0..=1 << 16),
                _ => random.usize(0..=256),
            },
        }
    }

    /// Writes the message of that number into `message`.
    pub(super) fn write(self, seed: u64, number: u64, message: &mut Vec<u8>) {
        let mut random = Rng::with_seed(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        message.clear();
        message.resize(self.bytes(number, &mut random), 0);
        random.fill(message);
    }
}

/// A direction of a connection, as both of its ends know it.
#[derive(Debug)]
pub struct Flow {
    pub traffic: Traffic,
    /// Its greeting has arrived.
    pub begun: bool,
    /// Messages that arrived as they should.
    pub received: u64,
    /// Responses that arrived as they should.
    pub answered: u64,
    /// Its end was reported.
    pub finished: bool,
}

/// All directions, by their seeds. The first message of each is its seed, in bytes.
pub(super) type Flows = BTreeMap<u64, Flow>;

/// Makes the bytes of responses differ from those of requests.
const RESPONSE: u64 = 0x5a5a_0000_0000_5a5a;

/// A message that is to be sent.
#[derive(Debug, Clone, Copy)]
pub(super) enum Utterance {
    Greeting { seed: u64 },
    Message { seed: u64, number: u64 },
    Request { seed: u64, number: u64 },
    Response { seed: u64, number: u64 },
}

impl Utterance {
    pub(super) fn kind(self) -> Kind {
        match self {
            Self::Greeting { .. } | Self::Message { .. } => Kind::Plain,
            Self::Request { number, .. } => Kind::Request(number as u32),
            Self::Response { number, .. } => Kind::Response(number as u32),
        }
    }

    pub(super) fn write(self, flows: &Flows, message: &mut Vec<u8>) {
        let (seed, number, difference) = match self {
            Self::Greeting { seed } => {
                message.clear();
                return message.extend_from_slice(&seed.to_be_bytes());
            }
            Self::Message { seed, number } | Self::Request { seed, number } => (seed, number, 0),
            Self::Response { seed, number } => (seed, number, RESPONSE),
        };
        flows[&seed].traffic.sizes.write(seed ^ difference, number, message);
    }
}

impl Flow {
    pub(super) fn of(traffic: Traffic) -> Self {
        Self { traffic, begun: false, received: 0, answered: 0, finished: false }
    }
}
