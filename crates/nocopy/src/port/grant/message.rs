//! The data of a grant, sent with its descriptors: one message of a fixed size. The part about the interface
//! and its program is a [`XdpProgramHeader`] that other messages about programs have in the same places.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | which message: [`MAGIC`] for a grant |
//! | 8..12 | [`VERSION`] |
//! | 12..20, 20..28 | device and inode of the network namespace |
//! | 28..32 | number of the interface in it |
//! | 32..36 | of a grant: queue |
//! | 36..40 | of a grant: errno of native XDP if it was refused, otherwise 0 |
//! | 40 | where the program runs: 1 native, 2 generic |
//! | 41 | of a grant: 1 with a promiscuous membership, otherwise 0 |
//! | 42 | 1 with a program that accepts packets of several buffers, otherwise 0 |
//! | 43 | of a grant: 0 |
//! | 44..48 | of a grant: entries of the rx ring |
//! | 48..64 | name of the interface, padded with zeroes |
//!
//! Numbers are in the machine's byte order: both ends are on the same machine.

use super::GrantError;
use crate::port::xdp::Attach;

pub(super) const MESSAGE_BYTES: usize = XdpProgramHeader::BYTES;
const MAGIC: [u8; 8] = *b"nocopy\0g";
pub(super) const VERSION: u32 = 2;

const NAME_BYTES_MAX: usize = 15;
/// Linux's `MAX_ERRNO`.
const ERRNO_MAX: i32 = 4095;

/// The first part of a message about an XDP program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::port) struct XdpProgramHeader {
    pub(in crate::port) namespace: (u64, u64),
    pub(in crate::port) interface_index: u32,
    pub(in crate::port) interface: String,
    pub(in crate::port) at: Attach,
    pub(in crate::port) fragments: bool,
}

impl XdpProgramHeader {
    pub(in crate::port) const BYTES: usize = 64;

