//! VLAN tags: IEEE 802.1Q, and 802.1ad with a provider's tag before the customer's.
//!
//! A tag is announced by the type field before it (its TPID) and ends in a type field of its own. Devices and
//! the kernel often take the outermost tag out of the frame and deliver its [`TagControl`] beside it.

use std::slice;

use thiserror::Error;

use super::emit::{BufferTooSmall, header_buffer};
use super::ethernet::{EtherType, Frame};
use super::field::Field;

/// Bytes of a tag, from its control field to its type.
pub const TAG_BYTES: usize = 4;

type Control = Field<0, 2>;
type Type = Field<2, 2>;

/// The control field of a tag (TCI): 3 bits priority, 1 bit drop eligible, 12 bits VLAN. Every value is
/// valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TagControl(pub u16);

/// A number is too large for its bits in a tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum TagControlError {
    /// The VLAN has more than 12 bits.
    #[error("VLAN {vlan_id}: no such number; it has 12 bits; give one from 0 to 4095")]
    VlanId {
        /// The number given.
        vlan_id: u16,
    },
    /// The priority has more than 3 bits.
    #[error("VLAN priority {priority}: no such number; it has 3 bits; give one from 0 to 7")]
    Priority {
        /// The number given.
        priority: u8,
    },
}

impl TagControl {
    const VLAN_ID_MAX: u16 = 0x0fff;
    const PRIORITY_MAX: u8 = 7;
    const DROP_ELIGIBLE: u16 = 0x1000;

    /// A control field from its parts. VLAN 0 means "priority only", 4095 is reserved (IEEE 802.1Q, table
    /// 9-2).
    ///
    /// # Errors
    /// When `priority` is above 7 or `vlan_id` above 4095.
    pub const fn new(vlan_id: u16, priority: u8, drop_eligible: bool) -> Result<Self, TagControlError> {
        if vlan_id > Self::VLAN_ID_MAX {
            return Err(TagControlError::VlanId { vlan_id });
        }
        if priority > Self::PRIORITY_MAX {
            return Err(TagControlError::Priority { priority });
        }
        let drop_eligible = if drop_eligible { Self::DROP_ELIGIBLE } else { 0 };
        Ok(Self((priority as u16) << 13 | drop_eligible | vlan_id))
    }

    /// The VLAN, 0 to 4095.
    pub const fn vlan_id(self) -> u16 {
        self.0 & Self::VLAN_ID_MAX
    }

    /// The priority (PCP), 0 to 7.
    pub const fn priority(self) -> u8 {
        (self.0 >> 13) as u8
    }

    /// Whether the frame may be dropped before others under congestion (DEI).
    pub const fn drop_eligible(self) -> bool {
        self.0 & Self::DROP_ELIGIBLE != 0
    }
}

/// View of one tag and the bytes after it.
#[derive(Clone, Copy, Debug)]
pub struct Tag<'a> {
    header: &'a [u8; TAG_BYTES],
    payload: &'a [u8],
}

/// Why bytes are not a VLAN tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ParseError {
    /// The bytes end inside the tag.
    #[error("a VLAN tag has 4 bytes, {present_bytes} are left of the frame")]
    TooShort {
        /// Bytes that are present.
        present_bytes: usize,
    },
    /// The 802.3 length in the tag reaches beyond the bytes.
    #[error("the 802.3 length in the VLAN tag says {declared_bytes} bytes, {present_bytes} follow")]
    LengthBeyondFrame {
        /// Payload bytes the tag declares.
        declared_bytes: usize,
        /// Bytes after the tag.
        present_bytes: usize,
    },
}

