//! A header by which a generic program recognises packets that the port returned to the host.

/// A secret in the form of an Ethernet header, put in front of packets that a port in generic mode returns to
/// the host. The kernel runs generic programs on everything the host receives, and keeps no other mark:
/// without the header the packet would come back to the port. The port's own program removes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PassHeader([u8; Self::BYTES as usize]);

/// For local experiments (IEEE 802): no host uses this type.
const ETHER_TYPE: [u8; 2] = [0x88, 0xb5];

impl PassHeader {
    pub(crate) const BYTES: i32 = 14;

    /// A random header that cannot be guessed from outside.
    pub(crate) fn new() -> std::io::Result<Self> {
        let mut bytes = [0; Self::BYTES as usize];
        // Never short: getrandom(2) returns so few bytes at once.
        rustix::rand::getrandom(&mut bytes[..12], rustix::rand::GetRandomFlags::empty())?;
        bytes[12..].copy_from_slice(&ETHER_TYPE);
        Ok(Self(bytes))
    }

    /// The header of another process's program; an error if it does not have this form.
    pub(crate) fn from_bytes(bytes: [u8; Self::BYTES as usize]) -> Result<Self, ()> {
        if bytes[12..] == ETHER_TYPE { Ok(Self(bytes)) } else { Err(()) }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Its first eight bytes and its last eight, in the form that a program loads them.
    pub(super) fn secret_words(&self) -> (u64, u64) {
        let word = |at: usize| u64::from_ne_bytes(self.0[at..at + 8].try_into().expect("eight"));
        (word(0), word(6))
    }
}