    pub(in crate::port) fn emit(&self, magic: [u8; 8]) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        let name = self.interface.as_bytes();
        assert!(name.len() <= NAME_BYTES_MAX, "the kernel has no longer names");
        bytes[..8].copy_from_slice(&magic);
        bytes[8..12].copy_from_slice(&VERSION.to_ne_bytes());
        bytes[12..20].copy_from_slice(&self.namespace.0.to_ne_bytes());
        bytes[20..28].copy_from_slice(&self.namespace.1.to_ne_bytes());
        bytes[28..32].copy_from_slice(&self.interface_index.to_ne_bytes());
        bytes[40] = match self.at {
            Attach::Native => 1,
            Attach::Generic => 2,
        };
        bytes[42] = self.fragments.into();
        bytes[48..48 + name.len()].copy_from_slice(name);
        bytes
    }

    pub(in crate::port) fn parse(bytes: &[u8; Self::BYTES], magic: [u8; 8]) -> Result<Self, GrantError> {
        if bytes[..8] != magic {
            return Err(GrantError::Foreign);
        }
        if u32_at(bytes, 8) != VERSION {
            return Err(GrantError::Version { theirs: u32_at(bytes, 8) });
        }
        let at = match bytes[40] {
            1 => Attach::Native,
            2 => Attach::Generic,
            _ => return Err(invalid_field("place of the program")),
        };
        let fragments = parse_flag(bytes[42])?;
        let interface = parse_name(&bytes[48..]).ok_or(invalid_field("name of the interface"))?;
        let namespace = (u64_at(bytes, 12), u64_at(bytes, 20));
        Ok(Self { namespace, interface_index: u32_at(bytes, 28), interface, at, fragments })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct GrantMessage {
    pub(super) header: XdpProgramHeader,
    pub(super) queue: u32,
    pub(super) native_refused: Option<i32>,
    pub(super) promiscuous: bool,
    pub(super) rx_entries: u32,
}

impl GrantMessage {
    pub(super) fn emit(&self) -> [u8; MESSAGE_BYTES] {
        let mut bytes = self.header.emit(MAGIC);
        bytes[32..36].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[36..40].copy_from_slice(&self.native_refused.unwrap_or(0).to_ne_bytes());
        bytes[41] = self.promiscuous.into();
        bytes[44..48].copy_from_slice(&self.rx_entries.to_ne_bytes());
        bytes
    }

    pub(super) fn parse(bytes: &[u8; MESSAGE_BYTES]) -> Result<Self, GrantError> {
        let header = XdpProgramHeader::parse(bytes, MAGIC)?;
        let native_refused = match u32_at(bytes, 36).cast_signed() {
            0 => None,
            errno if (1..=ERRNO_MAX).contains(&errno) => Some(errno),
            _ => return Err(invalid_field("errno")),
        };
        let promiscuous = parse_flag(bytes[41])?;
        if bytes[43] != 0 {
            return Err(invalid_field("flag"));
        }
        let (queue, rx_entries) = (u32_at(bytes, 32), u32_at(bytes, 44));
        if !rx_entries.is_power_of_two() {
            return Err(invalid_field("size of the rx ring"));
        }
        Ok(Self { header, queue, native_refused, promiscuous, rx_entries })
    }
}

pub(in crate::port) fn invalid_field(field: &'static str) -> GrantError {
    GrantError::Field { field }
}

pub(in crate::port) fn parse_flag(byte: u8) -> Result<bool, GrantError> {
    if byte > 1 { Err(invalid_field("flag")) } else { Ok(byte == 1) }
}

pub(in crate::port) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A name followed only by zeroes, at least one.
fn parse_name(padded: &[u8]) -> Option<String> {
    let end = padded.iter().position(|byte| *byte == 0).filter(|end| *end > 0)?;
    let (name, padding) = padded.split_at(end);
    padding.iter().all(|byte| *byte == 0).then(|| String::from_utf8(name.to_vec()).ok())?
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn example_message() -> GrantMessage {
        let header = XdpProgramHeader {
            namespace: (4, u64::MAX),
            interface_index: 7,
            interface: "enp0s31f6".into(),
            at: Attach::Generic,
            fragments: false,
        };
        let native_refused = Some(libc::EOPNOTSUPP);
        GrantMessage { header, queue: 3, native_refused, promiscuous: true, rx_entries: 4096 }
    }

    #[test]
    fn grant_messages_survive_emit_and_parse() {
        assert_eq!(GrantMessage::parse(&example_message().emit()).unwrap(), example_message());
        let header = XdpProgramHeader { fragments: true, at: Attach::Native, ..example_message().header };
        let other = GrantMessage { header, native_refused: None, promiscuous: false, ..example_message() };
        assert_eq!(GrantMessage::parse(&other.emit()).unwrap(), other);
    }

    #[test]
    fn invalid_fields_of_a_grant_are_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = example_message().emit();
            bytes[at] = byte;
            GrantMessage::parse(&bytes).unwrap_err().to_string()
        };
        for (at, byte, said) in [
            (0, 0, "does not begin like a grant"),
            (8, 1, "it is of version 1, and this program reads version 2"),
            (39, 0x80, "errno"),
            (40, 3, "place of the program"),
            (41, 2, "flag"),
            (42, 2, "flag"),
            (43, 1, "flag"),
            (44, 1, "size of the rx ring"),
            (48, 0, "name of the interface"),
            (49, 0xff, "name of the interface"),
            (63, b'x', "name of the interface"),
        ] {
            assert!(with(at, byte).contains(said), "byte {at}: {}", with(at, byte));
        }
    }

    proptest! {
        #[test]
        fn accepted_grants_are_emitted_unchanged(noise in any::<[u8; 32]>(), at in 8..=32_usize) {
            let mut bytes = example_message().emit();
            bytes[at..at + 32].copy_from_slice(&noise);
            if let Ok(read) = GrantMessage::parse(&bytes) {
                prop_assert_eq!(read.emit(), bytes);
            }
        }
    }
}