impl<'a> Tag<'a> {
    /// Checks the tag at the start of `bytes`, the payload of a frame or tag whose type
    /// [`is_vlan`](EtherType::is_vlan).
    ///
    /// # Errors
    /// When the bytes are fewer than a tag, or than the 802.3 length in it.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let tag = Self::parse_cut(bytes)?;
        let (declared_bytes, present_bytes) = (tag.ether_type().declared_bytes(), tag.payload.len());
        match declared_bytes {
            Some(declared_bytes) if present_bytes < declared_bytes => {
                Err(ParseError::LengthBeyondFrame { declared_bytes, present_bytes })
            }
            _ => Ok(tag),
        }
    }

    /// Checks a tag of a frame that may be cut after it; its payload is then shorter than declared.
    ///
    /// # Errors
    /// When the bytes are fewer than a tag.
    pub fn parse_cut(bytes: &'a [u8]) -> Result<Self, ParseError> {
        let (header, rest) =
            bytes.split_first_chunk().ok_or(ParseError::TooShort { present_bytes: bytes.len() })?;
        let declared_bytes = EtherType(Type::number(header)).declared_bytes();
        let payload = declared_bytes.and_then(|declared_bytes| rest.get(..declared_bytes)).unwrap_or(rest);
        Ok(Self { header, payload })
    }

    /// Priority and VLAN.
    #[inline]
    pub fn control(&self) -> TagControl {
        TagControl(Control::number(self.header))
    }

    /// The type of the payload; perhaps another tag.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        EtherType(Type::number(self.header))
    }

    /// The bytes after the tag.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// View of all the tags of a frame, none included.
#[derive(Clone, Copy, Debug)]
pub struct TagStack<'a> {
    first: EtherType,
    tags: &'a [[u8; TAG_BYTES]],
    ether_type: EtherType,
    payload: &'a [u8],
}

impl<'a> TagStack<'a> {
    /// Walks over the tags of a frame. The number of tags is limited only by the frame, 4 bytes each.
    ///
    /// # Errors
    /// The frame ends inside a tag, or before the end of an 802.3 length in the last one.
    pub fn parse(frame: &Frame<'a>) -> Result<Self, ParseError> {
        let first = frame.ether_type();
        let (mut ether_type, mut payload, mut count) = (first, frame.payload(), 0);
        while ether_type.is_vlan() {
            let tag = Tag::parse(payload)?;
            (ether_type, payload, count) = (tag.ether_type(), tag.payload(), count + 1);
        }
        // The skipped tags are adjacent, at the start.
        let (tags, _) = frame.payload().as_chunks();
        Ok(Self { first, tags: &tags[..count], ether_type, payload })
    }

    /// The tags, outermost first.
    pub fn tags(&self) -> Tags<'a> {
        Tags { protocol: self.first, rest: self.tags.iter() }
    }

    /// The type after the last tag; the type of the frame if there is none.
    #[inline]
    pub fn ether_type(&self) -> EtherType {
        self.ether_type
    }

    /// The bytes after the last tag; the payload of the frame if there is none.
    #[inline]
    pub fn payload(&self) -> &'a [u8] {
        self.payload
    }
}

/// The tags of a frame, outermost first: the type that announced each (its TPID), and the tag.
#[derive(Clone, Debug)]
pub struct Tags<'a> {
    protocol: EtherType,
    rest: slice::Iter<'a, [u8; TAG_BYTES]>,
}

impl Iterator for Tags<'_> {
    type Item = (EtherType, Repr);

    fn next(&mut self) -> Option<Self::Item> {
        let tag = self.rest.next()?;
        let repr =
            Repr { control: TagControl(Control::number(tag)), ether_type: EtherType(Type::number(tag)) };
        let protocol = std::mem::replace(&mut self.protocol, repr.ether_type);
        Some((protocol, repr))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rest.size_hint()
    }
}

impl ExactSizeIterator for Tags<'_> {}

/// A VLAN tag. The header before it must have a VLAN type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Repr {
    /// Priority and VLAN.
    pub control: TagControl,
    /// The type after the tag.
    pub ether_type: EtherType,
}

impl Repr {
    /// Copies the tag out of a view.
    pub fn parse(tag: &Tag<'_>) -> Self {
        Self { control: tag.control(), ether_type: tag.ether_type() }
    }

    /// Writes the tag into the first [`TAG_BYTES`] of `buffer`.
    ///
    /// # Errors
    /// When `buffer` is shorter than that; it is then unchanged.
    #[inline]
    pub fn emit(&self, buffer: &mut [u8]) -> Result<(), BufferTooSmall> {
        let header: &mut [u8; TAG_BYTES] = header_buffer(buffer)?;
        Control::put_number(header, self.control.0);
        Type::put_number(header, self.ether_type.0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A provider's VLAN 100 around the customer's VLAN 5 with priority 6, around two bytes of IPv4.
    const STACKED: [u8; 24] = [
        2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xa8, // Ethernet
        0x00, 0x64, 0x81, 0x00, // 802.1ad
        0xd0, 0x05, 0x08, 0x00, // 802.1Q, drop eligible
        0x45, 0x00,
    ];

    #[test]
    fn stacked_tags_are_parsed_in_order() {
        let stack = TagStack::parse(&Frame::parse(&STACKED).unwrap()).unwrap();
        let tags: Vec<_> = stack.tags().collect();
        assert_eq!(stack.tags().len(), 2);
        assert_eq!((tags[0].0, tags[1].0), (EtherType::SERVICE_VLAN, EtherType::VLAN));
        assert_eq!((tags[0].1.control, tags[0].1.ether_type), (TagControl(100), EtherType::VLAN));
        let inner = tags[1].1.control;
        assert_eq!((inner.vlan_id(), inner.priority(), inner.drop_eligible()), (5, 6, true));
        assert_eq!(TagControl::new(5, 6, true), Ok(inner));
        assert_eq!((stack.ether_type(), stack.payload()), (EtherType::IPV4, &[0x45, 0x00][..]));
    }

    #[test]
    fn a_frame_without_tags_is_an_empty_stack() {
        let stack_of = |bytes| {
            let frame = Frame::parse(bytes).unwrap();
            let stack = TagStack::parse(&frame).unwrap();
            (stack.tags().count(), stack.ether_type(), stack.payload().len())
        };
        assert_eq!(stack_of(&crate::wire::captured::UDP_V4), (0, EtherType::IPV4, 35));
    }

    #[test]
    fn every_frame_truncated_inside_a_tag_is_refused() {
        for bytes in 14..22 {
            let error = TagStack::parse(&Frame::parse(&STACKED[..bytes]).unwrap()).unwrap_err();
            assert_eq!(error, ParseError::TooShort { present_bytes: (bytes - 14) % 4 });
        }
        assert!(TagStack::parse(&Frame::parse(&STACKED[..22]).unwrap()).is_ok());
    }

    #[test]
    fn length_of_802_3_counts_after_the_tag() {
        let tagged = [0x00, 0x05, 0x00, 0x03, 1, 2, 3, 0, 0];
        assert_eq!(Tag::parse(&tagged).unwrap().payload(), [1, 2, 3]);
        assert_eq!(
            Tag::parse(&tagged[..6]).unwrap_err(),
            ParseError::LengthBeyondFrame { declared_bytes: 3, present_bytes: 2 }
        );
    }

    #[test]
    fn tag_fields_beyond_their_bits_are_refused() {
        assert_eq!(TagControl::new(4096, 0, false), Err(TagControlError::VlanId { vlan_id: 4096 }));
        assert_eq!(TagControl::new(1, 8, false), Err(TagControlError::Priority { priority: 8 }));
        assert_eq!(TagControl::new(4095, 7, true), Ok(TagControl(0xffff)));
    }

    proptest! {
        #[test]
        fn emit_then_parse(control: u16, ether_type: u16) {
            let repr = Repr { control: TagControl(control), ether_type: EtherType(ether_type) };
            let mut bytes = [0; TAG_BYTES + 1500];
            repr.emit(&mut bytes).unwrap();
            prop_assert_eq!(Repr::parse(&Tag::parse(&bytes).unwrap()), repr);
            let control = repr.control;
            let parts = TagControl::new(control.vlan_id(), control.priority(), control.drop_eligible());
            prop_assert_eq!(parts, Ok(control));
        }
    }
}
